// StageThread: the host's part of staged operations. One thread waits until the device has filled
// slots, starts the operations of the host on them, and ends staged operations when the device has
// taken the results.
//
// Stages of one line start in the order in which they were added; lines do not wait for each other.
// A stage whose operation fails leaves bytes of ones in its slot, which are NaN in every
// floating-point type, and lets the device go on: nothing on it waits for ever.
//
// The thread looks at words in memory, since a device wakes nobody. It polls briefly, then sleeps
// for a part of the time that it has waited for news. While there is nothing to wait for it sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "device/slot.h"
#include "engine/completion.h"

namespace dmlcomm::device {

// An operation on memory of a device, over one or several stages. It is done when the device has
// the results.
class StagedOperation final : public engine::Completion {
 public:
  // `end` is the queue that gets the last piece of its work; null: it has no work.
  StagedOperation(uint64_t sequence, Queue* end) : sequence_(sequence), end_(end) {}

  int source_rank() const override { return source_.load(); }
  uint64_t sequence() const override { return sequence_; }
  Queue* end() const { return end_; }

  // Of one stage. The first failure counts.
  void note(const Status& status, int source);
  Status noted() const;

 private:
  const uint64_t sequence_;
  Queue* const end_;
  std::atomic<int> source_{-1};
  mutable std::mutex noted_mutex_;
  Status noted_;  // guarded by noted_mutex_
};
using StagedOperationPtr = std::shared_ptr<StagedOperation>;

// Collectives are one line, sends to one rank with one tag, and receives with one tag.
struct Line {
  enum class Kind { collectives, sends, receives } kind = Kind::collectives;
  int peer = 0;
  uint32_t tag = 0;

  bool operator<(const Line& other) const {
    return std::tie(kind, peer, tag) < std::tie(other.kind, other.peer, other.tag);
  }
};

// One use of a slot.
struct SlotUse {
  Slot* slot = nullptr;
  uint32_t number = 0;
  size_t bytes = 0;  // of the slot that the operation uses
  StagedOperationPtr operation;
  std::shared_ptr<void> owner;  // of the slot; kept until the operation has ended
};

struct Stage {
  SlotUse use;
  // Starts the host's operation on the memory of the slot.
  std::function<engine::OperationPtr(std::byte* memory)> start;
  bool is_last = false;  // of its operation: the device takes the results of the others before
};

class StageThread {
 public:
  StageThread() = default;
  ~StageThread();
  StageThread(const StageThread&) = delete;
  StageThread& operator=(const StageThread&) = delete;

  Status start();

  // Any thread. The device has all pieces of the stage already.
  void add(const Line& line, Stage stage);

  // Waits until all operations have ended, at most for `limit`; whether they have.
  bool drain(std::chrono::milliseconds limit);

  // Ends what is left, with `reason`, and the thread. The device is let go on, but may still use
  // the slots of these. Later stages end at once. Idempotent.
  void stop(const Status& reason);

 private:
  void run();
  bool take_added();
  bool advance();
  size_t start_filled(bool* moved);
  size_t end_freed();
  void give_up(const Stage& stage) const;
  void give_up_all();

  std::thread thread_;
  std::once_flag joined_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::pair<Line, Stage>> added_;  // nobody adds once it is stopping
  // Stages that have not started, and those that are last until their operations have ended.
  size_t num_pending_ = 0;
  bool stopping_ = false;
  Status reason_;

  // Of the thread.
  std::map<Line, std::deque<Stage>> lines_;
  std::list<SlotUse> ending_;  // of last stages that have started
};

}  // namespace dmlcomm::device
