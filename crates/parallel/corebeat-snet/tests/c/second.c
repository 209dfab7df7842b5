/* Second of two files of a library. */
#include "C4SNet.h"

void helper(void *hnd, int n);

void helper(void *hnd, int n)
{
  C4SNetOut(hnd, 1, n);
}

/* ((<N>) -> (<N>)) */
void *second(void *hnd, int n)
{
  helper(hnd, n + 2);
  return hnd;
}
