// Shared files without a name (memfd) whose size is final: an access behind an end that somebody
// has moved would kill the process (SIGBUS).
#pragma once

#include <fcntl.h>

#include <cerrno>

#include "base/status.h"

namespace dmlcomm {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Of a memfd that was made with MFD_ALLOW_SEALING.
inline Status seal_size(int fd) {
  if (fcntl(fd, F_ADD_SEALS, kSizeSeals) == 0) return Status();
  return errno_status(StatusCode::io_error, "seal a memfd", errno);
}

inline bool has_sealed_size(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace dmlcomm
