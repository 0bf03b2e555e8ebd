// Exceptions as Status, for the handlers that stand where the threads of the core begin.
//
// Failures of the core are values. Exceptions come from below it, when there is no memory or no
// further thread, and one that leaves a thread ends the process. So every thread of the core
// catches std::exception, and fails its work with a reason. Other classes pass: the end of a thread
// is one of them.
#pragma once

#include <chrono>
#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace dmlcomm {

// So short that a string of it takes no memory.
constexpr const char* kNoMemory = "no memory left";

inline Status status_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Status(StatusCode::internal_error, kNoMemory);
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

// For what other threads wait for: repeats `call` as long as there is no memory for it. Another
// exception would come again, so it is logged only.
template <typename Call>
void insist(Call call) {
  constexpr std::chrono::milliseconds kPause{1};
  for (;;) {
    try {
      return call();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(kPause);
    } catch (const std::exception& error) {
      return log_error("unexpected exception: ", error.what());
    }
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
