// Client: a worker's side of the parameter server. It holds the connections to all servers, and the
// models and their clocks, and starts operations on them.
//
// One thread at a time starts operations; they reach every server in that order. Any thread may
// wait for them, in any order. An operation touches its memory no more once it is done, or the
// client closed.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/inspector.h"
#include "memory/huge_pages.h"
#include "ps/client_memory.h"
#include "ps/client_operation.h"
#include "ps/kept_pushes.h"
#include "ps/pair.h"
#include "ps/retired.h"

namespace dmlcomm::ps {

struct ClientOptions {
  uint32_t worker = 0;
  uint32_t num_servers = 1;
  uint64_t first_sequence = 1;  // larger than any that this worker has used before
  Config config;
};

// Options of all operations.
struct CallOptions {
  double learning_rate = std::numeric_limits<double>::quiet_NaN();  // NaN: the rule's
  bool inline_wait = false;  // the caller waits for the operation at once
  uint8_t ticket = kDefaultTicket;
};

class Client final : public engine::Inspectable, private LinkDirectory {
 public:
  using OperationPtr = std::shared_ptr<ClientOperation>;

  explicit Client(ClientOptions options);
  ~Client() override;

  // Connects to a server, or to the proxy that stands in for it; again after it was lost. What
  // it may lack is repeated in the order of its start: unfinished operations, and what a proxy has
  // acknowledged and no version contains yet. With replicas: pushes that the other copy may lack.
  // `life`: of the server.
  Status connect(const PairOptions& options, std::shared_ptr<transport::Rendezvous> rendezvous,
                 uint8_t life = 0);

  // The worker takes part in the model from `clock` on.
  Status add_model(uint32_t model, const ModelSpec& spec, uint64_t clock);
  Result<uint64_t> clock_of(uint32_t model);
  // Before connect(): the server has gone on without this worker, and has it begin at `clock` of
  // the model. The worker's clock, and what is to be repeated, move there, and keep their
  // distances.
  void skip_to(uint32_t model, uint32_t server, uint64_t clock);
  // Ends the connection to a server that has forgotten this worker.
  void disconnect(uint32_t server, const std::string& reason);
  std::vector<uint32_t> lost();  // servers without a working connection

  // --- with replicas; see ps/lives.h ---
  // The other servers say that this life of the server has ended for all workers.
  void confirm_lost(uint32_t server, uint8_t life);
  std::vector<uint32_t> lost_for_all();
  // What a server has told. One that is lost is used no more.
  void learn(const Lives& told) override;
  // The newest that this worker has heard.
  Lives heard() const { return heard_.all(); }
  // Those to which commands go: of a server that has come back, not before connect().
  Lives lives() override { return lives_.all(); }
  // Servers that have come back, and wait for connect().
  std::vector<uint32_t> returned();
  // Nothing has to be repeated, whatever connection is lost.
  bool idle();
  // Waits until nothing of closed clocks would be lost with a proxy; false after `timeout`.
  bool flush(std::chrono::milliseconds timeout);
  // See ClientOperation::retry().
  void retry(const OperationPtr& operation);

  // First values, from all tensors and tables.
  Result<OperationPtr> set(uint32_t model, Buffers up) {
    return start_pieces(CommandKind::set, model, std::move(up), {}, kNoBound, CallOptions());
  }
  Result<OperationPtr> push(uint32_t model, Buffers up, const CallOptions& options) {
    return start_pieces(CommandKind::push, model, std::move(up), {}, kNoBound, options);
  }
  Result<OperationPtr> pull(uint32_t model, Buffers down, int64_t staleness,
                            const CallOptions& options) {
    return start_pieces(CommandKind::pull, model, {}, std::move(down), staleness, options);
  }
  // A push, the end of this worker's clock of the model, and a pull.
  Result<OperationPtr> push_pull(uint32_t model, Buffers up, Buffers down, int64_t staleness,
                                 const CallOptions& options) {
    return start_pieces(CommandKind::push_pull, model, std::move(up), std::move(down), staleness,
                        options);
  }
  // Ends this worker's clock of all models.
  void clock();

  // Rows of a sparse table; `numbers` and `values` hold num_rows of them.
  struct RowMemory {
    uint32_t space = 0;
    const int64_t* numbers = nullptr;
    uint64_t num_rows = 0;
    std::byte* values = nullptr;
  };
  Result<OperationPtr> push_rows(uint32_t model, const RowMemory& rows,
                                 const CallOptions& options) {
    return start_rows(CommandKind::push_rows, model, rows, kNoBound, options);
  }
  Result<OperationPtr> pull_rows(uint32_t model, const RowMemory& rows, int64_t staleness,
                                 const CallOptions& options) {
    return start_rows(CommandKind::pull_rows, model, rows, staleness, options);
  }

  std::vector<std::vector<transport::RailCounters>> rails();  // by server; empty: lost
  engine::Inspection inspect() override;
  // Leaves all servers: they do not wait for this worker any more.
  void close();

 private:
  struct ModelState {
    ModelSpec spec;
    std::vector<std::vector<Piece>> pieces;  // by shard
    uint64_t clock = 0;
    uint64_t shift = 0;  // by skip_to(), so far
  };
  // What a new connection carries first: a kept push, or an operation.
  struct Repetition {
    uint64_t order;
    uint32_t model;
    uint64_t clock;
    KeptPushes::Push push;
    OperationPtr operation;
  };
  // The worker's clock of the model became `clock`.
  struct Closing {
    uint64_t order;
    uint32_t model;
    uint64_t clock;
  };

  std::shared_ptr<ServerLink> link(uint32_t server) override;
  void lose(uint32_t server, const std::shared_ptr<ServerLink>& link,
            const Status& reason) override;
  bool keep(uint32_t server, const std::shared_ptr<ServerLink>& link, const Command& command,
            const std::vector<Span>& up) override;
  void learn_version(uint32_t server, uint32_t model, uint64_t version) override {
    kept_.forget_before(server, model, version);
  }
  uint64_t suspected_servers() override { return suspected_servers_.load(); }
  void drop(uint32_t server);

  Result<ModelState*> find(uint32_t model);
  void consider_huge_pages(const ModelSpec& spec, const Buffers& up, const Buffers& down);
  Result<OperationPtr> start_pieces(CommandKind kind, uint32_t model, Buffers up, Buffers down,
                                    int64_t staleness, const CallOptions& options);
  Result<OperationPtr> start_rows(CommandKind kind, uint32_t model, const RowMemory& rows,
                                  int64_t staleness, const CallOptions& options);
  OperationPtr start(std::vector<Task> tasks, std::function<void()> finish,
                     std::shared_ptr<void> memory, const OperationOptions& options);
  void forget_finished();
  uint64_t take_order();  // of a call
  // Returns its track.
  uint8_t send_command(
      const std::shared_ptr<ServerLink>& link, const Command& command, bool answered,
      std::function<void(const AnswerBytes&, const Status&)> done = [](const AnswerBytes&,
                                                                       const Status&) {});
  std::vector<Repetition> repetitions(uint32_t server);
  Status catch_up(uint32_t server, const std::shared_ptr<ServerLink>& link, Deadline deadline);
  void repeat(uint32_t server, const std::shared_ptr<ServerLink>& link,
              const KeptPushes::Push& push);
  void ask_for_version(uint32_t server);
  void send_to_all(const Command& command, bool answered);
  void tell_news();
  void on_finished() override;
  Command clock_command(CommandKind kind, uint32_t model, uint64_t clock) const;
  uint64_t oldest_sequence() const;
  bool can_wait_inline(const CallOptions& options) const;

  const ClientOptions options_;
  LifeTable lives_;
  LifeTable heard_;
  std::atomic<uint64_t> suspected_servers_{0};  // others may still reach them
  std::atomic<bool> has_news_{false};           // another server does not know of a lost one yet

  std::mutex start_mutex_;  // held to start operations; locked before the others
  // Guarded by start_mutex_.
  uint64_t next_sequence_;                                  // of pushes, and the order of all calls
  std::map<uint32_t, ModelState> models_;                   // changed with models_mutex_, too
  std::vector<std::weak_ptr<ClientOperation>> unfinished_;  // in the order of their start
  std::deque<Closing> closings_;  // since the first of what may have to be repeated
  HugePages huge_pages_;
  bool has_gone_by_proxy_ = false;
  bool uses_huge_pages_ = false;  // a server is reached through shared memory

  std::mutex models_mutex_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<ServerLink>> links_;  // guarded by mutex_

  KeptPushes kept_;

  Retired retired_;  // connections that others have replaced
};

}  // namespace dmlcomm::ps
