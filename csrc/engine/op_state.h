// OpState: one operation between its call and its end. The caller sees it as an Operation.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/ticket.h"
#include "engine/buffer_view.h"
#include "engine/completion.h"
#include "schedule/op_shape.h"
#include "transport/frame.h"

namespace dmlcomm::engine {

// The arguments of an operation; constant once it has been submitted.
struct OpRequest {
  schedule::OpShape shape;
  DType dtype = DType::u8;
  ReduceOp reduce_op = ReduceOp::sum;
  BufferView input;
  BufferView output;
  std::optional<DType> element;  // data movement: the type of the bytes, if the caller says so
  uint8_t ticket = kDefaultTicket;
  // Point-to-point only.
  int peer = 0;
  uint32_t tag = 0;

  bool is_point_to_point() const {
    return shape.kind == schedule::OpKind::send || shape.kind == schedule::OpKind::recv;
  }
  bool reduces() const { return schedule::reduces(shape.kind); }
  // The header of every message carries this, so that ranks notice when they disagree. Counts that
  // a rank cannot know of the others (gather, scatter, all_to_all) are left out.
  transport::OpInfo info() const;
};

// "all_reduce(sum, f32, 1024 elements, ring)".
std::string describe(const transport::OpInfo& info);

// The error of two ranks that disagree about an operation; `us` and `them` name the ranks.
Status disagreement(uint64_t sequence, const std::string& us, const transport::OpInfo& ours,
                    const std::string& them, const transport::OpInfo& theirs);

class Driver;
class OpState;

// The operation's info, with the number of the algorithm that was chosen for it.
transport::OpInfo info_of(const OpState& op, uint8_t algorithm);

class OpState final : public Completion {
 public:
  // `driver` lives at least until the operation is done.
  // `age`: grows from one operation to the next, of any kind.
  OpState(Driver* driver, OpRequest request, uint64_t sequence, uint64_t age, Deadline deadline);

  Status wait(std::chrono::milliseconds timeout) override;
  int source_rank() const override { return source_; }
  uint64_t sequence() const override { return sequence_; }

  const OpRequest& request() const { return request_; }
  const transport::OpInfo& info() const { return info_; }
  uint64_t age() const { return age_; }
  const Deadline& deadline() const { return deadline_; }
  // "all_reduce #17 (sum, f32, 1024 elements)".
  std::string text() const;

  // For the engine; before complete(), with the progress lock.
  void set_source(int rank) { source_ = rank; }
  // The request's, or that of a later operation which waits for the end of this one.
  uint8_t ticket() const { return ticket_; }
  void hurry(uint8_t ticket) { ticket_ = std::min(ticket_, ticket); }
  // How long it has waited since its call, if its ticket is urgent; else -1.
  int64_t waited_ns() const { return called_ns_ == kNever ? -1 : now_ns() - called_ns_; }
  // When its end was first waited for, which may be now. Any thread.
  int64_t waited_since_ns(int64_t now_ns) {
    int64_t before = kNever;
    return waited_since_ns_.compare_exchange_strong(before, now_ns) ? now_ns : before;
  }

 private:
  static constexpr int64_t kNever = -1;

  Driver* const driver_;
  const OpRequest request_;
  const transport::OpInfo info_;
  const uint64_t sequence_;
  const uint64_t age_;
  const Deadline deadline_;
  const int64_t called_ns_;  // of an urgent one
  int source_ = -1;
  uint8_t ticket_;
  std::atomic<int64_t> waited_since_ns_{kNever};
};

// Makes operations progress.
class Driver {
 public:
  virtual ~Driver() = default;
  // Helps until `op` is done or `deadline` has passed; true if done.
  virtual bool drive_until(OpState& op, Deadline deadline) = 0;
};

}  // namespace dmlcomm::engine
