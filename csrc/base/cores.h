// The cores that the calling thread may use.
#pragma once

#include <sched.h>

#include <optional>

namespace dmlcomm {

// None where the kernel counts more of them than a cpu_set_t holds.
inline std::optional<cpu_set_t> allowed_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return std::nullopt;
  return cores;
}

}  // namespace dmlcomm
