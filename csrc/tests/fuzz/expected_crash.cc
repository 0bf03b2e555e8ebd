// A target with a planted fault. scripts/fuzz.sh runs it first and insists that it is found, which
// proves that the other targets' silence means something.
#include <cstddef>
#include <cstdint>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  DMLCOMM_CHECK(size < 3 || data[0] != 'B' || data[1] != 'A' || data[2] != 'D');
  return 0;
}
