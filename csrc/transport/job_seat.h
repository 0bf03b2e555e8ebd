// JobSeat: where a process and the arbiter of its host (csrc/proxy) meet, so that several jobs
// share NICs by their priorities. A page of memory, which the process makes and the arbiter maps.
//
// The process counts the bytes that it sends over each NIC, and those that it reads. For each of
// the two directions the arbiter says whether the NIC has other jobs, and whether this one goes
// behind another: then large messages need credit, in bytes, which the arbiter grants. No call
// waits for it, and what it says counts for kBeatNs only: without an arbiter, or with one that is
// dead or stopped, nothing is held back.
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

enum class Direction : uint8_t { out, in };

// The words of one direction of a NIC.
struct SeatFlow {
  enum Sharing : uint32_t {
    alone,   // no other job is there
    shared,  // others are, and this one is not held back
    behind,  // another one goes first, and this one needs credit
  };

  // By the process.
  std::atomic<uint64_t> bytes;            // that it has sent, or read
  std::atomic<uint64_t> under_way_bytes;  // of large frames that are not confirmed
  std::atomic<uint64_t> taken_bytes;      // of the credit
  std::atomic<int64_t> wanted_ns;         // when it waited for credit last

  // By the arbiter.
  std::atomic<uint32_t> sharing;
  std::atomic<uint64_t> granted_bytes;  // as `taken_bytes` counts them
};

// The words of one NIC, all by the process but those of its flows. The name is written before it is
// in use.
struct SeatNic {
  enum Use : uint32_t { free, named_soon, used };

  std::atomic<uint32_t> use;
  std::array<char, 16> name;
  std::atomic<uint64_t> bits_per_second;  // as measured, each way; 0: not known
  SeatFlow out;
  SeatFlow in;

  SeatFlow& flow(Direction direction) { return direction == Direction::out ? out : in; }
};

struct SeatPage {
  static constexpr size_t kMaxNics = 16;
  static constexpr size_t kMaxReason = 512;

  // By the arbiter: when it was there last, and that the job has lost its place. The reason is
  // written before `is_dropped`.
  std::atomic<int64_t> beat_ns;
  std::atomic<bool> is_dropped;
  std::array<char, kMaxReason> reason;
  // By the arbiter: the DSCP of the job's class, plus 1; 0: its packets show no class.
  std::atomic<uint32_t> class_mark;

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

// One direction of a NIC of a seat, as those who send or read see it; without a seat nothing is
// held back. Cheap: a word is read while no other job goes first.
class NicCredit {
 public:
  NicCredit() = default;
  NicCredit(std::shared_ptr<JobSeat> seat, std::string_view interface,
            Direction direction = Direction::out)
      : seat_(std::move(seat)),
        nic_(seat_ == nullptr ? nullptr : seat_->nic(interface)),
        flow_(nic_ == nullptr ? nullptr : &nic_->flow(direction)) {}

  // Other jobs are on this NIC.
  bool is_shared() const { return flow_ != nullptr && sharing() != SeatFlow::alone; }
  // Large messages may need credit.
  bool is_limited() const { return flow_ != nullptr && sharing() == SeatFlow::behind; }
  // Whether a large message may go on; if not, the arbiter knows that it wants to. It may take more
  // than there is, and wait longer then.
  bool has_credit(int64_t now_ns) {
    if (!is_limited() || !seat_->has_arbiter(now_ns)) return true;
    const uint64_t granted = flow_->granted_bytes.load(std::memory_order_relaxed);
    if (flow_->taken_bytes.load(std::memory_order_relaxed) < granted) return true;
    flow_->wanted_ns.store(now_ns, std::memory_order_relaxed);
    return false;
  }
  void take(size_t bytes) {
    if (is_limited()) flow_->taken_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  // So many bytes have gone this way.
  void count(size_t bytes) {
    if (flow_ != nullptr) flow_->bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  // A large frame of so many bytes begins; it has been confirmed, or is given up.
  void begin(uint64_t bytes) {
    if (flow_ != nullptr) flow_->under_way_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  void end(uint64_t bytes) {
    if (flow_ != nullptr) flow_->under_way_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  }
  void measured(double bits_per_second) {
    if (nic_ == nullptr) return;
    nic_->bits_per_second.store(static_cast<uint64_t>(bits_per_second), std::memory_order_relaxed);
  }

 private:
  uint32_t sharing() const { return flow_->sharing.load(std::memory_order_relaxed); }

  std::shared_ptr<JobSeat> seat_;
  SeatNic* nic_ = nullptr;
  SeatFlow* flow_ = nullptr;
};

}  // namespace dmlcomm::transport
