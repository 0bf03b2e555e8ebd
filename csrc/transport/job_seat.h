// JobSeat: where a process and the arbiter of its host (csrc/proxy) meet, so that several jobs
// share NICs by their priorities. A page of memory, which the process makes and the arbiter maps.
//
// The process counts the bytes that it sends over each NIC. The arbiter says whether the NIC has
// other jobs, and whether this one goes behind another: then large messages need credit, in bytes,
// which the arbiter grants. No call waits for it, and what it says counts for kBeatNs only: without
// an arbiter, or with one that is dead or stopped, nothing is held back.
//
// Of a page, each side writes its own words, and trusts no word of the other's: wrong ones make a
// process send too much or too little.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace dmlcomm::transport {

// The words of one NIC.
struct SeatNic {
  enum Sharing : uint32_t {
    alone,   // no other job is there
    shared,  // others are, and this one is not held back
    behind,  // another one goes first, and this one needs credit
  };

  enum Use : uint32_t { free, named_soon, used };

  // By the process. The name is written before it is in use.
  std::atomic<uint32_t> use;
  std::array<char, 16> name;
  std::atomic<uint64_t> sent_bytes;
  std::atomic<uint32_t> num_busy;         // groups with large frames that are not confirmed
  std::atomic<uint64_t> taken_bytes;      // of the credit
  std::atomic<int64_t> wanted_ns;         // when it waited for credit last
  std::atomic<uint64_t> bits_per_second;  // of the NIC, as measured; 0: not known

  // By the arbiter.
  std::atomic<uint32_t> sharing;
  std::atomic<uint64_t> granted_bytes;  // as `taken_bytes` counts them
};

struct SeatPage {
  static constexpr size_t kMaxNics = 16;
  static constexpr size_t kMaxReason = 512;

  // By the arbiter: when it was there last, and that the job has lost its place. The reason is
  // written before `is_dropped`.
  std::atomic<int64_t> beat_ns;
  std::atomic<bool> is_dropped;
  std::array<char, kMaxReason> reason;

  std::array<SeatNic, kMaxNics> nics;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

class JobSeat {
 public:
  // After so long without the arbiter nothing of what it said counts. It is there far more often,
  // but may wait for a core.
  static constexpr int64_t kBeatNs = 500 * kNsPerMs;

  // A page of its own.
  static Result<std::shared_ptr<JobSeat>> create();
  // The page of a descriptor, which stays the caller's. It may be a stranger's.
  static Result<std::shared_ptr<JobSeat>> open(int fd);
  ~JobSeat();
  JobSeat(const JobSeat&) = delete;
  JobSeat& operator=(const JobSeat&) = delete;

  int descriptor() const { return fd_.get(); }
  SeatPage& page() const { return *page_; }
  // The words of an interface, from now on; null if there are too many, or its name is too long.
  // From any thread.
  SeatNic* nic(std::string_view interface);
  bool has_arbiter(int64_t now_ns) const {
    const int64_t age_ns = now_ns - page_->beat_ns.load(std::memory_order_relaxed);
    return age_ns > -kBeatNs && age_ns < kBeatNs;
  }
  // Why the job has lost its place; empty while it has it.
  std::string reason() const;

 private:
  JobSeat(UniqueFd fd, SeatPage* page) : fd_(std::move(fd)), page_(page) {}

  const UniqueFd fd_;
  SeatPage* const page_;
};

// One NIC of a seat, as those who send see it; without a seat nothing is held back. Cheap: a word
// is read while no other job goes first.
class NicCredit {
 public:
  NicCredit() = default;
  NicCredit(std::shared_ptr<JobSeat> seat, std::string_view interface)
      : seat_(std::move(seat)), nic_(seat_ == nullptr ? nullptr : seat_->nic(interface)) {}

  // Other jobs are on this NIC.
  bool is_shared() const { return nic_ != nullptr && sharing() != SeatNic::alone; }
  // Large messages may need credit.
  bool is_limited() const { return nic_ != nullptr && sharing() == SeatNic::behind; }
  // Whether a large message may go on; if not, the arbiter knows that it wants to. It may take more
  // than there is, and wait longer then.
  bool has_credit(int64_t now_ns) {
    if (!is_limited() || !seat_->has_arbiter(now_ns)) return true;
    const uint64_t granted = nic_->granted_bytes.load(std::memory_order_relaxed);
    if (nic_->taken_bytes.load(std::memory_order_relaxed) < granted) return true;
    nic_->wanted_ns.store(now_ns, std::memory_order_relaxed);
    return false;
  }
  void take(size_t bytes) {
    if (is_limited()) nic_->taken_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  void sent(size_t bytes) {
    if (nic_ != nullptr) nic_->sent_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  // The group has large frames without a receipt now, or none any more.
  void busy(bool is_busy) {
    if (nic_ != nullptr) nic_->num_busy.fetch_add(is_busy ? 1 : -1u, std::memory_order_relaxed);
  }
  void measured(double bits_per_second) {
    if (nic_ == nullptr) return;
    nic_->bits_per_second.store(static_cast<uint64_t>(bits_per_second), std::memory_order_relaxed);
  }

 private:
  uint32_t sharing() const { return nic_->sharing.load(std::memory_order_relaxed); }

  std::shared_ptr<JobSeat> seat_;
  SeatNic* nic_ = nullptr;
};

}  // namespace dmlcomm::transport
