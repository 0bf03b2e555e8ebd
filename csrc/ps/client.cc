#include "ps/client.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "ps/event_count.h"

namespace dmlcomm::ps {
namespace {

// A server that does not confirm the goodbye of a worker within this time is left anyway.
constexpr double kLeaveTimeoutS = 5.0;
// A worker that waits until its pushes are safe asks this often.
constexpr double kAskAgainS = 0.25;

// The memory that an operation over pieces keeps alive until it is done.
struct StagedPieces {
  ModelSpec spec;
  std::vector<PieceMemory> down_memory;  // by task
  std::vector<std::vector<std::pair<Piece, StagedPiece>>> down;
  std::vector<StagedPiece> up;
};

// The rows of one command.
struct RowBatch {
  std::vector<int64_t> numbers;
  std::vector<uint64_t> places;  // of these rows in the caller's memory
  std::vector<std::byte> values;
};

std::vector<uint32_t> holders(const ModelSpec& spec, uint32_t shard) {
  std::vector<uint32_t> servers;
  for (uint32_t replica = 0; replica <= spec.replicas; ++replica) {
    servers.push_back(server_of(spec, shard, replica));
  }
  return servers;
}

// The highest shard that the server holds: the last of a command to all shards that it gets.
uint32_t last_shard_of(const ModelSpec& spec, uint32_t server) {
  return spec.replicas > 0 && server == 0 ? spec.num_servers - 1 : server;
}

Status check_table(const ModelSpec& spec, uint32_t space) {
  if (space >= spec.spaces.size() || !spec.spaces[space].sparse()) {
    return Status(StatusCode::invalid_argument, "space ", space, " of model '", spec.name,
                  "' is no sparse table");
  }
  if (spec.spaces[space].wire != spec.spaces[space].dtype) {
    return Status(StatusCode::unsupported, "rows of sparse tables travel as they are");
  }
  return Status();
}

}  // namespace

Client::Client(ClientOptions options)
    : options_(std::move(options)),
      next_sequence_(options_.first_sequence),
      huge_pages_(options_.config.huge_pages),
      links_(options_.num_servers) {}

Client::~Client() { close(); }

// --- connections ---

Status Client::connect(const PairOptions& options,
                       std::shared_ptr<transport::Rendezvous> rendezvous, uint8_t life) {
  if (options.other >= options_.num_servers) {
    return Status(StatusCode::invalid_argument, "server ", options.other, " of ",
                  options_.num_servers);
  }
  auto connected =
      meet(kWorkerRank, options_.worker, options, options_.config, std::move(rendezvous));
  if (!connected.ok()) return connected.status();
  const bool shares_memory = (*connected)->shares_memory();
  auto link = std::make_shared<ServerLink>(std::move(*connected), options.by_proxy);
  std::lock_guard starting(start_mutex_);
  uses_huge_pages_ |= shares_memory;
  has_gone_by_proxy_ |= options.by_proxy;
  std::shared_ptr<ServerLink> old;
  {
    // Pushes that the old connection has acknowledged are kept by now, or will be repeated.
    std::lock_guard lock(mutex_);
    old = std::move(links_[options.other]);
  }
  if (old != nullptr) {
    old->fail("the worker connects anew");
    retired_.close(std::move(old));
  }
  Lives told{};
  told[options.other] = life;
  (void)heard_.learn(told);
  (void)lives_.learn(told);
  {
    std::lock_guard lock(mutex_);
    links_[options.other] = link;
  }
  const Deadline deadline = Deadline::after_ns(options.timeout.count() * kNsPerMs);
  Status status = catch_up(options.other, link, deadline);
  if (!status.ok()) link->fail(status.message());  // another connection begins anew
  // It shows that operations go there from now on, also where there is no model yet.
  if (life > 0) send_command(link, clock_command(CommandKind::news, 0, 0), false);
  return status;
}

std::vector<Client::Repetition> Client::repetitions(uint32_t server) {
  std::vector<Repetition> all;
  for (const auto& [model, state] : models_) {
    for (const KeptPushes::Push& push : kept_.of(server, model)) {
      all.push_back({push->command.sequence, model, push->command.clock, push, nullptr});
    }
  }
  for (const auto& weak : unfinished_) {
    const OperationPtr operation = weak.lock();
    if (operation == nullptr) continue;
    operation->shift(server, models_.at(operation->model()).shift);
    const std::optional<uint64_t> clock = operation->clock_awaited(server);
    if (!clock.has_value()) continue;
    all.push_back({operation->order(), operation->model(), *clock, nullptr, operation});
  }
  std::sort(all.begin(), all.end(),
            [](const Repetition& a, const Repetition& b) { return a.order < b.order; });
  return all;
}

// Takes part in each model from the oldest clock of which something is repeated. Clocks end between
// the repetitions as they did between the calls, so nothing waits for what comes behind it that
// did not before.
Status Client::catch_up(uint32_t server, const std::shared_ptr<ServerLink>& link,
                        Deadline deadline) {
  const std::vector<Repetition> all = repetitions(server);
  std::map<uint32_t, uint64_t> reached;
  for (const auto& [model, state] : models_) reached[model] = state.clock;
  for (const Repetition& one : all) {
    reached[one.model] = std::min(reached[one.model], one.clock);
  }
  for (const auto& [model, clock] : reached) {
    send_command(link, clock_command(CommandKind::attach, model, clock), true);
  }
  const auto reach = [&](uint32_t model, uint64_t clock) {
    if (clock <= reached[model]) return;
    send_command(link, clock_command(CommandKind::clock, model, clock), false);
    reached[model] = clock;
  };
  auto closing = closings_.begin();
  for (const Repetition& one : all) {
    for (; closing != closings_.end() && closing->order < one.order; ++closing) {
      reach(closing->model, closing->clock);
    }
    if (one.push != nullptr) {
      repeat(server, link, one.push);
      continue;
    }
    const Result<bool> repeats = one.operation->repeat(server, deadline);
    if (!repeats.ok()) return repeats.status();
    if (!*repeats) continue;
    // With replicas only one of two commands may be repeated, and not the one that ends the clock.
    if (!one.operation->repeats_whole()) continue;
    const uint64_t clock = one.clock + one.operation->closes();
    reached[one.model] = std::max(reached[one.model], clock);
  }
  for (const auto& [model, state] : models_) reach(model, state.clock);
  return Status();
}

// A push of a clock that is over would go to the present one, and a pull of the next clock would
// not wait for that. What may have come by a proxy keeps its clock, by which it is recognised.
void Client::skip_to(uint32_t model, uint32_t server, uint64_t clock) {
  std::lock_guard starting(start_mutex_);
  const auto it = models_.find(model);
  if (it == models_.end()) return;
  ModelState& state = it->second;
  uint64_t oldest = state.clock;
  for (const Repetition& one : repetitions(server)) {
    const bool moves = one.operation != nullptr && one.model == model && !has_gone_by_proxy_;
    if (moves) oldest = std::min(oldest, one.clock);
  }
  if (clock <= oldest) return;
  const uint64_t skipped = clock - oldest;
  log_warning("worker ", options_.worker, " is ", skipped, " clocks behind in model '",
              state.spec.name, "', which the others did without it, and goes on from theirs");
  state.clock += skipped;
  if (!has_gone_by_proxy_) state.shift += skipped;
  for (Closing& one : closings_) {
    if (one.model == model) one.clock += skipped;
  }
  send_to_all(clock_command(CommandKind::clock, model, state.clock), false);
}

void Client::repeat(uint32_t server, const std::shared_ptr<ServerLink>& link,
                    const KeptPushes::Push& push) {
  Command command = push->command;
  command.unfinished = oldest_sequence();
  const auto forget = [this, server, link, push](const auto& bytes, const auto& got) {
    const Result<Answer> answer = decode_answer(bytes);
    if (!got.ok() || !answer.ok()) return;  // the connection is lost
    if (link->by_proxy()) {
      kept_.forget_before(server, push->command.model, answer->version);
    } else {
      kept_.forget(server, push->command.sequence);
    }
  };
  const uint8_t track = send_command(link, command, true, forget);
  for (Span span : push->up) {
    link->up(track).add({span, false, [push](const Status&) {}, command.ticket});
  }
}

// Its copy closes no clock: clocks are closed by commands of their own when it is repeated.
bool Client::keep(uint32_t server, const std::shared_ptr<ServerLink>& link, const Command& command,
                  const std::vector<Span>& up) {
  auto push = std::make_shared<KeptPush>(command, up);
  push->command.kind = CommandKind::push;
  push->command.staleness = kNoBound;
  push->command.waits = false;
  std::lock_guard lock(mutex_);
  if (links_[server] != link) return false;
  kept_.add(server, std::move(push));
  return true;
}

bool Client::idle() {
  std::lock_guard starting(start_mutex_);
  return kept_.empty() && std::all_of(unfinished_.begin(), unfinished_.end(), [](const auto& weak) {
           const OperationPtr operation = weak.lock();
           return operation == nullptr || operation->finished();
         });
}

// A connection that is lost meanwhile, and replaced, is asked again.
bool Client::flush(std::chrono::milliseconds timeout) {
  const auto is_safe = [this] {
    std::lock_guard starting(start_mutex_);
    for (const auto& [model, state] : models_) {
      for (uint32_t server = 0; server < options_.num_servers; ++server) {
        const auto kept = kept_.of(server, model);
        if (!kept.empty() && kept.front()->command.clock < state.clock) return false;
      }
    }
    return true;
  };
  const Deadline deadline = Deadline::after_ns(timeout.count() * kNsPerMs);
  while (!is_safe() && !deadline.expired()) {
    for (uint32_t server = 0; server < options_.num_servers; ++server) ask_for_version(server);
    (void)kept_.events().wait_until(Deadline::after_s(kAskAgainS), is_safe);
  }
  return is_safe();
}

void Client::ask_for_version(uint32_t server) {
  std::lock_guard starting(start_mutex_);
  const std::shared_ptr<ServerLink> to = link(server);
  if (to == nullptr || !to->by_proxy()) return;
  for (const auto& [model, state] : models_) {
    const auto kept = kept_.of(server, model);
    if (kept.empty() || kept.front()->command.clock >= state.clock) continue;
    Command command = clock_command(CommandKind::confirm, model, state.clock);
    command.shard = server;
    command.staleness = 0;
    send_command(to, command, true,
                 [this, server, model = model](const auto& bytes, const auto& got) {
                   const Result<Answer> answer = decode_answer(bytes);
                   if (got.ok() && answer.ok()) kept_.forget_before(server, model, answer->version);
                 });
  }
}

// `attach`, `clock`, `news` and `leave`.
Command Client::clock_command(CommandKind kind, uint32_t model, uint64_t clock) const {
  Command command;
  command.kind = kind;
  command.model = model;
  command.clock = clock;
  command.unfinished = oldest_sequence();
  if (kind == CommandKind::attach) command.sequence = options_.first_sequence;
  return command;
}

std::shared_ptr<ServerLink> Client::link(uint32_t server) {
  std::lock_guard lock(mutex_);
  return has_server(lives_.lost(), server) ? nullptr : links_[server];
}

void Client::lose(uint32_t server, const std::shared_ptr<ServerLink>& link, const Status& reason) {
  bool replaced = false;
  {
    std::lock_guard lock(models_mutex_);
    for (const auto& [model, state] : models_) replaced |= state.spec.replicas > 0;
  }
  {
    std::lock_guard lock(mutex_);
    if (links_[server] != link) return;
    links_[server] = nullptr;
    // The replica must not get pushes that the server misses while others use it.
    if (replaced) suspected_servers_.fetch_or(uint64_t{1} << server & ~lives_.lost());
  }
  if (!replaced) {
    log_warning("worker ", options_.worker, " has lost server ", server, ": ", reason.message());
    return;
  }
  log_warning("worker ", options_.worker, " has lost server ", server,
              ", and asks the others whether they have, too: ", reason.message());
}

void Client::confirm_lost(uint32_t server, uint8_t life) {
  if (!is_lost(life) && lives_.advance(server, life)) drop(server);
  (void)heard_.learn(lives_.all());
  has_news_.store(true);
}

std::vector<uint32_t> Client::lost_for_all() {
  std::vector<uint32_t> servers;
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    if (has_server(lives_.lost(), server)) servers.push_back(server);
  }
  return servers;
}

std::vector<uint32_t> Client::returned() {
  const Lives used = lives_.all(), newest = heard_.all();
  std::vector<uint32_t> servers;
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    if (!is_lost(newest[server]) && newest[server] > used[server]) servers.push_back(server);
  }
  return servers;
}

// Up to the last loss: a server that has come back is used once connect() has been called.
void Client::learn(const Lives& told) {
  (void)heard_.learn(told);
  Lives losses = heard_.all();
  for (uint8_t& life : losses) life -= life > 0 && !is_lost(life) ? 1 : 0;
  const uint64_t news = lives_.learn(losses);
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    if (has_server(news, server)) drop(server);
  }
}

// It is lost for all.
void Client::drop(uint32_t server) {
  const uint64_t bit = uint64_t{1} << server;
  std::shared_ptr<ServerLink> link;
  bool was_used = false;
  {
    std::lock_guard lock(mutex_);
    link = std::exchange(links_[server], nullptr);
    was_used = (suspected_servers_.fetch_and(~bit) & bit) != 0 || link != nullptr;
  }
  if (!was_used) return;
  log_error(
      "worker ", options_.worker, " goes on without server ", server,
      ", which is lost, and with its replica; until it is back, another loss may end the job");
  if (link != nullptr) link->fail("this server was found lost");
}

void Client::disconnect(uint32_t server, const std::string& reason) {
  if (const auto to = link(server)) to->fail(reason);
}

std::vector<uint32_t> Client::lost() {
  std::vector<uint32_t> servers;
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    const std::shared_ptr<ServerLink> to = link(server);
    if (to == nullptr || !to->works()) servers.push_back(server);
  }
  return servers;
}

// The smallest sequence number of a push that may have to be repeated, or that a server may lack.
uint64_t Client::oldest_sequence() const {
  uint64_t sequence = std::min(next_sequence_, kept_.oldest_sequence());
  for (const auto& weak : unfinished_) {
    const OperationPtr operation = weak.lock();
    if (operation != nullptr && !operation->is_over() && operation->pushes()) {
      sequence = std::min(sequence, operation->first_sequence());
    }
  }
  return sequence;
}

void Client::retry(const OperationPtr& operation) {
  std::lock_guard starting(start_mutex_);
  operation->retry();
}

// The worker may give no command for long, and workers that come meanwhile ask the servers, which
// hear of a lost one by any command.
void Client::on_finished() {
  if (!has_news_.load()) return;
  std::lock_guard starting(start_mutex_);
  if (has_news_.exchange(false)) tell_news();
}

// With start_mutex_.
void Client::tell_news() { send_to_all(clock_command(CommandKind::news, 0, 0), false); }

// --- models ---

Status Client::add_model(uint32_t model, const ModelSpec& spec, uint64_t clock) {
  DMLCOMM_RETURN_IF_ERROR(check(spec));
  std::lock_guard starting(start_mutex_);
  ModelState state;
  state.spec = spec;
  state.clock = clock;
  for (uint32_t shard = 0; shard < spec.num_servers; ++shard) {
    state.pieces.push_back(pieces_of(spec, shard));
  }
  {
    std::lock_guard lock(models_mutex_);
    models_[model] = std::move(state);
  }
  send_to_all(clock_command(CommandKind::attach, model, clock), true);
  return Status();
}

Result<Client::ModelState*> Client::find(uint32_t model) {
  const auto it = models_.find(model);
  if (it != models_.end()) return &it->second;
  return Status(StatusCode::invalid_argument, "model number ", model,
                " is not known to this client; call init() first");
}

Result<uint64_t> Client::clock_of(uint32_t model) {
  std::lock_guard starting(start_mutex_);
  Result<ModelState*> state = find(model);
  if (!state.ok()) return state.status();
  return (*state)->clock;
}

uint8_t Client::send_command(const std::shared_ptr<ServerLink>& link, const Command& command,
                             bool answered,
                             std::function<void(const AnswerBytes&, const Status&)> done) {
  struct Memory {
    CommandBytes command;
    AnswerBytes answer;
  };
  auto memory = std::make_shared<Memory>();
  Command with_news = command;
  with_news.lives = lives_.all();
  const bool is_under_way = answered && command.kind != CommandKind::leave;
  if (is_under_way) with_news.track = link->enter(command.model, kUsualTrack);
  if (command.kind == CommandKind::clock) {
    const bool has_copies = models_.at(command.model).spec.replicas > 0;
    with_news.track = link->track_behind(command.model, has_copies);
  }
  if (command.kind == CommandKind::news) with_news.track = kNoTrack;
  memory->command = encode(with_news);
  if (answered) {
    link->answers(with_news.track)
        .add({{memory->answer.data(), kAnswerBytes},
              false,
              [memory, link, is_under_way, model = command.model,
               done = std::move(done)](const Status& status) {
                if (is_under_way) link->leave(model);
                done(memory->answer, status);
              },
              command.ticket});
  }
  link->commands().add({{memory->command.data(), kCommandBytes},
                        false,
                        [memory, link](const Status&) {},
                        command.ticket});
  return with_news.track;
}

void Client::send_to_all(const Command& command, bool answered) {
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    if (const auto to = link(server)) send_command(to, command, answered);
  }
}

void Client::clock() {
  std::lock_guard starting(start_mutex_);
  const uint64_t order = take_order();
  for (auto& [model, state] : models_) {
    closings_.push_back({order, model, ++state.clock});
    send_to_all(clock_command(CommandKind::clock, model, state.clock), false);
  }
}

// --- operations ---

bool Client::can_wait_inline(const CallOptions& options) const {
  return options.inline_wait && options_.num_servers == 1;
}

Client::OperationPtr Client::start(std::vector<Task> tasks, std::function<void()> finish,
                                   std::shared_ptr<void> memory, const OperationOptions& options) {
  auto operation =
      std::make_shared<ClientOperation>(static_cast<LinkDirectory&>(*this), std::move(tasks),
                                        std::move(finish), std::move(memory), options);
  if (!operation->empty()) unfinished_.push_back(operation);
  operation->start();
  return operation;
}

uint64_t Client::take_order() {
  forget_finished();
  return next_sequence_++;
}

void Client::forget_finished() {
  std::erase_if(unfinished_, [](const auto& weak) {
    const OperationPtr one = weak.lock();
    return one == nullptr || one->is_over();
  });
  uint64_t oldest = kept_.oldest_sequence();
  for (const auto& weak : unfinished_) {
    if (const OperationPtr one = weak.lock()) oldest = std::min(oldest, one->order());
  }
  while (!closings_.empty() && closings_.front().order < oldest) closings_.pop_front();
}

// The engine sees pieces, which are smaller than a huge page.
void Client::consider_huge_pages(const ModelSpec& spec, const Buffers& up, const Buffers& down) {
  huge_pages_.begin();
  for (const Buffers* buffers : {&up, &down}) {
    for (size_t space = 0; space < buffers->size(); ++space) {
      const size_t element_bytes = size_of(spec.spaces[space].dtype);
      for (const Extent& extent : (*buffers)[space]) {
        huge_pages_.consider({extent.data, extent.elements * element_bytes});
      }
    }
  }
}

Result<Client::OperationPtr> Client::start_pieces(CommandKind kind, uint32_t model, Buffers up,
                                                  Buffers down, int64_t staleness,
                                                  const CallOptions& options) {
  std::lock_guard starting(start_mutex_);
  Result<ModelState*> found = find(model);
  if (!found.ok()) return found.status();
  ModelState& state = **found;
  const uint64_t order = take_order();
  Command command;
  command.kind = kind;
  command.model = model;
  command.clock = state.clock;
  command.staleness = staleness;
  command.learning_rate = options.learning_rate;
  command.waits = options.inline_wait;
  command.ticket = options.ticket;
  const bool pushes = command.sends_pieces();
  if (pushes) {
    DMLCOMM_RETURN_IF_ERROR(check_buffers(state.spec, up, kind == CommandKind::set));
    command.unfinished = oldest_sequence();
    command.sequence = next_sequence_++;
  }
  if (command.pulls()) DMLCOMM_RETURN_IF_ERROR(check_buffers(state.spec, down, false));
  if (command.closes()) closings_.push_back({order, model, ++state.clock});
  if (uses_huge_pages_) consider_huge_pages(state.spec, up, down);
  auto staged = std::make_shared<StagedPieces>();
  staged->spec = state.spec;
  std::vector<Task> tasks;
  for (uint32_t shard = 0; shard < state.spec.num_servers; ++shard) {
    Task task;
    task.command = command;
    task.command.shard = shard;
    task.servers = holders(state.spec, shard);
    for (uint32_t server : task.servers) {
      task.ends_clock.push_back(command.closes() && shard == last_shard_of(state.spec, server));
    }
    task.pushes = pushes;
    task.pulls = command.pulls();
    const PieceMemory up_memory(staged->spec, shard, up);
    staged->down_memory.emplace_back(staged->spec, shard, down);
    staged->down.emplace_back();
    for (size_t i : chosen_pieces(kind, state.spec, state.pieces[shard])) {
      const Piece& piece = state.pieces[shard][i];
      if (pushes) {
        staged->up.push_back(up_memory.outgoing(piece));
        task.up.push_back(staged->up.back().memory);
      }
      if (task.pulls) {
        staged->down.back().emplace_back(piece, staged->down_memory.back().incoming(piece));
        task.down.push_back(staged->down.back().back().second.memory);
      }
    }
    tasks.push_back(std::move(task));
  }
  const auto finish = [raw = staged.get()] {
    for (size_t task = 0; task < raw->down.size(); ++task) {
      for (const auto& [piece, staged] : raw->down[task]) {
        raw->down_memory[task].take_in(piece, staged);
      }
    }
  };
  return start(std::move(tasks), finish, staged, {order, state.shift, can_wait_inline(options)});
}

Result<Client::OperationPtr> Client::start_rows(CommandKind kind, uint32_t model,
                                                const RowMemory& rows, int64_t staleness,
                                                const CallOptions& options) {
  std::lock_guard starting(start_mutex_);
  Result<ModelState*> found = find(model);
  if (!found.ok()) return found.status();
  ModelState& state = **found;
  const ModelSpec& spec = state.spec;
  const uint64_t order = take_order();
  DMLCOMM_RETURN_IF_ERROR(check_table(spec, rows.space));
  const Space& space = spec.spaces[rows.space];
  const size_t row_bytes = space.row_elements * size_of(space.wire);
  const bool pushes = kind == CommandKind::push_rows;
  auto batches = std::make_shared<std::vector<std::unique_ptr<RowBatch>>>();
  std::vector<RowBatch*> open(spec.num_servers);
  std::vector<Task> tasks;
  std::vector<uint32_t> shards;
  const uint64_t unfinished = oldest_sequence();  // all batches may be repeated
  for (uint64_t i = 0; i < rows.num_rows; ++i) {
    const int64_t number = rows.numbers[i];
    if (number < 0 || static_cast<uint64_t>(number) >= space.num_rows()) {
      return Status(StatusCode::invalid_argument, "row ", number, " of a table of ",
                    space.num_rows(), " rows in model '", spec.name, "'");
    }
    const auto shard = static_cast<uint32_t>(static_cast<uint64_t>(number) % spec.num_servers);
    if (open[shard] == nullptr || open[shard]->numbers.size() == max_rows(row_bytes)) {
      batches->push_back(std::make_unique<RowBatch>());
      open[shard] = batches->back().get();
      shards.push_back(shard);
    }
    open[shard]->numbers.push_back(number);
    open[shard]->places.push_back(i);
  }
  for (size_t i = 0; i < batches->size(); ++i) {
    RowBatch& batch = *(*batches)[i];
    batch.values.resize(batch.numbers.size() * row_bytes);
    for (size_t row = 0; pushes && row < batch.places.size(); ++row) {
      std::copy_n(rows.values + batch.places[row] * row_bytes, row_bytes,
                  batch.values.data() + row * row_bytes);
    }
    Task task;
    task.command.kind = kind;
    task.command.model = model;
    task.command.shard = shards[i];
    task.command.space = rows.space;
    task.command.clock = state.clock;
    task.command.staleness = staleness;
    task.command.num_rows = batch.numbers.size();
    task.command.learning_rate = options.learning_rate;
    task.command.ticket = options.ticket;
    task.command.unfinished = unfinished;
    task.command.sequence = pushes ? next_sequence_++ : 0;
    task.servers = holders(spec, shards[i]);
    task.ends_clock.assign(task.servers.size(), false);
    task.pushes = pushes;
    task.pulls = !pushes;
    task.up.push_back({batch.numbers.data(), batch.numbers.size() * sizeof(int64_t)});
    (pushes ? task.up : task.down).push_back({batch.values.data(), batch.values.size()});
    tasks.push_back(std::move(task));
  }
  const auto finish = [raw = batches.get(), row_bytes, values = rows.values, pushes] {
    for (const auto& batch : *raw) {
      for (size_t row = 0; !pushes && row < batch->places.size(); ++row) {
        std::copy_n(batch->values.data() + row * row_bytes, row_bytes,
                    values + batch->places[row] * row_bytes);
      }
    }
  };
  return start(std::move(tasks), finish, batches, {order, state.shift, can_wait_inline(options)});
}

std::vector<std::vector<transport::RailCounters>> Client::rails() {
  std::vector<std::vector<transport::RailCounters>> all;
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    const auto of = link(server);
    all.push_back(of == nullptr ? std::vector<transport::RailCounters>() : of->rails());
  }
  return all;
}

void Client::close() {
  struct Farewell {
    std::atomic<size_t> num_missing{0};
    EventCount answered;
  };
  auto farewell = std::make_shared<Farewell>();
  std::vector<std::shared_ptr<ServerLink>> links;
  {
    std::lock_guard lock(mutex_);
    links.swap(links_);
    links_.resize(options_.num_servers);
  }
  Command leave;
  {
    std::lock_guard starting(start_mutex_);
    leave = clock_command(CommandKind::leave, 0, 0);
  }
  for (const auto& link : links) {
    if (link == nullptr || !link->works()) continue;
    ++farewell->num_missing;
    send_command(link, leave, true, [farewell](const AnswerBytes&, const Status&) {
      --farewell->num_missing;
      farewell->answered.signal();
    });
  }
  (void)farewell->answered.wait_until(Deadline::after_s(kLeaveTimeoutS),
                                      [&] { return farewell->num_missing.load() == 0; });
  for (const auto& link : links) {
    if (link != nullptr) link->close();
  }
}

}  // namespace dmlcomm::ps
