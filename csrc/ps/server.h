// Server: the models that one parameter server holds, and the sessions of its workers.
//
// It opens no port of its own: the control plane carries the rendezvous with a worker, which
// results in a communicator of two ranks. Any thread may call any method.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "engine/inspector.h"
#include "ps/pair.h"
#include "ps/retired.h"
#include "ps/session.h"

namespace dmlcomm::ps {

struct ServerOptions {
  uint32_t server = 0;
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;  // expected: nothing is applied before they have come
  Config config = {};        // of the connections
  // Of a proxy, which expects nobody before start_up().
  std::shared_ptr<Upstream> upstream = nullptr;
  // That the windows of each model may take; 0: a quarter of the machine's memory. With less than
  // that of kMinWindows they take as much as these.
  uint64_t window_bytes = 0;
  // With replicas: workers that have gone count until settle(), see Server::unsettled().
  bool settles = false;
};

struct SessionStatus {
  uint32_t worker = 0;
  bool connected = false;
  std::string reason;  // why not; empty if it has left in good order
  uint64_t bytes_in = 0, bytes_out = 0, pushes = 0, pulls = 0;
  size_t queued = 0;    // replies that wait
  double silent_s = 0;  // since the worker has shown life last
};

struct ModelStatus {
  uint32_t model = 0;
  std::string name;
  bool sealed = false;
  uint64_t clock = 0;                        // smallest of its workers
  std::map<uint32_t, uint64_t> clocks;       // by worker
  std::map<uint32_t, uint64_t> shard_bytes;  // of weights, by shard
  size_t open_windows = 0;
  uint64_t updates = 0;  // the most that a piece has had
  // Of a proxy.
  uint64_t version = 0;  // its copy of the weights contains all clocks before
  PullCounts pulls;
};

// A worker that has gone: which, and of which life of this server.
struct Gone {
  uint64_t incarnation = 0;
  uint8_t life = 0;
  bool has_left = false;  // in good order
};

// A worker that may not join; without a reason it may.
struct Refused {
  std::string reason;
  bool passes = false;  // it may later
};

class Server final : public engine::Inspectable, private SessionHost {
 public:
  explicit Server(ServerOptions options);
  ~Server() override;

  // Connects to a worker and serves it from then on. An earlier session of the worker ends first.
  // A proxy of `tree` is refused once that has ended, and a worker whose last incarnation is not
  // settled. If it fails, the worker counts on until it is given up.
  Status join(const PairOptions& options, std::shared_ptr<transport::Rendezvous> rendezvous,
              uint64_t tree = 0, uint64_t incarnation = 0);

  // The same spec again is no error; a different one is, and the text shows both. `base`: see
  // ModelOptions.
  Status create_model(uint32_t model, const ModelSpec& spec, std::shared_ptr<const Rule> rule,
                      uint64_t base = 0);
  Status seal(uint32_t model);
  bool is_sealed(uint32_t model);
  // False after `timeout`.
  bool wait_sealed(uint32_t model, std::chrono::milliseconds timeout);

  // For models that are created later.
  void set_checkpoint_every(uint64_t clocks);
  // Before close(): the clocks of models that have checkpoints end soon, see Model::stop_clocks().
  void stop_clocks();
  // The next snapshot that is complete, or null after `timeout`; of all models in turn. Calls come
  // from one thread.
  std::shared_ptr<Snapshot> next_snapshot(std::chrono::milliseconds timeout);
  // Creates the model from a snapshot, before any worker joins; in the place of an earlier one.
  Status restore(uint32_t model, const ModelSpec& spec, std::shared_ptr<const Rule> rule,
                 const Snapshot& snapshot);
  std::shared_ptr<Model> find_model(uint32_t model) override;

  std::vector<SessionStatus> session_status();
  std::vector<ModelStatus> model_status();
  // Takes no lock that a rule may hold.
  engine::Inspection inspect() override;
  // Of all sessions, added up by interface.
  std::vector<transport::RailCounters> rails();

  // --- lost servers, and those that come back; see ps/lives.h ---
  // This server has found that another one is lost, in this life of it: no worker uses it any more.
  void lose(uint32_t server, uint8_t life);
  // What another server has told: also that this one was lost, and is used again as it is.
  void learn_from_server(const Lives& told) { (void)note(lives_.learn(told)); }
  // This server and another one have each found the other lost, and this one gives way: it was
  // lost, and not the other one, whatever its workers say. False if it has heard anything since
  // `known`.
  bool give_way(const Lives& known, const Lives& told) { return lives_.replace(known, told); }
  Lives lives() const { return lives_.all(); }
  std::vector<uint32_t> lost_servers() const;
  // This server was lost, and is used again: it ends all connections and forgets all models. It
  // serves those who come once filled(). Only from `lost`, its present life.
  void come_back(uint8_t lost);
  bool is_filling() const override { return filling_.load(); }
  // Workers that send here what they begin from now on.
  std::vector<uint32_t> begun();
  // See Model::copy().
  Result<size_t> copy(uint32_t model, uint32_t shard, size_t first, size_t limit,
                      std::vector<std::byte>* out);
  // Pieces of a model that create_model() has made.
  Status take_copy(uint32_t model, uint32_t shard, const std::vector<std::byte>& bytes);
  // All pieces of the model are here; these are the clocks of its workers.
  void end_fill(uint32_t model, const std::map<uint32_t, uint64_t>& clocks);
  void filled();

  // --- workers that have gone, where `settles` ---
  // Workers whose connection has ended: pushes of them may be on one copy alone, also if it has
  // brought none here. They count until drop_settled(), so no clock goes on without what the other
  // servers have of them.
  std::map<uint32_t, Gone> unsettled();
  // As unsettled(), once there is one or `timeout` is over.
  std::map<uint32_t, Gone> wait_unsettled(std::chrono::milliseconds timeout);
  // Another server has lost this incarnation of the worker: its connection here ends, too, also one
  // that is being made, and nothing comes from it any more. Without a reason it has left in good
  // order. Whether it has to be settled here, or is about to be.
  bool end_worker(uint32_t worker, uint64_t incarnation, const std::string& reason);
  // See Model::known_pushes() and copy_pushes(); nothing without the model or the shard.
  std::vector<std::byte> known_pushes(uint32_t model, uint32_t shard, uint32_t worker, size_t first,
                                      size_t limit);
  Result<size_t> copy_pushes(uint32_t model, uint32_t shard, uint32_t worker,
                             const std::vector<std::byte>& known, size_t first, size_t limit,
                             std::vector<std::byte>* out);
  Status take_pushes(uint32_t model, uint32_t shard, uint32_t worker,
                     const std::vector<std::byte>& bytes);
  // All is here that the others had: the worker counts no more.
  void drop_settled(uint32_t worker, uint64_t incarnation);
  // The others have all that was here, too: another incarnation of the worker may come, and its
  // pushes are forgotten.
  void settle(uint32_t worker, uint64_t incarnation);
  // Why this incarnation may not join(): it was given up, or the one before is not settled.
  Refused refused(uint32_t worker, uint64_t incarnation);
  // Workers that are settled, and their incarnations; they are refused if they come again.
  using Settled = std::set<std::pair<uint32_t, uint64_t>>;
  Settled settled();
  // Another server has settled these: they are refused here, too, and end if they have come.
  void take_settled(const Settled& workers);

  // See Model::hold(); nothing without the model.
  Held hold(uint32_t model, uint32_t worker);
  // The clocks of a worker without a connection count no more until it comes.
  void give_up(uint32_t worker);

  // --- of a proxy ---
  // The weights of a model that has first values.
  void fetch_values(uint32_t model);
  // See Model::show_own_from().
  void show_own_from(uint32_t model, uint64_t clock);
  // All workers of the job have come, these of them below this proxy: windows go up from now on.
  void start_up(const std::vector<uint32_t>& expected);

  // --- of a server with proxies ---
  // The worker has registered with a proxy: it is not lost any more.
  void take_in(uint32_t worker) override;
  // Workers that have left or were lost.
  std::vector<uint32_t> gone();
  // The worker comes by a proxy from now on: ends its own connection. It counts on.
  void carry(uint32_t worker);
  // See Model::version(); 0 without the model.
  uint64_t version(uint32_t model);
  // See Model::reached(); 0 without the model.
  uint64_t reached(uint32_t model);
  // Whether the connection of a proxy has ended, of this tree. Also of a proxy's children.
  bool has_lost_proxy();
  // Ends the connections of all proxies, and forgets what has come from them and is in no version.
  // Their workers count on. Returns the number of the next tree.
  uint64_t end_tree();

  void close();

 private:
  void fail(const Status& reason);
  uint64_t note(uint64_t news);
  void expect_on(Model& model);
  bool may_be(const Lives& told);
  void end_sessions();
  EventCount& events() override { return events_; }
  Upstream* upstream() override { return options_.upstream.get(); }
  Lives learn_lives(const Lives& told) override;
  void on_session_ended(uint32_t worker, const Status& reason) override;

  bool has_session(uint32_t worker) override;
  Status expect_tree(uint32_t number, uint64_t tree) const;
  std::vector<uint32_t> shards_here(const ModelSpec& spec) const;
  std::optional<std::vector<std::shared_ptr<Model>>> models_after(uint32_t number);
  Status fenced() override;
  Status expect_life(const Lives& told) override;
  void drop_worker(uint32_t worker) override;
  void forget_pushes(uint32_t worker, uint64_t unfinished) override;
  void drop(uint32_t worker);
  std::map<uint32_t, std::shared_ptr<Model>> models();
  bool is_here(uint32_t worker) const;

  // A worker that has not been settled yet.
  struct Account {
    Gone worker;
    uint64_t joining = 0;     // the number of the join() that is under way; 0: none is
    bool has_joined = false;  // a connection has stood
    bool is_over = false;     // nothing comes from it any more, whatever it connects
    bool may_have_pushed() const { return has_joined || is_over; }
  };
  Result<uint64_t> begin_join(uint32_t worker, uint64_t incarnation);
  Status end_join(const std::shared_ptr<Session>& session, uint64_t tree, uint64_t number);
  void fail_join(uint32_t worker, uint64_t number);
  Refused why_refused(uint32_t worker, uint64_t incarnation) const;
  bool is_unsettled(uint32_t worker, const Account& account) const;
  bool is_unsettled(uint32_t worker, uint64_t incarnation);

  const ServerOptions options_;
  EventCount events_;
  EventCount ended_;  // of unsettled()
  LifeTable lives_;
  std::atomic<bool> filling_{false};

  uint32_t last_snapshot_of_ = 0;  // model; next_snapshot() continues after it

  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<uint32_t, std::shared_ptr<Model>> models_;
  std::map<uint32_t, std::shared_ptr<Session>> sessions_;  // by worker; also ended ones
  std::set<uint32_t> gone_;               // workers that were here, and have left or were lost
  std::map<uint32_t, Account> accounts_;  // by worker, where options_.settles
  Settled settled_;
  std::vector<uint32_t> expected_;  // of a proxy
  uint64_t tree_ = 0;
  uint64_t num_joins_ = 0;
  uint64_t checkpoint_every_ = 0;
  bool closed_ = false;

  Retired retired_;  // sessions of the above
};

}  // namespace dmlcomm::ps
