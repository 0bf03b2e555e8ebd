#include "ps/server.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "memory/shared_arena.h"

namespace dmlcomm::ps {
namespace {

void add_counters(std::vector<transport::RailCounters>* sums, const transport::RailCounters& rail) {
  const auto it = std::find_if(sums->begin(), sums->end(),
                               [&](const auto& sum) { return sum.interface == rail.interface; });
  if (it == sums->end()) {
    sums->push_back(rail);
  } else {
    it->add(rail);
  }
}

ServerOptions with_defaults(ServerOptions options) {
  const auto memory = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) *
                      static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (options.window_bytes == 0) options.window_bytes = memory / 4;
  return options;
}

}  // namespace

// Models and pushes lie in the arena from here on, where workers of this host reach them.
Server::Server(ServerOptions options) : options_(with_defaults(std::move(options))) {
  const Config& config = options_.config;
  if (config.shares_memory() && config.shm_single_copy) (void)SharedArena::make();
  if (options_.upstream == nullptr) return;
  options_.upstream->on_failure([this](const Status& reason) { fail(reason); });
}

Server::~Server() { close(); }

// A proxy without its parent: the workers are told why, and are not served any more.
void Server::fail(const Status& reason) {
  std::map<uint32_t, std::shared_ptr<Session>> sessions;
  {
    std::lock_guard lock(mutex_);
    sessions = sessions_;
  }
  for (const auto& [worker, session] : sessions) session->end_but_count(reason.message());
  events_.signal();
}

void Server::close() {
  std::map<uint32_t, std::shared_ptr<Session>> sessions;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    sessions.swap(sessions_);
  }
  // First all of them, so that no window is taken for complete because its workers are cut off.
  for (const auto& [worker, session] : sessions) session->end_but_count("the server is closing");
  events_.signal();
  if (options_.upstream != nullptr) options_.upstream->close();
}

// --- workers ---

Status Server::fenced() {
  if (options_.upstream != nullptr) DMLCOMM_RETURN_IF_ERROR(options_.upstream->error());
  if (!has_server(lives_.lost(), options_.server)) return Status();
  return Status(
      StatusCode::peer_lost, "server ", options_.server,
      " was found lost by the others, and workers use its replica until it has come back");
}

Status Server::expect_life(const Lives& told) {
  const uint8_t own = lives_.of(options_.server);
  if (told[options_.server] == own) return Status();
  return Status(StatusCode::aborted, "server ", options_.server, " was lost, and has come back");
}

Status Server::join(const PairOptions& options, std::shared_ptr<transport::Rendezvous> rendezvous,
                    uint64_t tree, uint64_t incarnation) {
  DMLCOMM_RETURN_IF_ERROR(fenced());
  if (options.other >= kFirstProxy + kMaxProxies) {
    return Status(StatusCode::invalid_argument, "worker ", options.other, ": expected less than ",
                  kMaxWorkers, ", or a proxy's number, less than ", kFirstProxy + kMaxProxies);
  }
  std::shared_ptr<Session> old;
  uint64_t joining = 0;
  {
    std::lock_guard lock(mutex_);
    DMLCOMM_RETURN_IF_ERROR(expect_tree(options.other, tree));
    if (options_.settles) {
      const Result<uint64_t> number = begin_join(options.other, incarnation);
      if (!number.ok()) return number.status();
      joining = *number;
    }
    const auto it = sessions_.find(options.other);
    if (it != sessions_.end()) old = std::exchange(it->second, nullptr);
    if (it != sessions_.end()) sessions_.erase(it);
  }
  if (old != nullptr) old->end_but_count("the worker connects anew");
  old.reset();
  auto connected =
      meet(kServerRank, options_.server, options, options_.config, std::move(rendezvous));
  Status status = connected.status();
  if (status.ok()) {
    const auto session = std::make_shared<Session>(options.other, std::move(*connected),
                                                   static_cast<SessionHost&>(*this));
    status = end_join(session, tree, joining);
    if (!status.ok()) session->end_but_count(status.message());
  }
  if (!status.ok()) {
    fail_join(options.other, joining);
    return status;
  }
  log_info(name_of(options.other), " has joined server ", options_.server);
  return Status();
}

// With mutex_. Another join() of the worker that is under way fails.
Result<uint64_t> Server::begin_join(uint32_t worker, uint64_t incarnation) {
  const Refused refused = why_refused(worker, incarnation);
  if (!refused.reason.empty()) return Status(StatusCode::aborted, refused.reason);
  Account& account = accounts_[worker];
  account.worker = {incarnation, lives_.of(options_.server)};
  return account.joining = ++num_joins_;
}

void Server::fail_join(uint32_t worker, uint64_t number) {
  std::lock_guard lock(mutex_);
  const auto it = accounts_.find(worker);
  if (it == accounts_.end() || it->second.joining != number) return;
  it->second.joining = 0;
  if (!it->second.has_joined) accounts_.erase(it);
}

// Nothing comes from a session before it can be ended.
Status Server::end_join(const std::shared_ptr<Session>& session, uint64_t tree, uint64_t number) {
  const uint32_t worker = session->worker();
  std::shared_ptr<Session> replaced;  // ends after the lock: its threads may be about to take it
  std::lock_guard lock(mutex_);
  if (closed_) return Status(StatusCode::aborted, "the server is closing");
  DMLCOMM_RETURN_IF_ERROR(expect_tree(worker, tree));
  const auto account = accounts_.find(worker);
  const bool has_account = account != accounts_.end() && account->second.joining == number;
  if (options_.settles && !has_account) {
    return Status(StatusCode::aborted, name_of(worker), " was given up while it connected");
  }
  DMLCOMM_RETURN_IF_ERROR(session->start());
  if (options_.settles) {
    account->second.joining = 0;
    account->second.has_joined = true;
  }
  gone_.erase(worker);
  replaced = std::exchange(sessions_[worker], session);
  return Status();
}

// --- trees ---

// With mutex_.
Status Server::expect_tree(uint32_t number, uint64_t tree) const {
  if (!is_proxy(number) || tree == tree_) return Status();
  return Status(StatusCode::aborted, name_of(number), " is of tree ", tree,
                " of proxies, which has ended");
}

void Server::carry(uint32_t worker) {
  std::shared_ptr<Session> own;
  {
    std::lock_guard lock(mutex_);
    gone_.erase(worker);
    const auto it = sessions_.find(worker);
    if (it == sessions_.end()) return;
    own = std::move(it->second);
    sessions_.erase(it);
  }
  own->end_but_count("the worker comes by a proxy");
  own->stop();
  retired_.close(std::move(own));
}

Held Server::hold(uint32_t model, uint32_t worker) {
  const std::shared_ptr<Model> of = find_model(model);
  return of == nullptr ? Held() : of->hold(worker);
}

uint64_t Server::version(uint32_t model) {
  const std::shared_ptr<Model> of = find_model(model);
  return of == nullptr ? 0 : of->version();
}

uint64_t Server::reached(uint32_t model) {
  const std::shared_ptr<Model> of = find_model(model);
  return of == nullptr ? 0 : of->reached();
}

void Server::show_own_from(uint32_t model, uint64_t clock) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of != nullptr) of->show_own_from(clock);
}

void Server::fetch_values(uint32_t model) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of != nullptr) of->fetch_values();
}

bool Server::has_lost_proxy() {
  std::lock_guard lock(mutex_);
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& item) { return is_proxy(item.first) && item.second->ended(); });
}

// Nothing comes from a session that is stopped, so nothing is added after the sums are forgotten.
uint64_t Server::end_tree() {
  std::vector<std::shared_ptr<Session>> proxies;
  uint64_t next = 0;
  {
    std::lock_guard lock(mutex_);
    next = ++tree_;
    for (const auto& [number, session] : sessions_) {
      if (is_proxy(number)) proxies.push_back(session);
    }
    std::erase_if(sessions_, [](const auto& item) { return is_proxy(item.first); });
  }
  for (const auto& session : proxies) session->end_but_count("this tree of proxies has ended");
  Session::Attached attached;
  for (const auto& session : proxies) {
    session->stop();
    for (const auto& [model, workers] : session->attached()) {
      attached[model].insert(workers.begin(), workers.end());
    }
  }
  for (const auto& [model, workers] : attached) find_model(model)->forget_parts(workers);
  for (const auto& session : proxies) retired_.close(session);
  events_.signal();
  return next;
}

bool Server::has_session(uint32_t worker) {
  std::lock_guard lock(mutex_);
  return is_here(worker);
}

// With mutex_.
bool Server::is_here(uint32_t worker) const {
  const auto it = sessions_.find(worker);
  return it != sessions_.end() && !it->second->ended();
}

void Server::give_up(uint32_t worker) {
  if (!has_session(worker)) drop_worker(worker);
}

void Server::drop_worker(uint32_t worker) {
  // A session of a proxy without its parent may end before it is told that its worker counts on.
  if (options_.upstream != nullptr && !options_.upstream->error().ok()) return;
  bool is_settled_first = false;
  {
    std::lock_guard lock(mutex_);
    const auto it = accounts_.find(worker);
    is_settled_first = it != accounts_.end() && it->second.may_have_pushed();
    if (!is_settled_first) accounts_.erase(worker);
  }
  if (!is_settled_first) return drop(worker);
  ended_.signal();
}

void Server::drop(uint32_t worker) {
  {
    std::lock_guard lock(mutex_);
    gone_.insert(worker);
  }
  for (const auto& [number, model] : models()) model->drop(worker);
  if (options_.upstream != nullptr) options_.upstream->drop(worker);
}

std::map<uint32_t, std::shared_ptr<Model>> Server::models() {
  std::lock_guard lock(mutex_);
  return models_;
}

// --- workers that have gone ---

Refused Server::refused(uint32_t worker, uint64_t incarnation) {
  std::lock_guard lock(mutex_);
  return why_refused(worker, incarnation);
}

// With mutex_.
Refused Server::why_refused(uint32_t worker, uint64_t incarnation) const {
  const auto it = accounts_.find(worker);
  const bool has_account = it != accounts_.end();
  const bool is_the_same = has_account && it->second.worker.incarnation == incarnation;
  const bool is_given_up =
      settled_.contains({worker, incarnation}) || (is_the_same && it->second.is_over);
  if (is_given_up) {
    return {str_cat(name_of(worker), " was given up by the servers, which go on without it; ",
                    "start it again")};
  }
  if (!has_account || is_the_same || !it->second.may_have_pushed()) return {};
  return {str_cat(name_of(worker), " was here before, and the servers have not yet exchanged ",
                  "what they have of it"),
          true};
}

std::map<uint32_t, Gone> Server::unsettled() {
  std::lock_guard lock(mutex_);
  std::map<uint32_t, Gone> gone;
  for (const auto& [worker, account] : accounts_) {
    if (!is_unsettled(worker, account)) continue;
    const auto session = sessions_.find(worker);
    Gone& one = gone[worker] = account.worker;
    one.has_left = session != sessions_.end() && session->second->reason().ok();
  }
  return gone;
}

std::map<uint32_t, Gone> Server::wait_unsettled(std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after_ns(timeout.count() * kNsPerMs);
  std::map<uint32_t, Gone> gone;
  (void)ended_.wait_until(deadline, [&] { return !(gone = unsettled()).empty(); });
  return gone;
}

bool Server::end_worker(uint32_t worker, uint64_t incarnation, const std::string& reason) {
  std::shared_ptr<Session> session;
  {
    std::lock_guard lock(mutex_);
    const auto account = accounts_.find(worker);
    if (account == accounts_.end()) return false;
    if (account->second.worker.incarnation != incarnation) return false;
    account->second.is_over = true;
    account->second.joining = 0;
    const auto it = sessions_.find(worker);
    if (it != sessions_.end()) session = it->second;
  }
  if (session != nullptr) {
    session->give_up(reason);
    session->stop();
  }
  ended_.signal();
  return is_unsettled(worker, incarnation);
}

bool Server::is_unsettled(uint32_t worker, uint64_t incarnation) {
  std::lock_guard lock(mutex_);
  const auto it = accounts_.find(worker);
  return it != accounts_.end() && it->second.worker.incarnation == incarnation &&
         is_unsettled(worker, it->second);
}

// With mutex_. One that is over and connects at this moment is about to fail.
bool Server::is_unsettled(uint32_t worker, const Account& account) const {
  return account.may_have_pushed() && account.joining == 0 && !is_here(worker);
}

std::vector<std::byte> Server::known_pushes(uint32_t model, uint32_t shard, uint32_t worker,
                                            size_t first, size_t limit) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of == nullptr || of->shard(shard) == nullptr) return {};
  return of->known_pushes(shard, worker, first, limit);
}

Result<size_t> Server::copy_pushes(uint32_t model, uint32_t shard, uint32_t worker,
                                   const std::vector<std::byte>& known, size_t first, size_t limit,
                                   std::vector<std::byte>* out) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of == nullptr || of->shard(shard) == nullptr) return first;
  return of->copy_pushes(shard, worker, known, first, limit, out);
}

Status Server::take_pushes(uint32_t model, uint32_t shard, uint32_t worker,
                           const std::vector<std::byte>& bytes) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of != nullptr && of->shard(shard) != nullptr) return of->take_pushes(shard, worker, bytes);
  return Status(StatusCode::invalid_argument, "server ", options_.server, " holds no shard ", shard,
                " of a model number ", model);
}

void Server::drop_settled(uint32_t worker, uint64_t incarnation) {
  if (is_unsettled(worker, incarnation)) drop(worker);
}

// It is dropped again: meanwhile it may have created a model, which counts it.
void Server::settle(uint32_t worker, uint64_t incarnation) {
  if (!is_unsettled(worker, incarnation)) return;
  drop(worker);
  forget_pushes(worker, UINT64_MAX);
  std::lock_guard lock(mutex_);
  accounts_.erase(worker);
  settled_.insert({worker, incarnation});
}

void Server::forget_pushes(uint32_t worker, uint64_t unfinished) {
  for (const auto& [number, model] : models()) model->forget_pushes(worker, unfinished);
}

Server::Settled Server::settled() {
  std::lock_guard lock(mutex_);
  return settled_;
}

void Server::take_settled(const Settled& workers) {
  {
    std::lock_guard lock(mutex_);
    settled_.insert(workers.begin(), workers.end());
  }
  for (const auto& [worker, incarnation] : workers) {
    (void)end_worker(worker, incarnation, "other servers have given it up");
  }
}

void Server::take_in(uint32_t worker) {
  std::lock_guard lock(mutex_);
  gone_.erase(worker);
}

std::vector<uint32_t> Server::gone() {
  std::lock_guard lock(mutex_);
  return {gone_.begin(), gone_.end()};
}

void Server::start_up(const std::vector<uint32_t>& expected) {
  std::map<uint32_t, std::shared_ptr<Model>> models;
  {
    std::lock_guard lock(mutex_);
    expected_ = expected;
    models = models_;
    for (const auto& [number, model] : models) expect_on(*model);
  }
  options_.upstream->start();
  for (const auto& [number, model] : models) model->send_up();
}

// With mutex_.
void Server::expect_on(Model& model) {
  for (uint32_t worker : expected_) {
    if (!gone_.contains(worker)) model.expect(worker);
  }
}

void Server::on_session_ended(uint32_t worker, const Status& reason) {
  if (reason.ok()) {
    log_info(name_of(worker), " has left server ", options_.server);
  } else {
    log_warning(name_of(worker), " is lost to server ", options_.server,
                ", the others go on: ", reason.message());
  }
}

// --- lost servers ---

// Only of servers that there are, and that have replicas: no other report makes sense.
bool Server::may_be(const Lives& told) {
  const auto first_beyond = told.begin() + std::min(options_.num_servers, kMaxServers);
  if (std::any_of(first_beyond, told.end(), [](uint8_t life) { return life > 0; })) return false;
  if (is_filling()) return true;
  std::lock_guard lock(mutex_);
  return std::any_of(models_.begin(), models_.end(),
                     [](const auto& item) { return item.second->spec().replicas > 0; });
}

Lives Server::learn_lives(const Lives& told) {
  const Lives known = lives_.all();
  const bool has_news = !std::equal(known.begin(), known.end(), told.begin(),
                                    [](uint8_t ours, uint8_t theirs) { return ours >= theirs; });
  if (!has_news || !may_be(told)) return known;
  const uint64_t news = note(lives_.learn_from_user(told, options_.server));
  if (has_server(news & lives_.lost(), options_.server)) log_error(fenced().message());
  return lives_.all();
}

// A server that is used again as it is has had its workers in this life, too.
uint64_t Server::note(uint64_t news) {
  const uint8_t own = lives_.of(options_.server);
  if (!has_server(news, options_.server) || is_lost(own)) return news;
  std::lock_guard lock(mutex_);
  for (auto& [worker, account] : accounts_) account.worker.life = own;
  return news;
}

void Server::lose(uint32_t server, uint8_t life) { (void)lives_.advance(server, life); }

std::vector<uint32_t> Server::lost_servers() const {
  std::vector<uint32_t> lost;
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    if (has_server(lives_.lost(), server)) lost.push_back(server);
  }
  return lost;
}

// --- coming back ---

// Sessions that begin from here on have to wait; those before are of the life that has ended.
void Server::come_back(uint8_t lost) {
  filling_.store(true);
  if (!is_lost(lost) || !lives_.advance(options_.server, lost)) return filling_.store(false);
  end_sessions();
  std::lock_guard lock(mutex_);
  models_.clear();
  gone_.clear();
  accounts_.clear();
  settled_.clear();
}

void Server::end_sessions() {
  std::map<uint32_t, std::shared_ptr<Session>> sessions;
  {
    std::lock_guard lock(mutex_);
    sessions.swap(sessions_);
  }
  for (const auto& [worker, session] : sessions) {
    session->end_but_count("this server was lost, and comes back");
    session->close();
  }
}

std::vector<uint32_t> Server::begun() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> workers;
  for (const auto& [worker, session] : sessions_) {
    if (!session->ended() && session->has_begun()) workers.push_back(worker);
  }
  return workers;
}

Result<size_t> Server::copy(uint32_t model, uint32_t shard, size_t first, size_t limit,
                            std::vector<std::byte>* out) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of != nullptr && of->shard(shard) != nullptr) return of->copy(shard, first, limit, out);
  return Status(StatusCode::invalid_argument, "server ", options_.server, " has no shard ", shard,
                " of a model number ", model);
}

Status Server::take_copy(uint32_t model, uint32_t shard, const std::vector<std::byte>& bytes) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of != nullptr && of->shard(shard) != nullptr) return of->take_copy(shard, bytes);
  return Status(StatusCode::invalid_argument, "server ", options_.server, " holds no shard ", shard,
                " of a model number ", model);
}

// A worker that is gone already has been dropped from the models that were here then.
void Server::end_fill(uint32_t model, const std::map<uint32_t, uint64_t>& clocks) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of == nullptr) return;
  std::lock_guard lock(mutex_);
  of->end_fill(clocks);
  for (uint32_t worker : gone_) of->drop(worker);
}

void Server::filled() {
  filling_.store(false);
  events_.signal();
}

// --- models ---

std::shared_ptr<Model> Server::find_model(uint32_t model) {
  std::lock_guard lock(mutex_);
  const auto it = models_.find(model);
  return it == models_.end() ? nullptr : it->second;
}

std::vector<uint32_t> Server::shards_here(const ModelSpec& spec) const {
  std::vector<uint32_t> shards;
  for (uint32_t replica = 0; replica <= spec.replicas; ++replica) {
    shards.push_back((options_.server + spec.num_servers - replica) % spec.num_servers);
  }
  return shards;
}

Status Server::create_model(uint32_t model, const ModelSpec& spec, std::shared_ptr<const Rule> rule,
                            uint64_t base) {
  DMLCOMM_RETURN_IF_ERROR(check(spec));
  if (spec.num_servers != options_.num_servers) {
    return Status(StatusCode::invalid_argument, "model '", spec.name, "' is for ", spec.num_servers,
                  " servers; there are ", options_.num_servers);
  }
  std::lock_guard lock(mutex_);
  const auto it = models_.find(model);
  if (it != models_.end()) {
    if (it->second->spec() == spec) return Status();
    return Status(StatusCode::mismatch, "model '", spec.name, "' exists already as ",
                  describe(it->second->spec()), "; a worker asks for ", describe(spec),
                  "; all workers must give the same tensors, rule and options");
  }
  ModelOptions options;
  options.model = model;
  options.spec = spec;
  options.shards = shards_here(spec);
  options.num_expected = options_.upstream == nullptr ? options_.num_workers : 0;
  options.upstream = options_.upstream.get();
  options.base = base;
  options.rule = std::move(rule);
  options.checkpoint_every = checkpoint_every_;
  options.huge_pages = options_.config.huge_pages;
  options.window_bytes = options_.window_bytes;
  models_[model] = std::make_shared<Model>(std::move(options), events_);
  for (uint32_t worker : gone_) models_[model]->drop(worker);
  expect_on(*models_[model]);
  log_info("model '", spec.name, "': ", describe(spec));
  return Status();
}

Status Server::seal(uint32_t model) {
  const std::shared_ptr<Model> of = find_model(model);
  if (of == nullptr) {
    return Status(StatusCode::invalid_argument, "there is no model number ", model);
  }
  of->seal();
  return Status();
}

bool Server::is_sealed(uint32_t model) {
  const std::shared_ptr<Model> of = find_model(model);
  return of != nullptr && of->sealed();
}

bool Server::wait_sealed(uint32_t model, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after_ns(timeout.count() * kNsPerMs);
  return events_.wait_until(deadline, [&] { return is_sealed(model); });
}

// --- checkpoints ---

void Server::set_checkpoint_every(uint64_t clocks) {
  std::lock_guard lock(mutex_);
  checkpoint_every_ = clocks;
}

void Server::stop_clocks() {
  for (const auto& [number, model] : models()) {
    if (model->options().checkpoint_every > 0) model->stop_clocks();
  }
}

std::shared_ptr<Snapshot> Server::next_snapshot(std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after_ns(timeout.count() * kNsPerMs);
  std::shared_ptr<Snapshot> snapshot;
  (void)events_.wait_until(deadline, [&] {
    const auto models = models_after(last_snapshot_of_);
    if (!models.has_value()) return true;
    for (const auto& model : *models) {
      if ((snapshot = model->take_snapshot()) != nullptr) break;
    }
    return snapshot != nullptr;
  });
  if (snapshot != nullptr) last_snapshot_of_ = snapshot->model;
  return snapshot;
}

// All models, the one with this number last; nothing once the server is closed.
std::optional<std::vector<std::shared_ptr<Model>>> Server::models_after(uint32_t number) {
  std::lock_guard lock(mutex_);
  if (closed_) return std::nullopt;
  std::vector<std::shared_ptr<Model>> models;
  const auto first = models_.upper_bound(number);
  for (auto it = first; it != models_.end(); ++it) models.push_back(it->second);
  for (auto it = models_.begin(); it != first; ++it) models.push_back(it->second);
  return models;
}

Status Server::restore(uint32_t model, const ModelSpec& spec, std::shared_ptr<const Rule> rule,
                       const Snapshot& snapshot) {
  {
    std::lock_guard lock(mutex_);
    models_.erase(model);  // of a later clock
  }
  DMLCOMM_RETURN_IF_ERROR(create_model(model, spec, std::move(rule)));
  return find_model(model)->restore(snapshot);
}

// --- status ---

std::vector<SessionStatus> Server::session_status() {
  std::lock_guard lock(mutex_);
  std::vector<SessionStatus> all;
  for (const auto& [worker, session] : sessions_) {
    const SessionCounters& counters = session->counters();
    all.push_back({worker, !session->ended(), session->reason().message(), counters.bytes_in.load(),
                   counters.bytes_out.load(), counters.pushes.load(), counters.pulls.load(),
                   session->num_queued(), session->silent_s()});
  }
  return all;
}

std::vector<ModelStatus> Server::model_status() {
  std::vector<ModelStatus> all;
  for (const auto& [number, model] : models()) {
    ModelStatus status;
    status.model = model->options().model;
    status.name = model->spec().name;
    status.sealed = model->sealed();
    status.clock = model->min_clock();
    for (uint32_t worker = 0; worker < model->clocks().num_known(); ++worker) {
      const uint64_t clock = model->clocks().get(worker);
      if (clock != kGone) status.clocks.emplace(worker, clock);
    }
    for (uint32_t shard : model->options().shards) {
      status.shard_bytes.emplace(shard, shard_bytes(model->spec(), shard));
    }
    status.open_windows = model->num_open_windows();
    status.updates = model->num_updates();
    status.version = model->version();
    status.pulls = model->pull_counts();
    all.push_back(std::move(status));
  }
  return all;
}

std::vector<transport::RailCounters> Server::rails() {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [worker, session] : sessions_) sessions.push_back(session);
  }
  std::vector<transport::RailCounters> sums;
  for (const auto& session : sessions) {
    for (const transport::RailCounters& rail : session->rails()) add_counters(&sums, rail);
  }
  return sums;
}

}  // namespace dmlcomm::ps
