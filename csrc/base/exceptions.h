// Exceptions as Status, for the handlers that stand where the threads of the core begin.
//
// Failures of the core are values. Exceptions come from below it, when there is no memory or no
// further thread, and one that leaves a thread ends the process. So every thread of the core
// catches std::exception, and fails its work with a reason. Other classes pass: the end of a thread
// is one of them.
#pragma once

#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace dmlcomm {

inline Status status_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Status(StatusCode::internal_error, "there is no memory left");
  }
  return Status(StatusCode::internal_error, "unexpected exception: ", error.what());
}

// What `call`, which returns a Status, returns; or the exception that it ends with.
template <typename Call>
Status without_exceptions(Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return status_of(error);
  }
}

// Gives `thread` a body, if the process may have a further thread.
template <typename Body>
Status start_thread(std::thread* thread, Body body) {
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return errno_status(StatusCode::internal_error, "a further thread of this process",
                        error.code().value());
  }
  return Status();
}

}  // namespace dmlcomm
