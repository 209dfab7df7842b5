/* Values of every type as inputs and outputs. */
#include "C4SNet.h"

/* ((A) -> (A, <bytes>, <count>)): outputs a new field with the same elements. */
void *echo(void *hnd, c4snet_data_t *A)
{
  c4snet_data_t *made = C4SNetCreate(C4SNetGetType(A), C4SNetArraySize(A), C4SNetGetData(A));
  C4SNetOut(hnd, 1, made, C4SNetSizeof(A), (int)C4SNetArraySize(A));
  C4SNetFree(A);
  return hnd;
}

#define ADD(number, type)                          \
  case number:                                     \
    for (i = 0; i < C4SNetArraySize(A); i++) {     \
      sum += (double)((type *)C4SNetGetData(A))[i]; \
    }                                              \
    break

/* ((A) -> (S)): outputs the sum of the elements as a double. */
void *sum(void *hnd, c4snet_data_t *A)
{
  double sum = 0;
  size_t i;
  switch (C4SNetGetType(A)) {
    ADD(CTYPE_uchar, unsigned char);
    ADD(CTYPE_char, signed char);
    ADD(CTYPE_ushort, unsigned short);
    ADD(CTYPE_short, short);
    ADD(CTYPE_uint, unsigned int);
    ADD(CTYPE_int, int);
    ADD(CTYPE_ulong, unsigned long);
    ADD(CTYPE_long, long);
    ADD(CTYPE_float, float);
    ADD(CTYPE_double, double);
    ADD(CTYPE_ldouble, long double);
    case CTYPE_pointer:
      break;
  }
  C4SNetFree(A);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_double, 1, &sum));
  return hnd;
}

/* ((A) -> (A)): adds 1 to the first element, an int. */
void *add(void *hnd, c4snet_data_t *A)
{
  *(int *)C4SNetGetData(A) += 1;
  C4SNetOut(hnd, 1, A);
  return hnd;
}

/* ((A) -> (A, B)): outputs a text, and a copy with another first letter. */
void *text(void *hnd, c4snet_data_t *A)
{
  char *copy = C4SNetGetString(A);
  size_t n = 0;
  while (copy[n] != '\0') {
    n++;
  }
  copy[0] = '#';
  C4SNetOut(hnd, 1, A, C4SNetCreate(CTYPE_char, n, copy));
  SNetMemFree(copy);
  return hnd;
}

/* ((<N>) -> (A)): outputs N longs in descending order. */
void *list(void *hnd, int n)
{
  long *data;
  c4snet_data_t *field = C4SNetAlloc(CTYPE_long, (size_t)n, (void **)&data);
  int i;
  for (i = 0; i < n; i++) {
    data[i] = n - i;
  }
  C4SNetOut(hnd, 1, field);
  return hnd;
}

/* (-> (A)): checks that failed allocations return NULL. */
void *none(void *hnd)
{
  void *data = hnd;
  if (C4SNetAlloc(CTYPE_double, (size_t)-1, &data) == NULL && data == NULL &&
      C4SNetCreate((c4snet_type_t)99, 1, NULL) == NULL) {
    C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_int, 1, NULL));
  }
  return hnd;
}

/* ((A) -> (A) | (B)): passes a Rust value on as output 1. */
void *opaque(void *hnd, c4snet_data_t *A)
{
  if (C4SNetGetData(A) == NULL && C4SNetGetString(A) == NULL) {
    C4SNetOut(hnd, 1, C4SNetDeepCopy(A));
  }
  C4SNetFree(A);
  return hnd;
}
