/* The boxes of the benches snet.replication and snet.box. */
#include "C4SNet.h"

/* Decrements the counter of the record. A record with counter 0 leaves with its number. */
void *foo(void *hnd, c4snet_data_t *field)
{
  int a = *(int *)C4SNetGetData(field);
  C4SNetFree(field);
  if ((a & 0xffff) != 0) {
    a -= 1;
    C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_int, 1, &a));
  } else {
    a >>= 16;
    C4SNetOut(hnd, 2, C4SNetCreate(CTYPE_int, 1, &a));
  }
  return hnd;
}

void *step(void *hnd, c4snet_data_t *field)
{
  int a = *(int *)C4SNetGetData(field) + 1;
  C4SNetFree(field);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_int, 1, &a));
  return hnd;
}
