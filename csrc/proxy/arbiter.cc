#include "proxy/arbiter.h"

#include <net/if.h>

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"

namespace dmlcomm::proxy {
namespace {

using std::chrono::milliseconds;

// Between two rounds. Credits of a millisecond are less than what kernels hold back of a job.
constexpr milliseconds kBusy{1};
constexpr milliseconds kSeveral{10};  // jobs, which are idle
constexpr milliseconds kIdle{100};

}  // namespace

Arbiter::Arbiter(const SharePolicy& policy)
    : arbitration_(policy, [](const auto& name) { return if_nametoindex(name.c_str()) != 0; }),
      thread_([this] { run(); }) {}

Arbiter::~Arbiter() { close(); }

uint64_t Arbiter::add(const std::string& job, unsigned priority,
                      std::shared_ptr<transport::JobSeat> seat) {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
  return arbitration_.add(job, priority, std::move(seat));
}

void Arbiter::remove(uint64_t seat) {
  const std::lock_guard lock(mutex_);
  arbitration_.remove(seat);
}

void Arbiter::drop(const std::string& job, unsigned priority, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  arbitration_.drop(job, priority, reason);
}

std::vector<Arbitration::JobStatus> Arbiter::status() {
  const std::lock_guard lock(mutex_);
  arbitration_.round(now_ns());
  return arbitration_.status();
}

void Arbiter::run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const int64_t now = now_ns();
    take_round(now);
    const milliseconds pause = arbitration_.is_busy(now)    ? kBusy
                               : arbitration_.has_several() ? kSeveral
                                                            : kIdle;
    changed_.wait_for(lock, pause);
  }
}

// What a round without memory has not granted, the next one does.
void Arbiter::take_round(int64_t now) {
  const Status status = without_exceptions([&] {
    arbitration_.round(now);
    return Status();
  });
  if (status.ok() || std::exchange(has_failed_, true)) return;
  log_error("the NICs of this host were not arbitrated for a moment: ", status.message());
}

void Arbiter::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    arbitration_.remove_all();
    changed_.notify_all();
  }
  std::call_once(joined_, [this] { thread_.join(); });
}

}  // namespace dmlcomm::proxy
