#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace dmlcomm {

// Straight to stderr: the log's own state may be what is broken.
void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "[dmlcomm] %s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace dmlcomm
