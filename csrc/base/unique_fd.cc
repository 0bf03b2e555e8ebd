#include "base/unique_fd.h"

#include <unistd.h>

#include <cerrno>

namespace dmlcomm {

void UniqueFd::reset(int fd) {
  const int old = std::exchange(fd_, fd);
  if (old < 0 || old == fd) return;
  const int saved_errno = errno;
  ::close(old);
  errno = saved_errno;
}

}  // namespace dmlcomm
