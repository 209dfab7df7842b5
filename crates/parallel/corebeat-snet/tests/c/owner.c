/* Ownership of fields, and use of freed fields. */
#include "C4SNet.h"

/* ((A) -> (A, B, C)): outputs a deep copy of A, a shallow and a deep copy of it, after a write. */
void *copies(void *hnd, c4snet_data_t *A)
{
  c4snet_data_t *mine = C4SNetDeepCopy(A);
  c4snet_data_t *shallow = C4SNetShallowCopy(mine), *deep = C4SNetDeepCopy(mine);
  C4SNetFree(A);
  ((char *)C4SNetGetData(mine))[0] = 'x';
  C4SNetOut(hnd, 1, mine, shallow, deep);
  return hnd;
}

/* ((A) -> (A)): outputs A twice without a copy, reads it in between, and frees it. */
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

/* (-> (A) | (A, B)): does the same with a new field, and outputs it twice in one record. */
void *own(void *hnd)
{
  int i = 7;
  c4snet_data_t *field = C4SNetCreate(CTYPE_int, 1, &i);
  C4SNetOut(hnd, 1, field);
  C4SNetOut(hnd, 2, field, field);
  C4SNetOut(hnd, 1, field);
  return hnd;
}

/* ((A) -> (A)): frees A and then outputs it. */
void *late(void *hnd, c4snet_data_t *A)
{
  C4SNetFree(A);
  C4SNetOut(hnd, 1, A);
  return hnd;
}

/* (-> (A)): uses a new field after the next record, which frees it. */
void *gone(void *hnd)
{
  int i = 1;
  c4snet_data_t *first = C4SNetCreate(CTYPE_int, 1, &i);
  C4SNetOut(hnd, 1, first);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_int, 1, &i));
  C4SNetOut(hnd, 1, first);
  return hnd;
}

/* ((A) -> (A)): does not free its argument. */
void *leak(void *hnd, c4snet_data_t *A)
{
  (void)A;
  return hnd;
}

/* ((<N>) -> (A, <N>)): passes a number as a field. */
void *number(void *hnd, int n)
{
  C4SNetOut(hnd, 1, (c4snet_data_t *)(size_t)n, n);
  return hnd;
}

/* ((A) -> (A)): outputs NULL as a field without content. */
void *null(void *hnd, c4snet_data_t *A)
{
  C4SNetFree(A);
  C4SNetOut(hnd, 1, (c4snet_data_t *)NULL);
  return hnd;
}

/* ((<N>) -> (<N>)): outputs undeclared variants. */
void *variant(void *hnd, int n)
{
  C4SNetOut(hnd, n, n);
  return hnd;
}

/* ((<N>) -> (<N>)): reports a failure. */
void *fails(void *hnd, int n)
{
  C4SNetOut(hnd, 1, n);
  corebeat_snet_fail(hnd, "no such\nfile");
  corebeat_snet_fail(hnd, "never seen");
  return hnd;
}

/* ((<N>) -> (<N>)): outputs records until the network accepts no more. */
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
