/* Boxes with every number of arguments, alternately fields and tags. Each outputs the sum. */
#include "C4SNet.h"

static long value(c4snet_data_t *field)
{
  long n = *(long *)C4SNetGetData(field);
  C4SNetFree(field);
  return n;
}

void *arity0(void *hnd)
{
  long n = 0;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity1(void *hnd, c4snet_data_t *a0)
{
  long n = 0 + 1L * value(a0);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity2(void *hnd, c4snet_data_t *a0, int a1)
{
  long n = 0 + 1L * value(a0) + 2L * a1;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity3(void *hnd, c4snet_data_t *a0, int a1, int a2)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity4(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity5(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity6(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity7(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity8(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity9(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity10(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity11(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity12(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity13(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity14(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity15(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity16(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity17(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15, int a16)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15) + 17L * a16;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity18(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15, int a16, int a17)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15) + 17L * a16 + 18L * a17;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity19(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15, int a16, int a17, c4snet_data_t *a18)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15) + 17L * a16 + 18L * a17 + 19L * value(a18);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity20(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15, int a16, int a17, c4snet_data_t *a18, int a19)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15) + 17L * a16 + 18L * a17 + 19L * value(a18) + 20L * a19;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity21(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15, int a16, int a17, c4snet_data_t *a18, int a19, int a20)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15) + 17L * a16 + 18L * a17 + 19L * value(a18) + 20L * a19 + 21L * a20;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity22(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15, int a16, int a17, c4snet_data_t *a18, int a19, int a20, c4snet_data_t *a21)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15) + 17L * a16 + 18L * a17 + 19L * value(a18) + 20L * a19 + 21L * a20 + 22L * value(a21);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity23(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15, int a16, int a17, c4snet_data_t *a18, int a19, int a20, c4snet_data_t *a21, int a22)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15) + 17L * a16 + 18L * a17 + 19L * value(a18) + 20L * a19 + 21L * a20 + 22L * value(a21) + 23L * a22;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

void *arity24(void *hnd, c4snet_data_t *a0, int a1, int a2, c4snet_data_t *a3, int a4, int a5, c4snet_data_t *a6, int a7, int a8, c4snet_data_t *a9, int a10, int a11, c4snet_data_t *a12, int a13, int a14, c4snet_data_t *a15, int a16, int a17, c4snet_data_t *a18, int a19, int a20, c4snet_data_t *a21, int a22, int a23)
{
  long n = 0 + 1L * value(a0) + 2L * a1 + 3L * a2 + 4L * value(a3) + 5L * a4 + 6L * a5 + 7L * value(a6) + 8L * a7 + 9L * a8 + 10L * value(a9) + 11L * a10 + 12L * a11 + 13L * value(a12) + 14L * a13 + 15L * a14 + 16L * value(a15) + 17L * a16 + 18L * a17 + 19L * value(a18) + 20L * a19 + 21L * a20 + 22L * value(a21) + 23L * a22 + 24L * a23;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_long, 1, &n));
  return hnd;
}

/* (-> (F0, <T1>, F2, ...)) */
void *many(void *hnd)
{
  int i = 7;
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_int, 1, &i), 1, C4SNetCreate(CTYPE_int, 1, &i), 3, C4SNetCreate(CTYPE_int, 1, &i), 5, C4SNetCreate(CTYPE_int, 1, &i), 7, C4SNetCreate(CTYPE_int, 1, &i), 9, C4SNetCreate(CTYPE_int, 1, &i), 11, C4SNetCreate(CTYPE_int, 1, &i), 13, C4SNetCreate(CTYPE_int, 1, &i), 15, C4SNetCreate(CTYPE_int, 1, &i), 17, C4SNetCreate(CTYPE_int, 1, &i), 19, C4SNetCreate(CTYPE_int, 1, &i), 21, C4SNetCreate(CTYPE_int, 1, &i), 23);
  return hnd;
}
