// Staging: operations on memory of a device, by way of pinned memory of the host.
//
// Collectives that can be cut pass in parts through a ring of slots, which is made once, over two
// queues: while one part is on the network the next ones come from the device, and results of the
// ones before go back. Messages, and collectives whose sizes only some ranks know, cannot be cut.
// Each of them has a queue and a slot of its size.
//
// A call gives the device all pieces of the operation, and the stage thread the host's part of it
// (stage_thread.h), and returns. The results are there for whatever the device does after `end()`
// of the operation.
//
// Threads: any for run_alone(); one at a time for run().
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "device/slot.h"
#include "device/stage_thread.h"

namespace dmlcomm::device {

// What passes through a slot at a time.
struct Part {
  size_t bytes = 0;  // of the slot that it uses
  std::vector<Copy> out;
  std::vector<Copy> in;
  // Starts the host's operation on the memory of the slot.
  std::function<engine::OperationPtr(std::byte* memory)> start;
};

class Staging {
 public:
  static constexpr size_t kNumSlots = 4;

  // `device` outlives it. Slots of the ring have `slot_bytes`.
  static Result<std::unique_ptr<Staging>> create(Device& device, size_t slot_bytes);
  ~Staging();

  size_t slot_bytes() const { return slot_bytes_; }

  // A collective, of at least one part, each of at most slot_bytes(). Its order among collectives
  // is that of the calls.
  StagedOperationPtr run(std::vector<Part> parts, uint64_t sequence);

  // As a whole, through a slot of its own.
  StagedOperationPtr run_alone(const Line& line, Part part, uint64_t sequence);

  // An operation that has ended.
  static StagedOperationPtr ended(const Status& status, uint64_t sequence = 0);

  // Waits until all operations have ended, at most for `limit`; whether they have.
  bool drain(std::chrono::milliseconds limit) { return stages_.drain(limit); }

  // Gives up what has not ended, with `reason`: no operation of the host may be running. With
  // `is_written_to` somebody may yet write to slots: they are never used again.
  void stop(const Status& reason, bool is_written_to);

 private:
  class Lease;

  Staging(Device& device, size_t slot_bytes) : device_(device), slot_bytes_(slot_bytes) {}
  Status submit(const std::shared_ptr<Lease>& lease, const Line& line, std::vector<Part>& parts,
                const StagedOperationPtr& operation);

  Device& device_;
  const size_t slot_bytes_;
  std::shared_ptr<Lease> ring_;  // null before the first collective
  Status broken_;                // of the device, which has not taken all pieces for the ring
  StageThread stages_;
};

}  // namespace dmlcomm::device
