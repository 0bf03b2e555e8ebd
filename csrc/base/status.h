// Status and Result: how operating errors travel in dmlcomm.
//
// An operating error (a peer died, a wrong argument, a port in use) is a value: functions that can
// fail return Status or Result<T>. A programmer error is a DMLCOMM_CHECK, which aborts. A message
// is written for the user: who, what, expected, actual, what to try.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/str_cat.h"

namespace dmlcomm {

// One list makes the enum and its names.
#define DMLCOMM_STATUS_CODES(X) \
  X(ok)                         \
  X(invalid_argument)           \
  X(mismatch)                   \
  X(peer_lost)                  \
  X(timeout)                    \
  X(aborted)                    \
  X(protocol_error)             \
  X(io_error)                   \
  X(unsupported)                \
  X(internal_error)

enum class StatusCode {
#define DMLCOMM_STATUS_ENUM(name) name,
  DMLCOMM_STATUS_CODES(DMLCOMM_STATUS_ENUM)
#undef DMLCOMM_STATUS_ENUM
};

const char* to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  // The message is the text of all arguments, one after the other (str_cat).
  template <typename First, typename... More>
  Status(StatusCode code, const First& first, const More&... more)
      : code_(code), message_(str_cat(first, more...)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "peer_lost: rank 3 (host b) ..." for logs and tests.
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

// A Status that names the failed system call and errno: "connect(10.0.0.2:4711): Connection
// refused".
Status errno_status(StatusCode code, const std::string& what, int error_number);

// As it came from a peer: a code that is none of an error becomes `aborted`.
Status received_status(uint64_t code, const std::string& message);

std::ostream& operator<<(std::ostream& out, const Status& status);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { DMLCOMM_CHECK(!status_.ok()); }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() {
    DMLCOMM_CHECK(ok());
    return *value_;
  }
  const T& value() const {
    DMLCOMM_CHECK(ok());
    return *value_;
  }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

#define DMLCOMM_RETURN_IF_ERROR(expr)                                      \
  do {                                                                     \
    if (::dmlcomm::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

}  // namespace dmlcomm
