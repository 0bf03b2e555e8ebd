#include "ps/session.h"

#include <algorithm>
#include <utility>

namespace dmlcomm::ps {
namespace {

// Pieces of one worker that are on their way at once, in either direction: enough to hide the round
// trip of asking and granting, few enough to stay in the cache.
constexpr size_t kPiecesInFlight = 8;
// A thread that waits for an event checks this often whether the worker still lives.
constexpr std::chrono::milliseconds kLookAtWorker{250};
constexpr std::chrono::milliseconds kNoLimit{0};  // the connection itself ends a wait

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
    : worker_(worker), communicator_(std::move(communicator)), host_(host) {
  receiver_ = std::thread([this] { receive_loop(); });
  answerer_ = std::thread([this] { answer_loop(); });
}

Session::~Session() {
  end(Status(StatusCode::aborted, "the session was closed"));
  communicator_->close();
  receiver_.join();
  answerer_.join();
  if (!communicator_->has_writer()) return;
  for (Incoming& piece : incoming_) (void)piece.buffer.release();
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
  return replies_.size() + (answering_ ? 1 : 0);
}

void Session::fail(const Status& reason) {
  communicator_->abort(reason.message());
  end(reason);
}

void Session::end(const Status& reason) {
  {
    std::lock_guard lock(mutex_);
    if (ended_.exchange(true)) return;
    reason_ = reason;
  }
  has_replies_.notify_all();
  host_.events().signal();
}

// --- receiving ---

void Session::receive_loop() {
  while (!ended()) {
    CommandBytes bytes;
    Status status =
        communicator_->recv({bytes.data(), bytes.size()}, kWorkerRank, kCommand, patient())
            ->wait(kNoLimit);
    if (!status.ok()) {
      end(status);
      break;
    }
    const Result<Command> command = decode_command(bytes);
    status = command.ok() ? carry_out(*command) : command.status();
    if (!status.ok()) fail(status);
  }
  if (!counts_on_.load()) host_.drop_worker(worker_);
  host_.on_session_ended(worker_, reason());
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
  (void)host_.note_lost_servers(command.lost_servers);
  DMLCOMM_RETURN_IF_ERROR(host_.fenced());
  if (command.kind == CommandKind::leave) {
    const Status status = send_answer(command);
    end(Status());
    return status;
  }
  // A worker that connects again while it creates a model may name it before it is made here; then
  // the creation counts the worker in.
  if (command.kind == CommandKind::attach && host_.find_model(command.model) == nullptr) {
    reply({command, nullptr, {}});
    return Status();
  }
  Result<std::shared_ptr<Model>> found = model_for(command);
  if (!found.ok()) return found.status();
  const std::shared_ptr<Model>& model = *found;
  switch (command.kind) {
    case CommandKind::attach:
      model->attach(worker_, command.clock, command.sequence);
      reply({command, model, {}});
      return Status();
    case CommandKind::clock:
      DMLCOMM_RETURN_IF_ERROR(wait_for_exact_pulls(command.model));
      advance_clock(*model, command.clock);
      return Status();
    case CommandKind::set:
      DMLCOMM_RETURN_IF_ERROR(take_pieces(command, model));
      reply({command, model, {}});
      return Status();
    case CommandKind::push:
    case CommandKind::push_close:
    case CommandKind::push_pull: return take_push(command, model);
    case CommandKind::pull: reply({command, model, {}}); return Status();
    case CommandKind::push_rows:
    case CommandKind::pull_rows: return take_rows(command, model);
    case CommandKind::leave: break;
  }
  return Status();
}

// Commands that are repeated after a lost connection do not turn the clock back.
void Session::advance_clock(Model& model, uint64_t clock) {
  if (model.clocks().get(worker_) < clock) model.tick(worker_, clock);
}

Status Session::take_push(const Command& command, const std::shared_ptr<Model>& model) {
  DMLCOMM_RETURN_IF_ERROR(wait_for_exact_pulls(command.model));
  counters_.pushes.fetch_add(1);
  // An exact pull waits for the push itself, piece by piece.
  const bool early =
      command.kind == CommandKind::push_pull && command.staleness == 0 &&
      chosen_pieces(command.kind, model->spec(), model->shard(command.shard)->pieces()).size() > 1;
  if (early) reply({command, model, {}});
  DMLCOMM_RETURN_IF_ERROR(take_pieces(command, model));
  if (command.ends_clock) advance_clock(*model, command.clock + 1);
  if (!early) reply({command, model, {}});
  return Status();
}

// Receives some pieces ahead, and works on them in order.
Status Session::take_pieces(const Command& command, const std::shared_ptr<Model>& model) {
  const std::vector<size_t> chosen =
      chosen_pieces(command.kind, model->spec(), model->shard(command.shard)->pieces());
  const Shard& shard = *model->shard(command.shard);
  size_t posted = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    for (; posted < std::min(i + kPiecesInFlight, chosen.size()); ++posted) {
      const size_t bytes = shard.pieces()[chosen[posted]].wire_bytes(model->spec());
      Incoming& next = incoming_.emplace_back(Incoming{model, model->take_buffer(), nullptr});
      next.op = communicator_->recv({next.buffer.get(), bytes}, kWorkerRank, kUp, patient());
    }
    Incoming& oldest = incoming_.front();
    DMLCOMM_RETURN_IF_ERROR(oldest.op->wait(kNoLimit));
    counters_.bytes_in.fetch_add(shard.pieces()[chosen[i]].wire_bytes(model->spec()));
    DMLCOMM_RETURN_IF_ERROR(take_piece(command, *model, chosen[i], oldest.buffer));
    incoming_.pop_front();
  }
  return Status();
}

Status Session::take_piece(const Command& command, Model& model, size_t piece,
                           BufferPool::Buffer& wire) {
  if (command.kind == CommandKind::set) {
    model.set(command.shard, piece, wire.get());
    return Status();
  }
  const Push push = push_of(command, worker_);
  return wait_until([&] { return model.push(command.shard, piece, push, wire); });
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
  DMLCOMM_RETURN_IF_ERROR(receive(numbers.data(), numbers.size() * sizeof(int64_t)));
  DMLCOMM_RETURN_IF_ERROR(model->check_rows(command.shard, rows_of(command, numbers)));
  if (pushes) {
    counters_.pushes.fetch_add(1);
    const size_t bytes =
        numbers.size() * model->shard(command.shard)->wire_row_bytes(command.space);
    if (incoming_rows_.size() < bytes) incoming_rows_.resize(bytes);
    DMLCOMM_RETURN_IF_ERROR(receive(incoming_rows_.data(), bytes));
    const Push push = push_of(command, worker_);
    DMLCOMM_RETURN_IF_ERROR(wait_until([&] {
      return model->push_rows(command.shard, push, rows_of(command, numbers),
                              incoming_rows_.data());
    }));
  }
  reply({command, model, std::move(numbers)});
  return Status();
}

Status Session::receive(void* data, size_t bytes) {
  counters_.bytes_in.fetch_add(bytes);
  return communicator_->recv({data, bytes}, kWorkerRank, kUp, patient())->wait(kNoLimit);
}

// Tries again after every event until it works or the session ends. Now and then it looks whether
// the worker still lives: while the receiving thread waits here, no message tells.
template <typename Try>
Status Session::wait_until(Try attempt) {
  for (;;) {
    const uint64_t epoch = host_.events().epoch();
    // A worker that has left in good order waits for nothing: what it asked for is not there.
    if (ended()) return Status(StatusCode::aborted, "the session has ended");
    DMLCOMM_RETURN_IF_ERROR(communicator_->error());
    const Result<bool> done = attempt();
    if (!done.ok()) return done.status();
    if (*done) return Status();
    (void)host_.events().wait_past(epoch, kLookAtWorker);
  }
}

Status Session::wait_for_exact_pulls(uint32_t model) {
  return wait_until([&]() -> Result<bool> {
    std::lock_guard lock(mutex_);
    return !exact_pulls_.contains(model);
  });
}

// --- answering ---

void Session::reply(Reply reply) {
  if (reply.command.pulls()) counters_.pulls.fetch_add(1);
  std::unique_lock lock(mutex_);
  if (reply.command.is_exact()) exact_pulls_.insert(reply.command.model);
  const bool at_once = replies_.empty() && !answering_;
  if (at_once) {
    answering_ = true;
    lock.unlock();
    bool ready = false;
    const bool nothing_follows = reply.command.waits && reply.command.kind == CommandKind::pull;
    const Status status = answer(reply, &ready, nothing_follows ? Mode::alone : Mode::try_once);
    if (!status.ok()) fail(status);
    if (ready) finish(reply);
    lock.lock();
    answering_ = false;
    if (ready || ended()) return;
  }
  replies_.push_back(std::move(reply));
  lock.unlock();
  has_replies_.notify_one();
}

void Session::answer_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_replies_.wait(lock, [&] { return ended() || (!replies_.empty() && !answering_); });
    if (ended()) return;
    Reply reply = std::move(replies_.front());
    replies_.pop_front();
    answering_ = true;
    lock.unlock();
    bool ready = false;
    const Status status = answer(reply, &ready, Mode::beside_receiver);
    if (!status.ok() && !ended()) fail(status);
    finish(reply);
    lock.lock();
    answering_ = false;
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
  switch (reply.command.kind) {
    case CommandKind::pull:
    case CommandKind::push_pull: return send_pieces(reply, ready, mode);
    case CommandKind::pull_rows: return send_rows(reply, ready, mode);
    default: *ready = true; return send_answer(reply.command);
  }
}

// Whether the attempt has worked; false only where nothing may be waited for.
template <typename Try>
Result<bool> Session::try_in(Mode mode, Try attempt) {
  if (mode == Mode::try_once) return attempt();
  DMLCOMM_RETURN_IF_ERROR(wait_until(attempt));
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
  if (outgoing_.size() < slot_bytes * num_slots) outgoing_.resize(slot_bytes * num_slots);
  std::deque<engine::OperationPtr> ops;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (ops.size() == num_slots) {
      DMLCOMM_RETURN_IF_ERROR(ops.front()->wait(kNoLimit));
      ops.pop_front();
    }
    const Piece& piece = shard.pieces()[chosen[i]];
    const bool in_place = reply.command.is_exact() && model.can_send_in_place(piece);
    std::byte* scratch = outgoing_.data() + i % num_slots * slot_bytes;
    const std::byte* data = nullptr;
    const auto attempt = [&] {
      return model.pull(reply.command.shard, chosen[i], reply.command.needed(), in_place, scratch,
                        &data);
    };
    const Result<bool> done = try_in(mode, attempt);
    if (!done.ok()) return done.status();
    if (!*done) return Status();
    const size_t bytes = piece.wire_bytes(model.spec());
    counters_.bytes_out.fetch_add(bytes);
    engine::OpOptions options = patient(reply.command.ticket);
    options.inline_wait = mode != Mode::beside_receiver || i + 1 == chosen.size();
    ops.push_back(communicator_->send({data, bytes}, kWorkerRank, kDown, options));
  }
  *ready = true;
  for (const engine::OperationPtr& op : ops) {
    DMLCOMM_RETURN_IF_ERROR(op->wait(kNoLimit));
  }
  return Status();
}

Status Session::send_rows(const Reply& reply, bool* ready, Mode mode) {
  const Command& command = reply.command;
  const size_t bytes =
      reply.rows.size() * reply.model->shard(command.shard)->wire_row_bytes(command.space);
  if (outgoing_.size() < bytes) outgoing_.resize(bytes);
  const auto attempt = [&] {
    return reply.model->pull_rows(command.shard, command.needed(), rows_of(command, reply.rows),
                                  outgoing_.data());
  };
  const Result<bool> done = try_in(mode, attempt);
  if (!done.ok()) return done.status();
  if (!*done) return Status();
  *ready = true;
  counters_.bytes_out.fetch_add(bytes);
  return send(outgoing_.data(), bytes, kDown, command.ticket);
}

Status Session::send_answer(const Command& command) {
  Answer answer;
  answer.sequence = command.kind == CommandKind::attach ? command.clock : command.sequence;
  answer.lost_servers = host_.note_lost_servers(0);
  const AnswerBytes bytes = encode(answer);
  return send(bytes.data(), bytes.size(), kAnswer, command.ticket);
}

Status Session::send(const void* data, size_t bytes, uint32_t tag, uint8_t ticket) {
  return communicator_->send({data, bytes}, kWorkerRank, tag, patient(ticket))->wait(kNoLimit);
}

}  // namespace dmlcomm::ps
