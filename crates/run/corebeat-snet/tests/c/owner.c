/* Who owns fields, and what becomes of those that nobody should use any more. */
#include "C4SNet.h"

/* ((A) -> (A, B, C)): the same, a shallow copy and a deep one; written to after that. */
void *copies(void *hnd, c4snet_data_t *A)
{
  c4snet_data_t *shallow = C4SNetShallowCopy(A), *deep = C4SNetDeepCopy(A);
  ((char *)C4SNetGetData(A))[0] = 'x';
  C4SNetOut(hnd, 1, A, shallow, deep);
  return hnd;
}

/* ((A) -> (A)): put out twice without a copy, looked at in between, and freed. */
void *twice(void *hnd, c4snet_data_t *A)
{
  C4SNetOut(hnd, 1, A);
  if (*(int *)C4SNetGetData(A) == 7) {
    C4SNetOut(hnd, 1, A);
  }
  C4SNetFree(A);
  C4SNetFree(A);
  return hnd;
}

/* (-> (A) | (A, B)): the same with a field of its own, and both places of one record. */
void *own(void *hnd)
{
  int i = 7;
  c4snet_data_t *field = C4SNetCreate(CTYPE_int, 1, &i);
  C4SNetOut(hnd, 1, field);
  C4SNetOut(hnd, 2, field, field);
  C4SNetOut(hnd, 1, field);
  return hnd;
}

/* ((A) -> (A)): freed, and then put out. */
void *late(void *hnd, c4snet_data_t *A)
{
  C4SNetFree(A);
  C4SNetOut(hnd, 1, A);
  return hnd;
}

/* (-> (A)): own fields are gone with the next record. */
void *gone(void *hnd)
{
  int i = 1;
  c4snet_data_t *first = C4SNetCreate(CTYPE_int, 1, &i);
  C4SNetOut(hnd, 1, first);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_int, 1, &i));
  C4SNetOut(hnd, 1, first);
  return hnd;
}

/* ((A) -> (A)): keeps what it gets. */
void *leak(void *hnd, c4snet_data_t *A)
{
  (void)A;
  return hnd;
}

/* ((<N>) -> (A, <N>)): a number for a field. */
void *number(void *hnd, int n)
{
  C4SNetOut(hnd, 1, (c4snet_data_t *)(size_t)n, n);
  return hnd;
}

/* ((A) -> (A)): NULL for a field, where only the label counts. */
void *null(void *hnd, c4snet_data_t *A)
{
  C4SNetFree(A);
  C4SNetOut(hnd, 1, (c4snet_data_t *)NULL);
  return hnd;
}

/* ((<N>) -> (<N>)): variants that it has not. */
void *variant(void *hnd, int n)
{
  C4SNetOut(hnd, n, n);
  return hnd;
}

/* ((<N>) -> (<N>)): says that it cannot. */
void *fails(void *hnd, int n)
{
  C4SNetOut(hnd, 1, n);
  corebeat_snet_fail(hnd, "no such\nfile");
  corebeat_snet_fail(hnd, "never seen");
  return hnd;
}

/* ((<N>) -> (<N>)): for ever, as long as anybody wants it. */
void *endless(void *hnd, int n)
{
  while (corebeat_snet_wanted(hnd)) {
    int *data;
    c4snet_data_t *field = C4SNetAlloc(CTYPE_int, 1, (void **)&data);
    C4SNetFree(field);
    C4SNetOut(hnd, 1, n++);
  }
  return hnd;
}
