// DMLCOMM_CHECK: a broken promise between pieces of our own code. It prints where, and aborts.
#pragma once

namespace dmlcomm {
[[noreturn]] void check_failed(const char* file, int line, const char* condition);
}  // namespace dmlcomm

#define DMLCOMM_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::dmlcomm::check_failed(__FILE__, __LINE__, #condition))
