/* Boxes in C that only old compilers and the headers of S-Net's first run-time accept. */
#include "bool.h"
#include "memfun.h"
#include <C4SNet.h>

/* ((<T>) -> (A)): outputs a truth value as an int; the return value is ignored. */
void truth(void *hnd, int T)
{
  bool positive = T > 0;
  C4SNetOut(hnd, 1, C4SNetDataCreate(CTYPE_int, &positive));
}

/* ((A) -> (A)): uses pointers of other types and an undeclared function. */
void *doubled(void *hnd, c4snet_data_t *A)
{
  int *to, *from = C4SNetDataGetData(A);
  int i, n = C4SNetDataGetArraySize(A);
  c4snet_data_t *result = C4SNetDataAllocCreateArray(CTYPE_int, n, &to);
  for (i = 0; i < n; i++) {
    to[i] = from[i] * 2;
  }
  sched_yield();
  C4SNetOut(hnd, 1, result);
  C4SNetDataFree(A);
  return hnd;
}
