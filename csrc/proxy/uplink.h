// Uplink: a proxy's connection to its parent in the tree of one server: another proxy, or the
// server itself. To the parent it is one worker that speaks for all workers below.
//
// Calls before connect() are carried out when it has connected. Windows go up in the order of the
// calls, several at a time; each is one command and one message of elements. The answers come in
// the same order. One thread at a time receives them, and hands them to the models: a thread of the
// uplink, or one that waits for an answer anyway (help), as a thread that has to be woken costs
// more than a small answer.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/config.h"
#include "engine/communicator.h"
#include "ps/feeder.h"
#include "ps/model.h"
#include "ps/pair.h"
#include "ps/upstream.h"
#include "ps/wire.h"

namespace dmlcomm::proxy {

class Uplink final : public ps::Upstream {
 public:
  explicit Uplink(Config config);
  ~Uplink() override;

  // Once. `number` of this proxy, from ps::kFirstProxy on; `options.other` is the number of the
  // server at the root.
  Status connect(uint32_t number, const ps::PairOptions& options,
                 std::shared_ptr<transport::Rendezvous> rendezvous);

  void start() override { has_started_.store(true); }
  bool has_started() const override { return has_started_.load(); }
  void attach(uint32_t model, uint32_t worker, uint64_t clock, uint64_t incarnation) override;
  void drop(uint32_t worker) override;
  void forward(ps::Forwarded window) override;
  bool help(std::chrono::milliseconds time) override;
  void wake() override;
  std::shared_ptr<const std::atomic<bool>> set(std::shared_ptr<ps::Model> model,
                                               uint32_t shard) override;
  void fetch(std::shared_ptr<ps::Model> model, uint32_t shard, uint64_t clock) override;
  void on_failure(std::function<void(const Status&)> handler) override;
  Status error() const override;
  uint64_t number() const override;

  // Of elements, without what waits for the connection.
  uint64_t bytes_sent() const { return bytes_sent_.load(); }
  uint64_t bytes_received() const { return bytes_received_.load(); }
  // The parent takes the workers below for lost.
  void close() override;

 private:
  // Elements that come: `take` is called when they are there.
  struct Expected {
    Span memory;
    std::function<void()> take;
    engine::OperationPtr op;  // null: not begun
  };

  // With mutex_; at once, or when the connection is there.
  void when_connected(std::function<void()> send);
  void send_command(const ps::Command& command, bool is_awaited = false);
  void send_elements(Span memory, std::shared_ptr<void> owner, bool is_awaited = false);
  void expect(Span memory, std::function<void()> take);
  void expect_answer(std::function<void()> done);
  void begin_receives();
  void ask_for_values(const std::shared_ptr<ps::Model>& model, uint32_t shard, uint64_t clock);

  void receive_loop();
  Status receive_all();
  bool wait_for_work(std::unique_lock<std::mutex>& lock);
  Status receive_oldest(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds time);
  void note_failure(const Status& status);
  std::function<void(const Status&)> done_or_failed(std::function<void()> done);

  const Config config_;
  std::atomic<bool> has_started_{false};
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0};

  mutable std::mutex error_mutex_;  // locked last
  Status error_;                    // the first; guarded by error_mutex_

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::shared_ptr<engine::Communicator> communicator_;
  std::shared_ptr<ps::Feeder> commands_, up_, answers_;
  std::vector<std::function<void()>> waiting_;  // for the connection
  std::deque<Expected> expected_;
  bool is_receiving_ = false;  // a thread has the oldest of them
  std::function<void(const Status&)> handler_;
  bool closed_ = false;

  std::once_flag joined_;
  std::thread receiver_;
};

}  // namespace dmlcomm::proxy
