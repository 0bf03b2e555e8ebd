// ScheduleBuilder: writes one rank's schedule as if its steps ran one after the other, and finds
// the dependencies that keep that meaning when they run concurrently.
//
// A step depends on every earlier step that writes what it reads, or that reads or writes its
// target. Steps stand in stream 0 on any rail until on() says otherwise. Steps of zero length are
// left out: the lengths of a message agree on both sides, so both sides leave it out. Signals are
// the messages that have no length on purpose.
//
// Generators use it on their own stack; the verifier does not know it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/op_shape.h"
#include "schedule/schedule.h"

namespace dmlcomm::schedule {

class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const OpShape& shape);

  // The steps that follow stand in `stream`, and their messages go through `rail`.
  void on(uint16_t stream, uint8_t rail);

  void send(const Range& range, uint32_t peer);
  void recv(const Range& range, uint32_t peer);

  // range = op(source, received). `finalizes`: no other rank's contribution is missing any more.
  // Consecutive calls with one range form a run; from the second on, `source` must be `range`.
  void recv_reduce(const Range& range, const Range& source, uint32_t peer, bool finalizes);

  // The same with the operands exchanged: range = op(received, source). Not part of a run.
  void recv_reduce_received_first(const Range& range, const Range& source, uint32_t peer,
                                  bool finalizes);

  // A run: recv_reduce onto `range` from each of `peers` in this order.
  // `finalizes` is for the last.
  void recv_reduce_run(const Range& range, const Range& source, const std::vector<uint32_t>& peers,
                       bool finalizes = true);

  void copy(const Range& range, const Range& source);

  // Zero-length messages. The signal leaves when every `await_signal` before it is complete.
  void signal(uint32_t peer);
  void await_signal(uint32_t peer);

  // Reserves `elements` of scratch and returns where they begin.
  uint64_t use_scratch(uint64_t elements) {
    return std::exchange(schedule_.scratch_elements, schedule_.scratch_elements + elements);
  }

  Schedule build() { return std::move(schedule_); }

 private:
  // A use of memory that a later step may have to wait for.
  struct Access {
    Range range;
    uint32_t step;
    bool is_write;
  };

  void add(Step step);
  void append(Step step);
  void note_read(const Range& range, std::vector<uint32_t>* deps);
  void note_write(const Range& range, std::vector<uint32_t>* deps);
  void drop_implied(std::vector<uint32_t>* deps) const;
  bool continues_run(const Step& step) const;
  void extend_run(Step step);
  Range placed(Range range) const;
  uint32_t next_id() const { return static_cast<uint32_t>(schedule_.steps.size()); }

  Schedule schedule_;
  uint32_t rank_;
  uint16_t stream_ = 0;
  uint8_t rail_ = kAnyRail;
  bool output_may_be_input_;  // the same memory, element by element
  std::vector<Access> live_;  // not yet covered by a later write
  std::vector<uint32_t> awaited_signals_;
};

}  // namespace dmlcomm::schedule
