#include "proxy/uplink.h"

#include <algorithm>
#include <utility>

#include "base/exceptions.h"

namespace dmlcomm::proxy {
namespace {

using ps::Command;
using ps::CommandKind;

// Pieces on their way at once, in either direction.
constexpr size_t kInFlight = 16;
// An uplink that waits for nothing looks this often whether the parent still lives.
constexpr std::chrono::milliseconds kLookAtParent{250};

Command command_of(CommandKind kind, uint32_t model, uint32_t shard, uint64_t clock) {
  Command command;
  command.kind = kind;
  command.model = model;
  command.shard = shard;
  command.clock = clock;
  return command;
}

engine::OpOptions patient() {
  return {.timeout = ps::kForever, .inline_wait = true, .element = std::nullopt};
}

}  // namespace

Uplink::Uplink(Config config) : config_(std::move(config)) {
  receiver_ = std::thread([this] { receive_loop(); });
}

Uplink::~Uplink() {
  close();
  // A parent of this host that was stopped may still write: its memory stays.
  const bool is_written = communicator_ != nullptr && communicator_->has_writer();
  if (is_written) (void)new std::deque<Expected>(std::move(expected_));
}

void Uplink::close() {
  std::shared_ptr<engine::Communicator> communicator;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    handler_ = nullptr;
    waiting_.clear();
    communicator = communicator_;
  }
  changed_.notify_all();
  if (communicator != nullptr) communicator->close();
  std::call_once(joined_, [this] { receiver_.join(); });
}

Status Uplink::connect(uint32_t number, const ps::PairOptions& options,
                       std::shared_ptr<transport::Rendezvous> rendezvous) {
  auto connected = ps::meet(ps::kWorkerRank, number, options, config_, std::move(rendezvous));
  if (!connected.ok()) return connected.status();
  const auto feeder = [&](ps::Feeder::Direction direction, uint32_t tag) {
    return std::make_shared<ps::Feeder>(**connected, direction, ps::kServerRank, tag, kInFlight);
  };
  std::lock_guard lock(mutex_);
  if (closed_) return Status(StatusCode::aborted, "the proxy is closing");
  communicator_ = *connected;
  commands_ = feeder(ps::Feeder::Direction::send, ps::kCommand);
  up_ = feeder(ps::Feeder::Direction::send, ps::kUp);
  answers_ = feeder(ps::Feeder::Direction::receive, ps::kAnswer);
  for (const auto& send : std::exchange(waiting_, {})) send();
  return Status();
}

void Uplink::when_connected(std::function<void()> send) {
  if (closed_) return;
  if (communicator_ == nullptr) {
    waiting_.push_back(std::move(send));
  } else {
    send();
  }
}

// --- what goes up ---

void Uplink::attach(uint32_t model, uint32_t worker, uint64_t clock, uint64_t incarnation) {
  Command command = command_of(CommandKind::attach, model, 0, clock);
  command.worker = worker;
  command.sequence = incarnation;
  std::lock_guard lock(mutex_);
  when_connected([this, command] {
    expect_answer([] {});
    send_command(command);
  });
}

void Uplink::drop(uint32_t worker) {
  Command command = command_of(CommandKind::drop, 0, 0, 0);
  command.worker = worker;
  std::lock_guard lock(mutex_);
  when_connected([this, command] { send_command(command); });
}

void Uplink::forward(ps::Forwarded forwarded) {
  const auto window = std::make_shared<ps::Forwarded>(std::move(forwarded));
  Command command =
      command_of(CommandKind::merged, window->model->options().model, window->shard, window->clock);
  command.piece = static_cast<uint32_t>(window->piece);
  command.num_pushes = window->num_pushes;
  command.staleness = 0;
  command.learning_rate = window->learning_rate;
  const ps::Model& model = *window->model;
  const size_t bytes = model.shard(window->shard)->pieces()[window->piece].wire_bytes(model.spec());
  std::lock_guard lock(mutex_);
  when_connected([this, command, window, bytes] {
    expect({window->answer.get(), bytes}, [window] {
      window->model->take_answer(window->shard, window->piece, window->clock, window->answer);
    });
    send_command(command, window->is_awaited);
    send_elements({window->sum.get(), bytes}, window, window->is_awaited);
    if (!window->is_awaited) changed_.notify_all();
  });
}

// The pieces are copied first: their locks come before mutex_.
std::shared_ptr<const std::atomic<bool>> Uplink::set(std::shared_ptr<ps::Model> model,
                                                     uint32_t shard) {
  const auto& pieces = model->shard(shard)->pieces();
  const auto copies = std::make_shared<std::vector<std::vector<std::byte>>>();
  for (size_t i : ps::chosen_pieces(CommandKind::set, model->spec(), pieces)) {
    copies->emplace_back(pieces[i].wire_bytes(model->spec()));
    model->load(shard, i, copies->back().data());
  }
  auto is_there = std::make_shared<std::atomic<bool>>(false);
  std::lock_guard lock(mutex_);
  when_connected([this, model = std::move(model), shard, copies, is_there] {
    expect_answer([model, is_there] {
      is_there->store(true);
      model->events().signal();
    });
    send_command(command_of(CommandKind::set, model->options().model, shard, 0));
    for (std::vector<std::byte>& copy : *copies) {
      send_elements({copy.data(), copy.size()}, copies);
    }
  });
  return is_there;
}

void Uplink::fetch(std::shared_ptr<ps::Model> model, uint32_t shard, uint64_t clock) {
  std::lock_guard lock(mutex_);
  when_connected(
      [this, model = std::move(model), shard, clock] { ask_for_values(model, shard, clock); });
}

void Uplink::ask_for_values(const std::shared_ptr<ps::Model>& model, uint32_t shard,
                            uint64_t clock) {
  const auto& pieces = model->shard(shard)->pieces();
  const auto chosen = ps::chosen_pieces(CommandKind::pull, model->spec(), pieces);
  for (size_t i : chosen) {
    auto memory = std::make_shared<std::vector<std::byte>>(pieces[i].wire_bytes(model->spec()));
    expect({memory->data(), memory->size()},
           [model, shard, clock, i, memory, last = chosen.back()] {
             model->take_value(shard, i, clock, memory->data());
             if (i == last) model->take_values();
           });
  }
  changed_.notify_all();
  // All clocks before `clock`. Not as an exact pull, which would get the weights while they change:
  // the worker that this is for may not hold a clock at the parent yet.
  Command command = command_of(CommandKind::pull, model->options().model, shard, clock + 1);
  command.staleness = 1;
  send_command(command);
}

// --- messages ---

// Feeders call back without their own lock, but maybe within add(), and so with mutex_.
std::function<void(const Status&)> Uplink::done_or_failed(std::function<void()> done) {
  return [this, done = std::move(done)](const Status& status) {
    if (status.ok()) {
      done();
    } else {
      note_failure(status);
    }
  };
}

void Uplink::send_command(const Command& command, bool is_awaited) {
  const auto bytes = std::make_shared<ps::CommandBytes>(encode(command));
  commands_->add(
      {{bytes->data(), bytes->size()}, is_awaited, done_or_failed([bytes] {}), command.ticket});
}

void Uplink::send_elements(Span memory, std::shared_ptr<void> owner, bool is_awaited) {
  bytes_sent_.fetch_add(memory.bytes);
  up_->add({memory, is_awaited, done_or_failed([owner = std::move(owner)] {})});
}

void Uplink::expect_answer(std::function<void()> done) {
  const auto bytes = std::make_shared<ps::AnswerBytes>();
  answers_->add({{bytes->data(), bytes->size()},
                 false,
                 done_or_failed([bytes, done = std::move(done)] { done(); })});
}

void Uplink::expect(Span memory, std::function<void()> take) {
  expected_.push_back({memory, std::move(take), nullptr});
  begin_receives();
}

void Uplink::begin_receives() {
  for (size_t i = 0; i < std::min(kInFlight, expected_.size()); ++i) {
    Expected& next = expected_[i];
    if (next.op != nullptr) continue;
    next.op = communicator_->recv(next.memory, ps::kServerRank, ps::kDown, patient());
  }
}

// --- what comes down ---

// False once there is nothing more to receive.
bool Uplink::wait_for_work(std::unique_lock<std::mutex>& lock) {
  while (!closed_ && (expected_.empty() || is_receiving_)) {
    if (communicator_ != nullptr) note_failure(communicator_->error());
    if (!error().ok()) return false;
    (void)changed_.wait_for(lock, kLookAtParent);
  }
  return !closed_;
}

void Uplink::receive_loop() {
  const Status ended = without_exceptions([this] { return receive_all(); });
  insist([&] { note_failure(ended); });
  std::unique_lock lock(mutex_);
  const auto handler = std::exchange(handler_, nullptr);
  lock.unlock();
  if (handler == nullptr) return;
  insist([&] {
    const Status failure = error();
    if (!failure.ok()) handler(failure);
  });
}

Status Uplink::receive_all() {
  std::unique_lock lock(mutex_);
  while (wait_for_work(lock)) {
    DMLCOMM_RETURN_IF_ERROR(receive_oldest(lock, std::chrono::milliseconds(0)));
  }
  return Status();
}

// Nothing after `time`; 0: without a limit.
Status Uplink::receive_oldest(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds time) {
  is_receiving_ = true;
  begin_receives();
  const engine::OperationPtr op = expected_.front().op;
  lock.unlock();
  (void)op->wait(time);
  lock.lock();
  Status status = op->done() ? op->status() : Status();
  if (op->done() && status.ok()) {
    bytes_received_.fetch_add(expected_.front().memory.bytes);
    const std::function<void()> take = std::move(expected_.front().take);
    expected_.pop_front();
    lock.unlock();
    status = without_exceptions([&] {
      take();
      return Status();
    });
    lock.lock();
  }
  is_receiving_ = false;
  return status;
}

bool Uplink::help(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  if (closed_ || is_receiving_ || expected_.empty() || !error().ok()) return false;
  note_failure(receive_oldest(lock, time));
  const bool leaves_some = !expected_.empty() || !error().ok();
  lock.unlock();
  if (leaves_some) changed_.notify_all();
  return true;
}

void Uplink::wake() {
  {
    std::lock_guard lock(mutex_);
    if (expected_.empty() || is_receiving_) return;
  }
  changed_.notify_all();
}

// --- failures ---

void Uplink::note_failure(const Status& status) {
  if (status.ok()) return;
  std::lock_guard lock(error_mutex_);
  if (!error_.ok()) return;
  error_ = Status(StatusCode::peer_lost,
                  "the proxy of this host has lost its parent: ", status.message());
}

Status Uplink::error() const {
  std::lock_guard lock(error_mutex_);
  return error_;
}

void Uplink::on_failure(std::function<void(const Status&)> handler) {
  std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

uint64_t Uplink::number() const {
  std::lock_guard lock(mutex_);
  return communicator_ == nullptr ? 0 : communicator_->number();
}

}  // namespace dmlcomm::proxy
