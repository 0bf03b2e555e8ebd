#include "ps/session.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/exceptions.h"

namespace dmlcomm::ps {
namespace {

// Pieces of one worker that are on their way at once, in either direction: enough to hide the round
// trip of asking and granting, few enough to stay in the cache.
constexpr size_t kPiecesInFlight = 8;
// A thread that waits for an event checks this often whether the worker still lives.
constexpr std::chrono::milliseconds kLookAtWorker{250};
constexpr std::chrono::milliseconds kNoLimit{0};  // the connection itself ends a wait
// After so long with a command a thread lets another one read on: much longer than a wake-up. If
// its thread in the worker waits, few others give commands meanwhile, and two threads of one
// connection hinder each other.
constexpr std::chrono::milliseconds kLongCommand{1};
constexpr std::chrono::milliseconds kLongAwaitedCommand{20};
// Of one track that wait here: beyond them nothing is read. They take 200 bytes each.
constexpr size_t kMaxCommands = 1024;

engine::OpOptions patient(uint8_t ticket = kDefaultTicket) {
  return {.timeout = kForever, .inline_wait = true, .element = std::nullopt, .ticket = ticket};
}

size_t largest_wire_piece(const ModelSpec& spec, const Shard& shard) {
  size_t bytes = 0;
  for (const Piece& piece : shard.pieces()) bytes = std::max(bytes, piece.wire_bytes(spec));
  return bytes;
}

Rows rows_of(const Command& command, const std::vector<int64_t>& numbers) {
  return {command.space, numbers.data(), numbers.size()};
}

bool is_one_piece(const Command& command, const Model& model) {
  const std::vector<Piece>& pieces = model.shard(command.shard)->pieces();
  return chosen_pieces(command.kind, model.spec(), pieces).size() == 1;
}

Push push_of(const Command& command, uint32_t worker) {
  return {.worker = worker,
          .clock = command.clock,
          .sequence = command.sequence,
          .unfinished = command.unfinished,
          .closes = command.closes(),
          .learning_rate = command.learning_rate};
}

}  // namespace

Session::Session(uint32_t worker, std::shared_ptr<engine::Communicator> communicator,
                 SessionHost& host)
    : worker_(worker), communicator_(std::move(communicator)), host_(host) {}

Status Session::start() {
  Track& usual = tracks_[kUsualTrack];
  Status status = start_thread(&usual.answerer, [this, &usual] { answer_loop(usual); });
  if (status.ok()) {
    std::lock_guard lock(mutex_);
    status = start_receiver();
  }
  if (!status.ok()) fail(status);
  return status;
}

// With mutex_.
Status Session::start_receiver() {
  const Status status = start_thread(&receivers_.emplace_back(), [this] { receive_loop(); });
  if (status.ok()) {
    ++num_receiving_;
    ++num_spare_;
  } else {
    receivers_.pop_back();
  }
  return status;
}

void Session::stop() {
  fail(Status(StatusCode::aborted, "the session was closed"));
  join();
}

void Session::close() {
  end(Status(StatusCode::aborted, "the session was closed"));
  communicator_->close();
  join();
}

void Session::join() {
  std::call_once(joined_, [this] {
    const auto end = [](std::thread& thread) {
      if (thread.joinable()) thread.join();
    };
    std::for_each(receivers_.begin(), receivers_.end(), end);
    for (Track& track : tracks_) end(track.answerer);
  });
}

Session::~Session() {
  close();
  if (!communicator_->has_writer()) return;
  for (Track& track : tracks_) {
    for (Incoming& piece : track.incoming) (void)piece.buffer.release();
  }
  for (Merged& merged : merged_) (void)merged.piece.buffer.release();
}

void Session::give_up(const std::string& reason) {
  if (reason.empty()) end(Status());  // before the connection fails
  fail(Status(StatusCode::aborted, reason.empty() ? "the worker has left" : reason));
}

void Session::end_but_count(const std::string& reason) {
  counts_on_.store(true);
  fail(Status(StatusCode::aborted, reason));
}

Status Session::reason() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

size_t Session::num_queued() const {
  std::lock_guard lock(mutex_);
  size_t num = 0;
  for (const Track& track : tracks_) num += track.replies.size() + (track.answering ? 1 : 0);
  return num;
}

void Session::fail(const Status& reason) {
  insist([&] {
    communicator_->abort(reason.message());
    end(reason);
  });
}

void Session::end(const Status& reason) {
  {
    std::lock_guard lock(mutex_);
    if (ended()) return;
    reason_ = reason;
    ended_.store(true);
  }
  may_read_.notify_all();
  has_room_.notify_all();
  for (Track& track : tracks_) track.has_replies.notify_all();
  host_.events().signal();
}

// --- receiving ---

void Session::receive_loop() {
  while (!ended()) {
    const Status status = without_exceptions([this] { return serve_next(); });
    if (!status.ok()) fail(status);
  }
  {
    std::lock_guard lock(mutex_);
    if (--num_receiving_ > 0) return;  // nothing comes from this worker after the last one
  }
  // Others wait for the clock of this worker.
  insist([this] {
    if (!is_proxy(worker_) && !counts_on_.load()) host_.drop_worker(worker_);
  });
  insist([this] { host_.on_session_ended(worker_, reason()); });
}

Status Session::serve_next() {
  if (!begin_reading()) return Status();
  next_ = communicator_->recv({command_.data(), command_.size()}, kWorkerRank, kCommand, patient());
  DMLCOMM_RETURN_IF_ERROR(finish_merged(next_));
  DMLCOMM_RETURN_IF_ERROR(std::exchange(next_, nullptr)->wait(kNoLimit));
  read_ns_ = now_ns();
  const Result<Command> command = decode_command(command_);
  return command.ok() ? give(*command) : command.status();
}

// Waits until no other thread reads commands. False: the session has ended.
bool Session::begin_reading() {
  std::unique_lock lock(mutex_);
  if (reader_ == std::this_thread::get_id()) return !ended();
  may_read_.wait(lock, [&] { return ended() || reader_ == std::thread::id(); });
  --num_spare_;
  reader_ = std::this_thread::get_id();
  return !ended();
}

// To be called now and then while a command is carried out: if that takes long another thread reads
// on. Returns when to call it again; kNoLimit: not for this command. Where there can be no further
// thread commands wait, and those of proxies do. Those at a proxy are on one track.
std::chrono::milliseconds Session::share_reading() {
  if (is_proxy(worker_) || host_.upstream() != nullptr) return kNoLimit;
  std::lock_guard lock(mutex_);
  if (ended() || keeps_reading_ || reader_ != std::this_thread::get_id()) return kNoLimit;
  const auto patience = is_awaited_ ? kLongAwaitedCommand : kLongCommand;
  const std::chrono::nanoseconds passed(now_ns() - read_ns_);
  if (passed < patience) return std::chrono::ceil<std::chrono::milliseconds>(patience - passed);
  if (num_spare_ == 0 && !start_receiver().ok()) return kNoLimit;
  reader_ = std::thread::id();
  may_read_.notify_one();
  return kNoLimit;
}

// Carries it out, or leaves it to the thread that carries out earlier ones of its track.
Status Session::give(const Command& command) {
  std::unique_lock lock(mutex_);
  keeps_reading_ = command.kind == CommandKind::leave;
  is_awaited_ = command.waits;
  if (command.kind == CommandKind::leave) {
    has_room_.wait(lock, [&] { return ended() || std::ranges::none_of(tracks_, &Track::is_busy); });
    lock.unlock();
    return ended() ? Status() : carry_out(command);
  }
  Track* track = command.track == kNoTrack ? nullptr : &tracks_[command.track];
  if (track != nullptr && may_pass(command, track->commands)) {
    lock.unlock();  // models are asked without it
    const std::shared_ptr<Model> model = host_.find_model(command.model);
    const bool needs_nobody = model != nullptr && model->has_all(command.needed());
    if (needs_nobody && !is_elsewhere(command)) track = nullptr;
    lock.lock();
  }
  if (track == nullptr) {
    keeps_reading_ = true;  // the next command may be of the same model
    lock.unlock();
    return carry_out(command);
  }
  has_room_.wait(lock, [&] { return ended() || track->commands.size() < kMaxCommands; });
  track->commands.push_back(command);
  if (track->commands.size() > 1) return Status();
  lock.unlock();
  return carry_out_all(*track, command);
}

// A pull may pass pushes of its track. Answers leave in their order: so one that waits for other
// workers would keep the answer to the push from its worker, for which they in turn may wait.
bool Session::may_pass(const Command& pull, const std::deque<Command>& commands) {
  return pull.kind == CommandKind::pull && !commands.empty() &&
         std::all_of(commands.begin(), commands.end(), [&](const Command& push) {
           const bool comes_in =
               push.kind == CommandKind::push || push.kind == CommandKind::push_close;
           return comes_in && pull.ticket < push.ticket && pull.model != push.model;
         });
}

// Until none is left; `command` is the first.
Status Session::carry_out_all(Track& track, Command command) {
  for (;;) {
    DMLCOMM_RETURN_IF_ERROR(wait_until([&]() -> Result<bool> { return !is_elsewhere(command); }));
    DMLCOMM_RETURN_IF_ERROR(carry_out(command));
    std::lock_guard lock(mutex_);
    track.commands.pop_front();
    has_room_.notify_one();
    if (std::ranges::count_if(tracks_, &Track::is_busy) > track.is_busy()) {
      host_.events().signal();  // for is_elsewhere()
    }
    if (track.commands.empty()) {
      if (reader_ != std::this_thread::get_id()) ++num_spare_;
      return Status();
    }
    command = track.commands.front();
  }
}

// Whether another track has an earlier command of its model: one that has been answered and is
// about to end, or the end of a clock. That itself only follows those of its track: as it is not
// answered, there may be later ones elsewhere.
bool Session::is_elsewhere(const Command& command) const {
  if (command.kind == CommandKind::clock || command.kind == CommandKind::news) return false;
  std::lock_guard lock(mutex_);
  return std::any_of(tracks_.begin(), tracks_.end(), [&](const Track& track) {
    return &track != &tracks_[command.track] &&
           std::any_of(track.commands.begin(), track.commands.end(),
                       [&](const Command& other) { return other.model == command.model; });
  });
}

Result<std::shared_ptr<Model>> Session::model_for(const Command& command) {
  std::shared_ptr<Model> model = host_.find_model(command.model);
  if (model == nullptr) {
    return Status(StatusCode::invalid_argument, "this server has no model number ", command.model,
                  "; has it been restarted without a checkpoint?");
  }
  const bool of_model = command.kind == CommandKind::attach || command.kind == CommandKind::clock;
  if (!of_model && model->shard(command.shard) == nullptr) {
    return Status(StatusCode::protocol_error, "shard ", command.shard, " of model '",
                  model->spec().name, "' is not here");
  }
  return model;
}

Status Session::carry_out(const Command& command) {
  DMLCOMM_RETURN_IF_ERROR(note_lives(command));
  if (command.kind == CommandKind::news) return Status();
  if (command.kind == CommandKind::drop || command.kind == CommandKind::merged) {
    return carry_out_for(command);
  }
  DMLCOMM_RETURN_IF_ERROR(finish_merged(nullptr));
  if (command.kind == CommandKind::leave) {
    bool ready = false;
    host_.forget_pushes(worker_, command.unfinished);
    const Status status = send_answer({command, nullptr, {}}, &ready, Mode::alone);
    end(Status());
    return status;
  }
  DMLCOMM_RETURN_IF_ERROR(wait_until([&]() -> Result<bool> {
    DMLCOMM_RETURN_IF_ERROR(host_.fenced());
    return !host_.is_filling();
  }));
  // A worker that connects again while it creates a model may name it before it is made here; then
  // the creation counts the worker in.
  if (command.kind == CommandKind::attach && host_.upstream() == nullptr &&
      host_.find_model(command.model) == nullptr) {
    reply({command, nullptr, {}});
    return Status();
  }
  Result<std::shared_ptr<Model>> found = model_for(command);
  if (!found.ok()) return found.status();
  const std::shared_ptr<Model>& model = *found;
  switch (command.kind) {
    case CommandKind::attach:
      if (is_proxy(worker_)) {
        attached_[command.model][command.worker] = command.clock;
        host_.take_in(command.worker);
      }
      model->attach(is_proxy(worker_) ? command.worker : worker_, command.clock, command.sequence);
      reply({command, model, {}});
      return Status();
    case CommandKind::clock:
      DMLCOMM_RETURN_IF_ERROR(wait_for_exact_pulls(command.model));
      model->forget_pushes(worker_, command.unfinished);
      advance_clock(*model, command.clock);
      return Status();
    case CommandKind::set:
      DMLCOMM_RETURN_IF_ERROR(take_pieces(command, model));
      DMLCOMM_RETURN_IF_ERROR(pass_values_up(command, model));
      reply({command, model, {}});
      return Status();
    case CommandKind::push:
    case CommandKind::push_close:
    case CommandKind::push_pull: return take_push(command, model);
    case CommandKind::confirm: reply({command, model, {}}); return Status();
    case CommandKind::pull: reply({command, model, {}}, command.waits); return Status();
    case CommandKind::push_rows:
    case CommandKind::pull_rows: return take_rows(command, model);
    case CommandKind::merged:
    case CommandKind::drop:
    case CommandKind::news:
    case CommandKind::leave: break;
  }
  return Status();
}

Status Session::note_lives(const Command& command) {
  (void)host_.learn_lives(command.lives);
  DMLCOMM_RETURN_IF_ERROR(host_.fenced());
  DMLCOMM_RETURN_IF_ERROR(host_.expect_life(command.lives));
  begun_.store(true);
  return Status();
}

// What only proxies send. Their pushes are received while earlier ones are still on their way.
Status Session::carry_out_for(const Command& command) {
  if (!is_proxy(worker_)) {
    return Status(StatusCode::protocol_error, "worker ", worker_, " sends a command of proxies");
  }
  if (command.kind == CommandKind::merged) {
    Result<std::shared_ptr<Model>> model = model_for(command);
    if (!model.ok()) return model.status();
    DMLCOMM_RETURN_IF_ERROR(begin_merged(command, *model));
    // Nothing else of such a model is on its way.
    return is_one_piece(command, **model) ? finish_merged(nullptr) : Status();
  }
  DMLCOMM_RETURN_IF_ERROR(finish_merged(nullptr));
  bool is_known = !host_.has_session(command.worker);
  for (auto& [model, workers] : attached_) is_known |= workers.erase(command.worker) > 0;
  if (is_known) host_.drop_worker(command.worker);
  return Status();
}

Status Session::begin_merged(const Command& command, std::shared_ptr<Model> model) {
  const std::vector<Piece>& pieces = model->shard(command.shard)->pieces();
  if (command.piece >= pieces.size() ||
      model->spec().spaces[pieces[command.piece].space].sparse()) {
    return Status(StatusCode::protocol_error, "piece ", command.piece, " of shard ", command.shard,
                  " of model '", model->spec().name, "' is none that a proxy may push");
  }
  counters_.pushes.fetch_add(1);
  const size_t bytes = pieces[command.piece].wire_bytes(model->spec());
  counters_.bytes_in.fetch_add(bytes);
  Merged& merged = merged_.emplace_back(Merged{command, {model, model->take_buffer(), nullptr}});
  merged.piece.op =
      communicator_->recv({merged.piece.buffer.get(), bytes}, kWorkerRank, kUp, patient());
  return Status();
}

// Takes pushes that have been begun: all of them, or until the next command is there.
Status Session::finish_merged(const engine::OperationPtr& next_command) {
  while (!merged_.empty()) {
    const bool may_go_on = next_command != nullptr && next_command->done();
    if (may_go_on && merged_.size() < kPiecesInFlight) return Status();
    Merged& oldest = merged_.front();
    const Command& command = oldest.command;
    DMLCOMM_RETURN_IF_ERROR(oldest.piece.op->wait(kNoLimit));
    Push push = push_of(command, worker_);
    push.closes = true;
    push.merged = &attached_[command.model];
    push.num_pushes = command.num_pushes;
    DMLCOMM_RETURN_IF_ERROR(wait_until([&] {
      return oldest.piece.model->push(command.shard, command.piece, push, oldest.piece.buffer);
    }));
    end_clocks(command, *oldest.piece.model);
    reply({command, oldest.piece.model, {}});
    merged_.pop_front();
  }
  return Status();
}

// The clock of a proxy's workers ends with its last piece.
void Session::end_clocks(const Command& command, Model& model) {
  const auto place = std::make_pair(command.model, command.clock);
  const size_t num_pieces =
      chosen_pieces(command.kind, model.spec(), model.shard(command.shard)->pieces()).size();
  if (++pieces_taken_[place] < num_pieces) return;
  pieces_taken_.erase(place);
  model.tick_all(attached_[command.model], command.clock + 1);
}

// First values are acknowledged once the server has them.
Status Session::pass_values_up(const Command& command, const std::shared_ptr<Model>& model) {
  Upstream* upstream = model->options().upstream;
  if (upstream == nullptr) return Status();
  const auto is_there = upstream->set(model, command.shard);
  return wait_until([&]() -> Result<bool> {
    DMLCOMM_RETURN_IF_ERROR(upstream->error());
    return is_there->load();
  });
}

// Commands that are repeated after a lost connection do not turn the clock back, nor do those that
// another thread carries out meanwhile.
void Session::advance_clock(Model& model, uint64_t clock) {
  std::lock_guard lock(clocks_mutex_);
  if (model.clocks().get(worker_) < clock) model.tick(worker_, clock);
}

Status Session::take_push(const Command& command, const std::shared_ptr<Model>& model) {
  DMLCOMM_RETURN_IF_ERROR(wait_for_exact_pulls(command.model));
  counters_.pushes.fetch_add(1);
  // An exact pull waits for the push itself, piece by piece.
  const bool early = command.kind == CommandKind::push_pull && command.staleness == 0 &&
                     !is_one_piece(command, *model);
  if (early) reply({command, model, {}});
  DMLCOMM_RETURN_IF_ERROR(take_pieces(command, model));
  if (command.ends_clock) advance_clock(*model, command.clock + 1);
  if (!early) reply({command, model, {}}, command.waits && command.pulls());
  if (host_.upstream() != nullptr) host_.upstream()->wake();
  return Status();
}

// Receives some pieces ahead, and works on them in order.
Status Session::take_pieces(const Command& command, const std::shared_ptr<Model>& model) {
  const std::vector<size_t> chosen =
      chosen_pieces(command.kind, model->spec(), model->shard(command.shard)->pieces());
  const Shard& shard = *model->shard(command.shard);
  std::deque<Incoming>& incoming = tracks_[command.track].incoming;
  size_t posted = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    for (; posted < std::min(i + kPiecesInFlight, chosen.size()); ++posted) {
      const size_t bytes = shard.pieces()[chosen[posted]].wire_bytes(model->spec());
      Incoming& next = incoming.emplace_back(Incoming{model, model->take_buffer(), nullptr});
      next.op = communicator_->recv({next.buffer.get(), bytes}, kWorkerRank,
                                    tag_of(kUp, command.track), patient());
    }
    Incoming& oldest = incoming.front();
    DMLCOMM_RETURN_IF_ERROR(wait_for(*oldest.op));
    counters_.bytes_in.fetch_add(shard.pieces()[chosen[i]].wire_bytes(model->spec()));
    DMLCOMM_RETURN_IF_ERROR(take_piece(command, *model, chosen[i], oldest.buffer));
    incoming.pop_front();
  }
  return Status();
}

Status Session::take_piece(const Command& command, Model& model, size_t piece,
                           BufferPool::Buffer& wire) {
  if (command.kind == CommandKind::set) {
    model.set(command.shard, piece, wire.get());
    return Status();
  }
  Push push = push_of(command, worker_);
  push.is_awaited = command.waits && command.pulls() && is_one_piece(command, model);
  return wait_until([&] { return model.push(command.shard, piece, push, wire); });
}

Status Session::wait_for(engine::Operation& op) {
  (void)op.wait(share_reading());
  (void)share_reading();
  return op.wait(kNoLimit);
}

Status Session::take_rows(const Command& command, const std::shared_ptr<Model>& model) {
  const bool pushes = command.kind == CommandKind::push_rows;
  const auto& spaces = model->spec().spaces;
  if (command.space >= spaces.size() || !spaces[command.space].sparse() ||
      command.num_rows > max_rows(model->shard(command.shard)->wire_row_bytes(command.space))) {
    return Status(StatusCode::protocol_error, command.num_rows, " rows of space ", command.space,
                  " of model '", model->spec().name, "' make no sense");
  }
  if (pushes) DMLCOMM_RETURN_IF_ERROR(wait_for_exact_pulls(command.model));
  std::vector<int64_t> numbers(command.num_rows);
  DMLCOMM_RETURN_IF_ERROR(receive(command, numbers.data(), numbers.size() * sizeof(int64_t)));
  DMLCOMM_RETURN_IF_ERROR(model->check_rows(command.shard, rows_of(command, numbers)));
  if (pushes) {
    counters_.pushes.fetch_add(1);
    const size_t bytes =
        numbers.size() * model->shard(command.shard)->wire_row_bytes(command.space);
    std::vector<std::byte>& incoming = tracks_[command.track].incoming_rows;
    if (incoming.size() < bytes) incoming.resize(bytes);
    DMLCOMM_RETURN_IF_ERROR(receive(command, incoming.data(), bytes));
    const Push push = push_of(command, worker_);
    DMLCOMM_RETURN_IF_ERROR(wait_until([&] {
      return model->push_rows(command.shard, push, rows_of(command, numbers), incoming.data());
    }));
  }
  reply({command, model, std::move(numbers)});
  return Status();
}

Status Session::receive(const Command& command, void* data, size_t bytes) {
  const auto op =
      communicator_->recv({data, bytes}, kWorkerRank, tag_of(kUp, command.track), patient());
  DMLCOMM_RETURN_IF_ERROR(wait_for(*op));
  counters_.bytes_in.fetch_add(bytes);
  return Status();
}

// Tries again after every event until it works or the session ends. Now and then it looks whether
// the worker still lives: while the receiving thread waits here, no message tells.
template <typename Try>
Status Session::wait_until(Try attempt, bool helps) {
  for (;;) {
    const uint64_t epoch = host_.events().epoch();
    // A worker that has left in good order waits for nothing: what it asked for is not there.
    if (ended()) return Status(StatusCode::aborted, "the session has ended");
    DMLCOMM_RETURN_IF_ERROR(communicator_->error());
    const Result<bool> done = attempt();
    if (!done.ok()) return done.status();
    if (*done) return Status();
    if (helps && host_.upstream() != nullptr && host_.upstream()->help(kLookAtWorker)) continue;
    const std::chrono::milliseconds limit = share_reading();
    (void)host_.events().wait_past(epoch, limit == kNoLimit ? kLookAtWorker : limit);
  }
}

Status Session::wait_for_exact_pulls(uint32_t model) {
  return wait_until([&]() -> Result<bool> {
    std::lock_guard lock(mutex_);
    return !exact_pulls_.contains(model);
  });
}

// --- answering ---

// `nothing_follows`: the worker gives no other command before it has the answer.
void Session::reply(Reply reply, bool nothing_follows) {
  if (reply.command.pulls()) {
    counters_.pulls.fetch_add(1);
    if (host_.upstream() != nullptr) reply.model->note_pull(reply.command.needed());
  }
  Track& track = tracks_[reply.command.track];
  std::unique_lock lock(mutex_);
  if (reply.command.is_exact()) exact_pulls_.insert(reply.command.model);
  const bool at_once = track.replies.empty() && !track.answering;
  bool ready = false;
  if (at_once) {
    track.answering = true;
    lock.unlock();
    const Status status = answer(reply, &ready, nothing_follows ? Mode::alone : Mode::try_once);
    if (!status.ok()) fail(status);
    if (ready) finish(reply);
    lock.lock();
    track.answering = false;
  }
  // Others may have come meanwhile.
  if (!ready) {
    track.replies.insert(at_once ? track.replies.begin() : track.replies.end(), std::move(reply));
  }
  if (track.replies.empty() || ended()) return;
  Status status;
  if (!track.answerer.joinable()) {
    status = start_thread(&track.answerer, [this, &track] { answer_loop(track); });
  }
  lock.unlock();
  track.has_replies.notify_one();
  if (!status.ok()) fail(status);
}

void Session::answer_loop(Track& track) {
  std::unique_lock lock(mutex_);
  for (;;) {
    track.has_replies.wait(lock,
                           [&] { return ended() || (!track.replies.empty() && !track.answering); });
    if (ended()) return;
    Reply reply = std::move(track.replies.front());
    track.replies.pop_front();
    track.answering = true;
    lock.unlock();
    bool ready = false;
    const Status status =
        without_exceptions([&] { return answer(reply, &ready, Mode::beside_receiver); });
    if (!status.ok() && !ended()) fail(status);
    finish(reply);
    lock.lock();
    track.answering = false;
  }
}

void Session::finish(const Reply& reply) {
  if (!reply.command.is_exact()) return;
  {
    std::lock_guard lock(mutex_);
    exact_pulls_.erase(exact_pulls_.find(reply.command.model));
  }
  host_.events().signal();
}

Status Session::answer(const Reply& reply, bool* ready, Mode mode) {
  if (reply.command.kind != CommandKind::merged) {
    DMLCOMM_RETURN_IF_ERROR(wait_for_sent(tracks_[reply.command.track], 0));
  }
  switch (reply.command.kind) {
    case CommandKind::pull:
    case CommandKind::push_pull: return send_pieces(reply, ready, mode);
    case CommandKind::merged: return send_merged(reply, ready, mode);
    case CommandKind::pull_rows: return send_rows(reply, ready, mode);
    default: return send_answer(reply, ready, mode);
  }
}

// Whether the attempt has worked; false only where nothing may be waited for.
template <typename Try>
Result<bool> Session::try_in(Mode mode, Try attempt) {
  if (mode == Mode::try_once) return attempt();
  DMLCOMM_RETURN_IF_ERROR(wait_until(attempt, mode == Mode::alone));
  return true;
}

Status Session::send_pieces(const Reply& reply, bool* ready, Mode mode) {
  Model& model = *reply.model;
  const std::vector<size_t> chosen =
      chosen_pieces(reply.command.kind, model.spec(), model.shard(reply.command.shard)->pieces());
  if (mode == Mode::try_once && chosen.size() > 1) return Status();
  const Shard& shard = *model.shard(reply.command.shard);
  const size_t slot_bytes = largest_wire_piece(model.spec(), shard);
  const size_t num_slots = std::min(kPiecesInFlight, chosen.size());
  // A proxy adds what is on its way up there itself.
  const uint64_t own_before =
      reply.command.is_exact() || is_proxy(worker_) ? 0 : reply.command.next_clock();
  std::deque<engine::OperationPtr> ops;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (ops.size() == num_slots) {
      DMLCOMM_RETURN_IF_ERROR(wait_for(*ops.front()));
      ops.pop_front();
    }
    const Piece& piece = shard.pieces()[chosen[i]];
    const bool in_place = reply.command.is_exact() && model.can_send_in_place(piece);
    std::byte* scratch = nullptr;
    if (!in_place) {
      Track& track = tracks_[reply.command.track];
      scratch = scratch_of(track, slot_bytes * num_slots) + i % num_slots * slot_bytes;
    }
    const std::byte* data = nullptr;
    const auto attempt = [&] {
      return model.pull(reply.command.shard, chosen[i], reply.command.needed(), in_place, scratch,
                        &data, own_before);
    };
    const Result<bool> done = try_in(mode, attempt);
    if (!done.ok()) return done.status();
    if (!*done) return Status();
    const size_t bytes = piece.wire_bytes(model.spec());
    counters_.bytes_out.fetch_add(bytes);
    engine::OpOptions options = patient(reply.command.ticket);
    options.inline_wait = mode != Mode::beside_receiver || i + 1 == chosen.size();
    ops.push_back(communicator_->send({data, bytes}, kWorkerRank,
                                      tag_of(kDown, reply.command.track), options));
  }
  *ready = true;
  for (const engine::OperationPtr& op : ops) {
    DMLCOMM_RETURN_IF_ERROR(wait_for(*op));
  }
  return Status();
}

// The piece, once all workers have closed the clock. It does not change before the proxy has it and
// pushes again. Several are on their way at a time: each has memory of its own if it is converted.
Status Session::send_merged(const Reply& reply, bool* ready, Mode mode) {
  Model& model = *reply.model;
  const Command& command = reply.command;
  const Shard& shard = *model.shard(command.shard);
  const Piece& piece = shard.pieces()[command.piece];
  const bool in_place = model.can_send_in_place(piece);
  std::byte* scratch = nullptr;
  Track& track = tracks_[command.track];
  if (!in_place) {
    DMLCOMM_RETURN_IF_ERROR(wait_for_sent(track, 0));
    scratch = scratch_of(track, piece.wire_bytes(model.spec()));
  }
  const std::byte* data = nullptr;
  const Result<bool> done = try_in(mode, [&] {
    return model.pull(command.shard, command.piece, command.needed(), in_place, scratch, &data);
  });
  if (!done.ok()) return done.status();
  if (!*done) return Status();
  *ready = true;
  const size_t bytes = piece.wire_bytes(model.spec());
  counters_.bytes_out.fetch_add(bytes);
  engine::OpOptions options = patient(command.ticket);
  options.inline_wait = mode == Mode::try_once;  // the receiving thread goes on to receive
  track.sending.push_back(
      communicator_->send({data, bytes}, kWorkerRank, tag_of(kDown, command.track), options));
  return wait_for_sent(track, kPiecesInFlight);
}

// Until at most `left` answers to a proxy are on their way.
Status Session::wait_for_sent(Track& track, size_t left) {
  while (track.sending.size() > left) {
    DMLCOMM_RETURN_IF_ERROR(track.sending.front()->wait(kNoLimit));
    track.sending.pop_front();
  }
  return Status();
}

std::byte* Session::scratch_of(Track& track, size_t bytes) {
  if (track.outgoing.size() < bytes) track.outgoing.resize(bytes);
  return track.outgoing.data();
}

Status Session::send_rows(const Reply& reply, bool* ready, Mode mode) {
  const Command& command = reply.command;
  const size_t bytes =
      reply.rows.size() * reply.model->shard(command.shard)->wire_row_bytes(command.space);
  std::byte* values = scratch_of(tracks_[command.track], bytes);
  const auto attempt = [&] {
    return reply.model->pull_rows(command.shard, command.needed(), rows_of(command, reply.rows),
                                  values);
  };
  const Result<bool> done = try_in(mode, attempt);
  if (!done.ok()) return done.status();
  if (!*done) return Status();
  *ready = true;
  counters_.bytes_out.fetch_add(bytes);
  return send(command, values, bytes, kDown);
}

// Those who push through a proxy are told what is safe: a proxy may be lost with all that it has.
Status Session::send_answer(const Reply& reply, bool* ready, Mode mode) {
  const Command& command = reply.command;
  Answer answer;
  const bool tells_version = reply.model != nullptr && reply.model->options().upstream != nullptr &&
                             (command.sends_pieces() || command.kind == CommandKind::confirm);
  if (tells_version) {
    const Result<bool> done = try_in(mode, [&]() -> Result<bool> {
      answer.version = reply.model->version();
      return answer.version >= command.needed();
    });
    if (!done.ok()) return done.status();
    if (!*done) return Status();
  }
  *ready = true;
  answer.sequence = command.kind == CommandKind::attach ? command.clock : command.sequence;
  answer.lives = host_.learn_lives({});
  const AnswerBytes bytes = encode(answer);
  return send(command, bytes.data(), bytes.size(), kAnswer);
}

Status Session::send(const Command& command, const void* data, size_t bytes, uint32_t tag) {
  return wait_for(*communicator_->send({data, bytes}, kWorkerRank, tag_of(tag, command.track),
                                       patient(command.ticket)));
}

}  // namespace dmlcomm::ps
