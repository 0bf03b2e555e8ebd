// ClientOperation: a push, a pull or both of one model, on all servers.
//
// It consists of tasks, one per shard (and per batch of rows): the command, the elements to send
// and the memory for those to receive. A task is attempted on the servers that hold the shard:
// pushes on all of them, the pull on the first that lives.
//  - A push is acknowledged when every live server of the shard has it. If only a proxy has it, the
//    client keeps a copy.
//  - If the server of a pull dies, another that holds the shard is asked.
//  - If a server of a push dies, the operation is stuck, too, until it is known whether that server
//    is lost for all workers: one that lives must not miss a push that its replica has.
//  - The operation is stuck when no server with a shard is left: wait() fails, and lost() names the
//    servers. The client repeats what it lacks over the next connection, in the order in which its
//    operations were started: so a push never comes behind the end of its clock. Servers recognise
//    pushes that they have already. First values alone are repeated by who waits, see retry().
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ps/server_link.h"
#include "ps/wire.h"

namespace dmlcomm::ps {

// The client, to its operations.
class LinkDirectory {
 public:
  virtual ~LinkDirectory() = default;
  // Null while the server is lost.
  virtual std::shared_ptr<ServerLink> link(uint32_t server) = 0;
  virtual void lose(uint32_t server, const std::shared_ptr<ServerLink>& link,
                    const Status& reason) = 0;
  // Keeps a push that a proxy has acknowledged; false if the connection is lost already.
  virtual bool keep(uint32_t server, const std::shared_ptr<ServerLink>& link,
                    const Command& command, const std::vector<Span>& up) = 0;
  // All pieces of the server contain all clocks of the model before `version`.
  virtual void learn_version(uint32_t server, uint32_t model, uint64_t version) = 0;
  virtual Lives lives() = 0;                 // of those lost for all workers
  virtual uint64_t suspected_servers() = 0;  // lost to this one; their replicas live
  virtual void learn(const Lives& told) = 0;
  // An operation needs no repetition any more; without its lock.
  virtual void on_finished() = 0;
};

struct Task {
  Command command;
  std::vector<uint32_t> servers;  // that hold the shard, first the one to pull from
  std::vector<bool> ends_clock;   // by server: Command::ends_clock
  std::vector<Span> up;
  std::vector<Span> down;
  bool pushes = false;
  bool pulls = false;

  // Whether the client repeats it with its other operations: a server that has no replica comes
  // back, and first values may be another worker's by then.
  bool repeats_in_order() const { return servers.size() == 1 && command.kind != CommandKind::set; }
  // Whether a server that comes back gets it, though another has the push, or will have it: no copy
  // may contain it yet.
  bool repeats_push(uint32_t server) const {
    return servers.size() > 1 && pushes && command.kind != CommandKind::set &&
           std::find(servers.begin(), servers.end(), server) != servers.end();
  }
};

struct OperationOptions {
  uint64_t order = 0;  // of starts in a client
  uint64_t shift = 0;  // clocks that the servers have gone on without the worker, by its start
  bool inline_wait = false;  // see engine::OpOptions
};

class ClientOperation : public std::enable_shared_from_this<ClientOperation> {
 public:
  // `finish` copies received elements to the tensors; the waiting thread calls it, once. `memory`
  // lives as long as the operation.
  ClientOperation(LinkDirectory& links, std::vector<Task> tasks, std::function<void()> finish,
                  std::shared_ptr<void> memory, const OperationOptions& options);

  void start();
  // Ok when done. `timeout`: it goes on. `peer_lost`: stuck, see lost(); any other error is final.
  Status wait(Deadline deadline);
  bool done();
  bool finished() const { return finished_.load(); }
  // Finished, nothing is under way, and no server lacks its push but those that are lost for all.
  bool is_over();
  // The clock of what it lacks of this server, where that is repeated in order.
  std::optional<uint64_t> clock_awaited(uint32_t server);
  // Moves what it lacks of the server to later clocks. `shift` counts as that of OperationOptions,
  // with all that came since.
  void shift(uint32_t server, uint64_t shift);
  // Over a new connection to the server, when the last one has been failed; false: it has all.
  // `timeout`: the last one has not let go of the memory, and nothing is repeated.
  Result<bool> repeat(uint32_t server, Deadline deadline);
  // After peer_lost: first values once the servers have been connected again, and what a replica
  // has to be asked for.
  void retry();
  // Nobody waits for it any more: it is not repeated, but for a push that may reach one copy alone.
  // Who calls it keeps the operation until the client is closed.
  void abandon();
  // Servers without which, or without word of which, the operation cannot end.
  std::vector<uint32_t> lost();

  uint32_t model() const { return tasks_.front().task.command.model; }
  bool empty() const { return tasks_.empty(); }
  bool pushes() const { return tasks_.front().task.pushes; }
  uint64_t first_sequence() const { return tasks_.front().task.command.sequence; }
  uint64_t order() const { return options_.order; }
  bool closes() const { return tasks_.front().task.command.closes(); }
  bool repeats_whole() const { return tasks_.front().task.repeats_in_order(); }

 private:
  struct Attempt {
    uint32_t server = 0;
    std::shared_ptr<ServerLink> link;
    bool pushes = false;
    bool pulls = false;
    bool is_answered = false;
    Command head;
    CommandBytes command;
    AnswerBytes answer;
    // Of each stream that it uses, the number of its last message there.
    std::vector<std::pair<Feeder*, uint64_t>> last;
    // Guarded by mutex_.
    size_t num_missing = 0;  // messages
    Status status;
    bool is_done() const { return num_missing == 0; }
  };
  struct Progress {
    Task task;
    std::deque<std::shared_ptr<Attempt>> attempts;  // pending, or ended and not settled
    bool pushed = false;                            // by one server at least
    bool pulled = false;
    uint64_t shift = 0;                // that its clock contains
    Status failure;                    // of the last server
    std::map<uint32_t, uint8_t> owed;  // with replicas: servers without the push, and their lives
    bool complete() const { return (pushed || !task.pushes) && (pulled || !task.pulls); }
    bool lacks(uint32_t server) const {
      if (complete()) return false;
      if (!task.repeats_in_order()) return !pushed && task.repeats_push(server);
      return task.servers.front() == server;
    }
  };

  void begin(Progress& progress);
  void attempt(Progress& progress, uint32_t server, bool pushes, bool pulls);
  void add_message(const std::shared_ptr<Attempt>& attempt, Feeder& feeder, Span memory);
  Status wait_for_all(Deadline deadline);
  Status wait_for_task(Progress& progress, Deadline deadline);
  std::deque<std::shared_ptr<Attempt>> attempts_of(const Progress& progress);
  bool has_pending(const Progress& progress);
  bool has_pending();  // any task
  bool is_owed(const Progress& progress);
  bool is_repeated(const Progress& progress, uint32_t server);
  Status settle(Progress& progress);
  bool awaits_verdict(const Progress& progress);
  void settle_attempt(Progress& progress, Attempt& attempt);
  Status take_answer(Attempt& attempt, uint64_t* version);
  bool wait_for(Attempt& attempt, Deadline deadline);
  static engine::OperationPtr oldest_of(const Attempt& attempt);

  LinkDirectory& links_;
  const std::function<void()> finish_;
  const std::shared_ptr<void> memory_;
  const OperationOptions options_;

  std::atomic<bool> finished_{false};

  // Locked in this order.
  std::mutex waiting_;           // one thread at a time in wait()
  std::mutex tasks_mutex_;       // what is attempted; not held while anybody waits for a server
  std::vector<Progress> tasks_;  // Progress beside `task` is guarded by tasks_mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace dmlcomm::ps
