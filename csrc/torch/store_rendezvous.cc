#include "torch/store_rendezvous.h"

#include <algorithm>

#include "torch/interrupts.h"

namespace dmlcomm::adaptor {
namespace {

// How often a waiting get() looks for Ctrl-C.
constexpr std::chrono::milliseconds kInterruptPeriod{250};

// Stores keep time in milliseconds and may round down.
constexpr std::chrono::milliseconds kClockSlack{5};

Status store_status(const std::string& key, const std::exception& error) {
  return {StatusCode::io_error,
          "the store of the process group failed at key '" + key + "': " + error.what()};
}

}  // namespace

Status StoreRendezvous::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, value);
    return {};
  } catch (const std::exception& error) {
    return store_status(key, error);
  }
}

Result<std::string> StoreRendezvous::get(const std::string& key,
                                         std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return Status(StatusCode::timeout,
                    "no rank has published '" + key + "' within " +
                        std::to_string(timeout.count()) +
                        " ms; check that every rank has started and creates the same groups in the "
                        "same order");
    }
    const auto slice = std::min(left, kInterruptPeriod);
    const auto slice_end = std::chrono::steady_clock::now() + slice;
    try {
      store_->wait({key}, slice);
      return store_->get_to_str(key);
    } catch (const std::exception& error) {
      // Stores differ in the class they throw for a timeout; that the time is over they have in common.
      if (std::chrono::steady_clock::now() < slice_end - kClockSlack) {
        return store_status(key, error);
      }
      if (interrupted()) return Status(StatusCode::aborted, "interrupted");
    }
  }
}

bool StoreRendezvous::interrupted() {
  try {
    check_interrupts();
    return false;
  } catch (...) {
    interrupt_ = std::current_exception();
    return true;
  }
}

}  // namespace dmlcomm::adaptor
