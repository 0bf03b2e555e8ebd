// Upstream: where the models of a proxy send the pushes that they have added up, and get the
// weights from. A server has none: it has rules.
//
// All methods may be called from any thread, and none but help() waits. Messages go up in the order
// of the calls.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "memory/buffer_pool.h"

namespace dmlcomm::ps {

class Model;

// The pushes of one clock to one piece, added up, as messages have them; and memory for the answer.
struct Forwarded {
  std::shared_ptr<Model> model;
  uint32_t shard = 0;
  size_t piece = 0;
  uint64_t clock = 0;
  uint32_t num_pushes = 0;
  double learning_rate = 0;  // NaN: the rule's
  std::shared_ptr<const std::byte[]> sum;
  BufferPool::Buffer answer;
  // The thread that forwards it soon calls help() or wake(): until then nothing of it is sent.
  bool is_awaited = false;
};

class Upstream {
 public:
  virtual ~Upstream() = default;

  // All workers below are known, so windows may go up.
  virtual void start() = 0;
  virtual bool has_started() const = 0;

  virtual void attach(uint32_t model, uint32_t worker, uint64_t clock, uint64_t incarnation) = 0;
  virtual void drop(uint32_t worker) = 0;
  // Model::take_answer() gets the answer.
  virtual void forward(Forwarded window) = 0;
  // Waits for what comes next, up to `time`, and hands it to its model. False, at once: nothing is
  // on its way, or another thread waits for it.
  virtual bool help(std::chrono::milliseconds time) = 0;
  // Another thread goes on with what is on its way, if there is something.
  virtual void wake() = 0;
  // First values. `true` once the parent has them; then the model's events are signalled.
  virtual std::shared_ptr<const std::atomic<bool>> set(std::shared_ptr<Model> model,
                                                       uint32_t shard) = 0;
  // Model::take_value() gets the pieces, and then take_values() is called.
  virtual void fetch(std::shared_ptr<Model> model, uint32_t shard, uint64_t clock) = 0;

  // The connection to the parent has failed: nothing comes from there any more. `handler` is called
  // once, on a thread without locks.
  virtual void on_failure(std::function<void(const Status&)> handler) = 0;
  virtual Status error() const = 0;
  // Of the connection; the parent's side has the same. 0 until it has connected.
  virtual uint64_t number() const = 0;
  // Ends the connection, and calls no model and no handler any more. Idempotent.
  virtual void close() = 0;
};

}  // namespace dmlcomm::ps
