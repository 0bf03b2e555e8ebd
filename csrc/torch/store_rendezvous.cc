#include "torch/store_rendezvous.h"

#include <algorithm>
#include <thread>

#include "base/str_cat.h"
#include "torch/errors.h"

namespace dmlcomm::adaptor {
namespace {

// A waiting rank asks the store again after these pauses, and looks for Ctrl-C in between.
// Store::wait() would have to be cut into slices for that, each of which c10d reports on stderr as
// a timeout.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{50};
// ...and after this time for all values, which is a long question where ranks are many.
constexpr std::chrono::steady_clock::duration kPatience = std::chrono::seconds(5);

}  // namespace

Result<std::vector<std::string>> StoreRendezvous::exchange(const std::string& name, int rank,
                                                           int num_ranks, const std::string& value,
                                                           std::chrono::milliseconds timeout) {
  Keys keys;
  for (int r = 0; r < num_ranks; ++r) keys.push_back(str_cat(name, "/", r));
  try {
    store_->set(keys[rank], value);
    const bool is_last = store_->add(str_cat(name, "/arrived"), 1) >= num_ranks;
    DMLCOMM_RETURN_IF_ERROR(meet(name, keys, is_last, timeout));
    std::vector<std::string> values;
    for (const std::vector<uint8_t>& each : store_->multiGet(keys)) {
      values.emplace_back(each.begin(), each.end());
    }
    return values;
  } catch (const std::exception& error) {
    return Status(StatusCode::io_error, str_cat("the store of the process group failed at keys '",
                                                name, "/...': ", error.what()));
  }
}

// A rank that was started again has counted twice, and the last one may die before its word. So it
// is the values that decide: the last one looks for them, and who waits does so now and then.
Status StoreRendezvous::meet(const std::string& name, const Keys& keys, bool is_last,
                             std::chrono::milliseconds timeout) {
  const std::string complete = str_cat(name, "/complete");
  const Clock::time_point deadline = Clock::now() + timeout;
  for (auto patience = is_last ? Clock::duration::zero() : kPatience;; patience = kPatience) {
    const Status waited = wait(complete, std::min(deadline, Clock::now() + patience));
    if (waited.code() != StatusCode::timeout) return waited;
    if (store_->check(keys)) {
      store_->set(complete, std::string("1"));
      return Status();
    }
    if (Clock::now() >= deadline) return missing(name, keys, timeout);
  }
}

Status StoreRendezvous::wait(const std::string& key, Clock::time_point deadline) {
  for (auto pause = kFirstPause; !store_->check({key});
       pause = std::min(2 * pause, kLongestPause)) {
    if (interrupted()) return Status(StatusCode::aborted, "interrupted");
    if (const Status reason = reason_to_end_(); !reason.ok()) {
      return Status(StatusCode::aborted, str_cat("the group has failed: ", reason.to_string()));
    }
    if (Clock::now() >= deadline) return Status(StatusCode::timeout, "");
    std::this_thread::sleep_for(pause);
  }
  return Status();
}

Status StoreRendezvous::missing(const std::string& name, const Keys& keys,
                                std::chrono::milliseconds timeout) {
  std::string ranks;
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    if (!store_->check({keys[rank]})) ranks += str_cat(ranks.empty() ? "" : ", ", rank);
  }
  if (ranks.empty()) return Status();
  return Status(StatusCode::timeout,
                str_cat("rank ", ranks, " of ", keys.size(), " has not published its '", name,
                        "' within ", timeout.count(),
                        " ms; check that every rank has started and creates the same groups in the "
                        "same order"));
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
