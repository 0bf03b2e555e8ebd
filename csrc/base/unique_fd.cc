#include "base/unique_fd.h"

#include <unistd.h>

#include <cerrno>

#include "base/fork_guard.h"

namespace dmlcomm {

int UniqueFd::release() {
  forget_descriptor(fd_);
  return std::exchange(fd_, -1);
}

void UniqueFd::reset(int fd) {
  const int old = std::exchange(fd_, fd);
  if (old < 0 || old == fd) return;
  const int saved_errno = errno;
  forget_descriptor(old);
  ::close(old);
  errno = saved_errno;
}

}  // namespace dmlcomm
