// Boxes in C++.
#include "C4SNet.h"

#include <algorithm>
#include <vector>

// ((A) -> (A)): sorts the elements.
extern "C" void *sorted(void *hnd, c4snet_data_t *A)
{
  const int *data = static_cast<const int *>(C4SNetGetData(A));
  std::vector<int> numbers(data, data + C4SNetArraySize(A));
  std::sort(numbers.begin(), numbers.end());
  C4SNetFree(A);
  C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_int, numbers.size(), numbers.data()));
  return hnd;
}

// ((<N>) -> (A)): uses a container and an old name.
extern "C" void *old(void *hnd, int n)
{
  c4snet_container_t *record = C4SNetContainerCreate(hnd, 1);
  C4SNetContainerSetField(record, C4SNetDataCreate(CTYPE_int, &n));
  C4SNetContainerOut(record);
  return hnd;
}
