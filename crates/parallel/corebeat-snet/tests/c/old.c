/* Boxes with older interfaces. */
#include <bool.h>
#include <C4SNet.h>
#include <stdlib.h>
#include "memfun.h"

extern int node_location;

/* ((A, <T>) -> (A) | (<T>)): uses the oldest names. */
snet_handle_t *oldest(snet_handle_t *hnd, c4snet_data_t *A, int T)
{
  bool more = true;
  int n = *(int *)C4SNetDataGetData(A);
  c4snet_data_t *sum;
  n += T + node_location;
  sum = C4SNetDataCreate(CTYPE_int, &n);
  C4SNetDataFree(A);
  while (more) {
    snetout(hnd, 1, C4SNetDataShallowCopy(sum));
    snetout(hnd, 2, T);
    more = false;
  }
  snetout(hnd, 1, sum);
  return hnd;
}

/* ((A, <#B>, <T>) -> (<T>, A, <#B>, C)): uses containers. */
void *contained(void *hnd, c4snet_data_t *A, int B, int T)
{
  int two[] = {1, 2}, *given = SNetMemAlloc(3 * sizeof(int));
  c4snet_container_t *c = C4SNetContainerCreate(hnd, 1);
  given[0] = given[1] = given[2] = 5;
  C4SNetContainerSetField(c, C4SNetDataCreate(CTYPE_int, 2, two));
  C4SNetContainerSetTag(c, T + 1);
  C4SNetContainerSetBTag(c, B + 1);
  C4SNetContainerSetField(c, C4SNetDataCreateArray(CTYPE_int, 3, given));
  C4SNetContainerOut(c);
  C4SNetDataFree(C4SNetDataCopy(A));
  C4SNetDataFree(A);
  return hnd;
}

/* ((<T>) -> (<T>)): outputs containers with too many values, too few, and an invalid variant. */
void *uncontained(void *hnd, int T)
{
  c4snet_container_t *c = C4SNetContainerCreate(hnd, T);
  if (T == 1) {
    C4SNetContainerSetTag(c, 1);
    C4SNetContainerSetTag(c, 2);
  }
  C4SNetContainerSetField(c, NULL);
  C4SNetContainerOut(c);
  return hnd;
}
