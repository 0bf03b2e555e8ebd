// Session: one worker's connection to this server, and the threads that serve it. The worker may be
// a proxy, which speaks for several.
//
//  - A receiving thread reads commands, and carries out those of each track in their order. If one
//    takes long another thread reads on. A command whose track is busy is left to the thread that
//    carries out what is before it. Each busy track has one of these threads, and one more reads.
//    They stay until the session ends.
//  - On one track, one kind does not wait for a push that comes in: a pull of another model with a
//    smaller ticket, which needs nobody else.
//  - A pull may have to wait, and would delay the pushes behind it. So each track has a second
//    thread that answers its pulls, in their order. It answers a push_pull piece by piece while
//    later pieces of the push still come in.
//  - The receiving thread answers by itself if nothing waits and the answer is one message, because
//    a wake-up of the other thread costs as much as the answer. It does so, too, if a thread of the
//    worker waits for the answer: two threads of one connection hinder each other. In a proxy it
//    also receives that answer from the parent (Upstream::help).
//
// A command waits for earlier ones of its track alone, and for other workers: so for nothing that
// it would not wait for if all had one track.
//
// A worker never sees its own later pushes in an exact pull (staleness 0): these wait until the
// pull has been answered. So exact pulls can be sent from the weights in place.
//
// The session ends when the worker leaves, when its connection fails, or at an illegal command.
// Then the worker counts no longer in the clocks of any model. The workers of a proxy still do:
// they come by another way, see Server::end_tree().
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/communicator.h"
#include "ps/model.h"
#include "ps/wire.h"

namespace dmlcomm::ps {

// The server, to its sessions.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  virtual std::shared_ptr<Model> find_model(uint32_t model) = 0;
  virtual EventCount& events() = 0;
  // What a worker has heard of lost servers; returns what is known then.
  virtual Lives learn_lives(const Lives& told) = 0;
  // Not ok once this server was found lost: it answers no more.
  virtual Status fenced() = 0;
  // Not ok if the worker speaks to another life of this server.
  virtual Status expect_life(const Lives& told) = 0;
  // Whether this server has come back, and is not filled yet.
  virtual bool is_filling() const = 0;
  // The worker's clocks count no more, in any model; see Server::unsettled().
  virtual void drop_worker(uint32_t worker) = 0;
  // See Model::forget_pushes(), of all models.
  virtual void forget_pushes(uint32_t worker, uint64_t unfinished) = 0;
  // Whether the worker has a connection of its own.
  virtual bool has_session(uint32_t worker) = 0;
  // Of a proxy, whose models are made as those below ask for them; else null.
  virtual Upstream* upstream() = 0;
  // The worker of a proxy takes part, also if it was lost before.
  virtual void take_in(uint32_t worker) = 0;
  // The worker left or was lost (`reason`); called without locks of the session.
  virtual void on_session_ended(uint32_t worker, const Status& reason) = 0;
};

struct SessionCounters {
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<uint64_t> pushes{0};
  std::atomic<uint64_t> pulls{0};
};

class Session {
 public:
  Session(uint32_t worker, std::shared_ptr<engine::Communicator> communicator, SessionHost& host);
  ~Session();

  // Begins to serve. Fails if the process may have no further thread: the session has ended then.
  Status start();

  // Ends the session and its threads: nothing comes from it any more. Idempotent, as close() is.
  void stop();

  // As stop(), and closes the connection, which takes longer: see Retired.
  void close();

  // As if the connection had failed, or without a reason the worker had left; stop() waits for the
  // end.
  void give_up(const std::string& reason);

  // Ends the session, but its worker still counts in the clocks: it comes back, or the whole server
  // ends.
  void end_but_count(const std::string& reason);

  // Of a proxy: by model, the workers below it, with the clocks that they were attached at. After
  // stop().
  using Attached = std::map<uint32_t, std::map<uint32_t, uint64_t>>;
  const Attached& attached() const { return attached_; }

  uint32_t worker() const { return worker_; }
  const SessionCounters& counters() const { return counters_; }
  bool ended() const { return ended_.load(); }
  Status reason() const;
  std::vector<transport::RailCounters> rails() { return communicator_->rails(); }
  // Of the connection; the worker's side has the same.
  uint64_t number() const { return communicator_->number(); }
  size_t num_queued() const;
  // How long ago the worker has shown life last.
  double silent_s() const { return communicator_->silent_s(kWorkerRank); }
  // Whether a command has come: the other side sends here what it begins from then on.
  bool has_begun() const { return begun_.load(); }

 private:
  // A piece on its way here.
  struct Incoming {
    std::shared_ptr<Model> model;  // outlives its buffer
    BufferPool::Buffer buffer;
    engine::OperationPtr op;
  };
  // A proxy's push on its way here.
  struct Merged {
    Command command;
    Incoming piece;
  };
  // An answer that the answering thread has to send.
  struct Reply {
    Command command;
    std::shared_ptr<Model> model;
    std::vector<int64_t> rows;
  };
  struct Track {
    bool is_busy() const { return !commands.empty(); }

    // Guarded by mutex_.
    std::deque<Command> commands;  // the first is being carried out
    std::deque<Reply> replies;
    bool answering = false;
    std::condition_variable has_replies;

    // Of the thread that carries out its commands. When the session fails, receives under way keep
    // their memory to its end.
    std::deque<Incoming> incoming;
    std::vector<std::byte> incoming_rows;

    // The answering thread's; one thread answers at a time.
    std::vector<std::byte> outgoing;
    std::deque<engine::OperationPtr> sending;  // answers to a proxy

    std::thread answerer;
  };

  // --- receiving threads ---
  Status start_receiver();
  void receive_loop();
  Status serve_next();
  bool begin_reading();
  std::chrono::milliseconds share_reading();
  Status give(const Command& command);
  Status carry_out_all(Track& track, Command command);
  static bool may_pass(const Command& pull, const std::deque<Command>& commands);
  bool is_elsewhere(const Command& command) const;
  Status carry_out(const Command& command);
  Status note_lives(const Command& command);
  Status carry_out_for(const Command& command);
  Status begin_merged(const Command& command, std::shared_ptr<Model> model);
  Status finish_merged(const engine::OperationPtr& next_command);
  void end_clocks(const Command& command, Model& model);
  Status pass_values_up(const Command& command, const std::shared_ptr<Model>& model);
  Result<std::shared_ptr<Model>> model_for(const Command& command);
  void advance_clock(Model& model, uint64_t clock);
  Status take_pieces(const Command& command, const std::shared_ptr<Model>& model);
  Status take_piece(const Command& command, Model& model, size_t piece, BufferPool::Buffer& wire);
  Status wait_for(engine::Operation& op);
  Status take_push(const Command& command, const std::shared_ptr<Model>& model);
  Status take_rows(const Command& command, const std::shared_ptr<Model>& model);
  Status receive(const Command& command, void* data, size_t bytes);
  // Waits until this session has answered its exact pulls of the model.
  Status wait_for_exact_pulls(uint32_t model);
  template <typename Try>
  Status wait_until(Try attempt, bool helps = false);

  // --- answers ---
  enum class Mode {
    try_once,         // by the receiving thread, if it is one message and need not wait
    alone,            // by the receiving thread, while it receives nothing
    beside_receiver,  // by the answering thread
  };
  void reply(Reply reply, bool nothing_follows = false);
  void answer_loop(Track& track);
  template <typename Try>
  Result<bool> try_in(Mode mode, Try attempt);
  Status answer(const Reply& reply, bool* ready, Mode mode);
  Status send_pieces(const Reply& reply, bool* ready, Mode mode);
  Status send_merged(const Reply& reply, bool* ready, Mode mode);
  Status wait_for_sent(Track& track, size_t left);
  static std::byte* scratch_of(Track& track, size_t bytes);
  Status send_rows(const Reply& reply, bool* ready, Mode mode);
  Status send_answer(const Reply& reply, bool* ready, Mode mode);
  Status send(const Command& command, const void* data, size_t bytes, uint32_t tag);
  void finish(const Reply& reply);

  void join();

  // Ends the session, and tells the worker why.
  void fail(const Status& reason);
  void end(const Status& reason);

  const uint32_t worker_;
  const std::shared_ptr<engine::Communicator> communicator_;
  SessionHost& host_;
  SessionCounters counters_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> counts_on_{false};
  std::atomic<bool> begun_{false};

  // Of the thread that reads.
  CommandBytes command_;
  engine::OperationPtr next_;  // the next command, if it has been asked for
  int64_t read_ns_ = 0;        // when the last one came

  // Of a proxy's only receiving thread. As Track::incoming.
  std::deque<Merged> merged_;
  std::map<std::pair<uint32_t, uint64_t>, size_t> pieces_taken_;  // by model and clock
  Attached attached_;

  mutable std::mutex mutex_;
  std::condition_variable may_read_;
  std::condition_variable has_room_;
  // Guarded by mutex_. None is added to the threads once the session has ended.
  std::deque<std::thread> receivers_;
  size_t num_receiving_ = 0;             // of them, those that have not ended
  size_t num_spare_ = 0;                 // of them, those that wait to read, or begin to
  std::thread::id reader_;               // none: the next that is free reads on
  bool keeps_reading_ = false;           // the reader alone may read the next command
  bool is_awaited_ = false;              // what was read last: a thread of the worker waits for it
  std::multiset<uint32_t> exact_pulls_;  // models
  Status reason_;

  std::mutex clocks_mutex_;  // held to end a clock; locked before those of pieces

  std::array<Track, kNumTracks> tracks_;
  std::once_flag joined_;
};

}  // namespace dmlcomm::ps
