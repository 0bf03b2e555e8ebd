// UniqueFd: owns one file descriptor, and closes it exactly once.
#pragma once

#include <utility>

namespace dmlcomm {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

  // Gives the descriptor away: the caller closes it, and forked children keep it.
  [[nodiscard]] int release();

  // Closes its descriptor and takes `fd`. errno stays unchanged, so that a clean-up after a failed
  // call does not hide the cause. EINTR is not retried: Linux has closed the descriptor by
  // then.
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

}  // namespace dmlcomm
