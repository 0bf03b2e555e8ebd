#include "torch/store_rendezvous.h"

#include <algorithm>
#include <thread>

#include "torch/errors.h"

namespace dmlcomm::adaptor {
namespace {

// A waiting get() asks the store again after these pauses, and looks for Ctrl-C in between.
// Store::wait() would have to be cut into slices for that, each of which c10d reports on stderr as
// a timeout.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{50};

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
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    try {
      if (store_->check({key})) return store_->get_to_str(key);
    } catch (const std::exception& error) {
      return store_status(key, error);
    }
    if (interrupted()) return Status(StatusCode::aborted, "interrupted");
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(StatusCode::timeout,
                    "no rank has published '" + key + "' within " +
                        std::to_string(timeout.count()) +
                        " ms; check that every rank has started and creates the same groups in the "
                        "same order");
    }
    std::this_thread::sleep_for(pause);
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
