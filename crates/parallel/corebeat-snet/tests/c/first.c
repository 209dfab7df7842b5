/* First of two files of a library. */
#include "C4SNet.h"

void helper(void *hnd, int n);
int a_variable = 5;

/* ((<N>) -> (<N>)) */
void *first(void *hnd, int n)
{
  helper(hnd, n + 1);
  return hnd;
}
