#include "ps/client_operation.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

namespace dmlcomm::ps {
namespace {

// The command for a server that only takes the push of a push_pull.
CommandKind without_pull(CommandKind kind) {
  return kind == CommandKind::push_pull ? CommandKind::push_close : kind;
}

// The command for a server that has the push of a push_pull already.
CommandKind without_push(CommandKind kind) {
  return kind == CommandKind::push_pull ? CommandKind::pull : kind;
}

}  // namespace

ClientOperation::ClientOperation(LinkDirectory& links, std::vector<Task> tasks,
                                 std::function<void()> finish, std::shared_ptr<void> memory,
                                 const OperationOptions& options)
    : links_(links), finish_(std::move(finish)), memory_(std::move(memory)), options_(options) {
  for (Task& task : tasks) {
    tasks_.push_back({std::move(task), {}, false, false, options.shift, Status(), {}});
  }
}

void ClientOperation::start() {
  std::lock_guard lock(tasks_mutex_);
  for (Progress& progress : tasks_) begin(progress);
}

// Attempts what is missing on the servers that live.
void ClientOperation::begin(Progress& progress) {
  bool asked = false;
  for (uint32_t server : progress.task.servers) {
    const bool has_link = links_.link(server) != nullptr;
    const bool pushes = progress.task.pushes && !progress.pushed;
    const bool pulls = progress.task.pulls && !progress.pulled && !asked && has_link;
    if (pushes || pulls) attempt(progress, server, pushes, pulls);
    asked |= pulls;
  }
}

void ClientOperation::attempt(Progress& progress, uint32_t server, bool pushes, bool pulls) {
  auto attempt = std::make_shared<Attempt>();
  attempt->server = server;
  attempt->link = links_.link(server);
  attempt->pushes = pushes;
  attempt->pulls = pulls;
  const Task& task = progress.task;
  Command command = task.command;
  command.lives = links_.lives();
  const uint8_t life = command.lives[server];
  if (pushes && task.repeats_push(server) && !is_lost(life)) progress.owed[server] = life;
  if (attempt->link == nullptr) return;
  const auto holder = std::find(task.servers.begin(), task.servers.end(), server);
  command.ends_clock = pushes && task.ends_clock[holder - task.servers.begin()];
  if (!pulls) command.kind = without_pull(command.kind);
  if (!pushes) {
    command.kind = without_push(command.kind);
    if (task.command.kind == CommandKind::push_pull) ++command.clock;
  }
  attempt->is_answered = !pulls || !task.down.empty();
  const bool has_copies = task.servers.size() > 1;
  if (attempt->is_answered) {
    command.track =
        attempt->link->enter(command.model, has_copies ? kUsualTrack : track_of(command.ticket));
  } else {  // the shard has no pieces
    command.clock = command.next_clock();
    command.kind = command.ends_clock ? CommandKind::clock : CommandKind::news;
    command.track = attempt->link->track_behind(command.model, has_copies);
  }
  attempt->head = command;
  attempt->command = encode(command);
  const bool sends_up = pushes || command.kind == CommandKind::pull_rows;
  attempt->num_missing = 1 + (sends_up ? task.up.size() : 0) + (pulls ? task.down.size() : 1);
  progress.attempts.push_back(attempt);
  // Places to receive come first: what is sent is granted at once.
  if (pulls) {
    for (Span span : task.down) add_message(attempt, attempt->link->down(command.track), span);
  } else {
    add_message(attempt, attempt->link->answers(command.track),
                {attempt->answer.data(), kAnswerBytes});
  }
  add_message(attempt, attempt->link->commands(), {attempt->command.data(), kCommandBytes});
  if (!sends_up) return;
  for (Span span : task.up) add_message(attempt, attempt->link->up(command.track), span);
}

void ClientOperation::add_message(const std::shared_ptr<Attempt>& attempt, Feeder& feeder,
                                  Span memory) {
  auto& last = attempt->last;
  if (last.empty() || last.back().first != &feeder) last.emplace_back(&feeder, 0);
  // The operation, whose memory this is, lives until the last message is through.
  auto done = [self = shared_from_this(), attempt](const Status& status) {
    {
      std::lock_guard lock(self->mutex_);
      if (--attempt->num_missing == 0 && attempt->is_answered) {
        attempt->link->leave(attempt->head.model);
      }
      if (!status.ok() && attempt->status.ok()) attempt->status = status;
    }
    self->changed_.notify_all();
  };
  last.back().second =
      feeder.add({memory, options_.inline_wait, std::move(done), attempt->head.ticket});
}

// The one to wait for of its streams.
engine::OperationPtr ClientOperation::oldest_of(const Attempt& attempt) {
  for (const auto& [feeder, last] : attempt.last) {
    if (engine::OperationPtr op = feeder->oldest(last)) return op;
  }
  return nullptr;
}

// True once all of its messages are through or have failed.
bool ClientOperation::wait_for(Attempt& attempt, Deadline deadline) {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (attempt.is_done()) return true;
    }
    if (deadline.expired()) return false;
    const int remaining_ms = deadline.remaining_poll_ms();
    if (const engine::OperationPtr op = oldest_of(attempt)) {
      (void)op->wait(std::chrono::milliseconds(std::max(0, remaining_ms)));
      continue;
    }
    // Between two messages: the thread that finished one is about to start the next or to tell.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(1), [&] { return attempt.is_done(); });
  }
}

// `version`: the pieces at the server contain all clocks before it.
Status ClientOperation::take_answer(Attempt& attempt, uint64_t* version) {
  {
    std::lock_guard lock(mutex_);
    if (!attempt.status.ok()) return attempt.status;
  }
  *version = attempt.head.needed();
  if (attempt.pulls) return Status();
  const Result<Answer> answer = decode_answer(attempt.answer);
  if (!answer.ok()) return answer.status();
  links_.learn(answer->lives);
  *version = answer->version;
  return Status();
}

void ClientOperation::settle_attempt(Progress& progress, Attempt& attempt) {
  uint64_t version = 0;
  const Status status = take_answer(attempt, &version);
  if (!status.ok()) {
    attempt.link->fail(status.message());
    links_.lose(attempt.server, attempt.link, status);
    progress.failure = status;
    return;
  }
  if (attempt.pushes) progress.owed.erase(attempt.server);
  links_.learn_version(attempt.server, attempt.head.model, version);
  const bool may_be_lost = attempt.pushes && attempt.head.kind != CommandKind::set &&
                           attempt.link->by_proxy() && version <= progress.task.command.clock;
  if (may_be_lost &&
      !links_.keep(attempt.server, attempt.link, progress.task.command, progress.task.up)) {
    progress.failure = Status(StatusCode::peer_lost, "the proxy was lost before the push was safe");
  } else {
    progress.pushed = true;
  }
  // The answer of a server that others have found lost may lack their pushes.
  const bool still_counts = links_.lives()[attempt.server] == attempt.head.lives[attempt.server];
  progress.pulled |= attempt.pulls && still_counts;
}

// Looks at what has ended; ok if the task is complete, peer_lost if no server is left for it.
Status ClientOperation::settle(Progress& progress) {
  std::lock_guard lock(tasks_mutex_);
  if (has_pending(progress)) return Status(StatusCode::timeout, "it was repeated meanwhile");
  // Pulls last: an answer to a push may say that the server of a pull is lost.
  const auto attempts = std::exchange(progress.attempts, {});
  for (const auto& attempt : attempts) {
    if (!attempt->pulls) settle_attempt(progress, *attempt);
  }
  for (const auto& attempt : attempts) {
    if (attempt->pulls) settle_attempt(progress, *attempt);
  }
  if (awaits_verdict(progress)) {
    return Status(StatusCode::peer_lost, "a server of shard ", progress.task.command.shard,
                  " is lost to this worker: ", progress.failure.message());
  }
  if (progress.complete()) return Status();
  if (!progress.task.repeats_in_order()) begin(progress);
  if (!progress.attempts.empty()) return Status(StatusCode::timeout, "another server is asked");
  const std::string why = progress.failure.ok() ? "it was lost before" : progress.failure.message();
  return Status(StatusCode::peer_lost, "no server with shard ", progress.task.command.shard,
                " of model number ", progress.task.command.model, " is left: ", why);
}

bool ClientOperation::awaits_verdict(const Progress& progress) {
  const uint64_t suspected = links_.suspected_servers();
  return suspected != 0 && progress.task.pushes &&
         std::any_of(progress.task.servers.begin(), progress.task.servers.end(),
                     [&](uint32_t server) { return has_server(suspected, server); });
}

Status ClientOperation::wait(Deadline deadline) {
  if (finished()) return Status();
  const Status status = wait_for_all(deadline);
  if (status.ok()) links_.on_finished();
  return status;
}

void ClientOperation::abandon() {
  finished_.store(true);
  links_.on_finished();
}

Status ClientOperation::wait_for_all(Deadline deadline) {
  std::lock_guard lock(waiting_);
  if (finished()) return Status();
  // Other workers may wait for what this one owes to a lost server, and it waits for them
  // elsewhere: so whatever is missing, it looks at all tasks.
  Status unfinished;
  for (Progress& progress : tasks_) {
    const Status status =
        wait_for_task(progress, unfinished.ok() ? deadline : Deadline::after_ns(0));
    const bool is_news = unfinished.ok() || unfinished.code() == StatusCode::timeout;
    if (!status.ok() && is_news) unfinished = status;
  }
  if (!unfinished.ok()) return unfinished;
  finish_();
  finished_.store(true);
  return Status();
}

Status ClientOperation::wait_for_task(Progress& progress, Deadline deadline) {
  Status status(StatusCode::timeout, "not yet");
  while (status.code() == StatusCode::timeout) {
    for (const auto& attempt : attempts_of(progress)) {
      if (wait_for(*attempt, deadline)) continue;
      return Status(StatusCode::timeout, "the parameter servers have not answered yet");
    }
    status = settle(progress);
  }
  return status;
}

std::deque<std::shared_ptr<ClientOperation::Attempt>> ClientOperation::attempts_of(
    const Progress& progress) {
  std::lock_guard lock(tasks_mutex_);
  return progress.attempts;
}

// With tasks_mutex_.
bool ClientOperation::has_pending(const Progress& progress) {
  std::lock_guard lock(mutex_);
  return std::any_of(progress.attempts.begin(), progress.attempts.end(),
                     [](const auto& attempt) { return !attempt->is_done(); });
}

bool ClientOperation::done() { return finished() || !has_pending(); }

bool ClientOperation::is_over() {
  if (!finished() || has_pending()) return false;
  std::lock_guard lock(tasks_mutex_);
  return std::none_of(tasks_.begin(), tasks_.end(),
                      [this](const Progress& progress) { return is_owed(progress); });
}

// With tasks_mutex_. One that has come back since has what the other copy had.
bool ClientOperation::is_owed(const Progress& progress) {
  const Lives lives = links_.lives();
  std::lock_guard lock(mutex_);
  const auto has_it = [&](uint32_t server) {
    return std::any_of(progress.attempts.begin(), progress.attempts.end(), [&](const auto& one) {
      return one->server == server && one->pushes && one->is_done() && one->status.ok();
    });
  };
  return std::any_of(progress.owed.begin(), progress.owed.end(), [&](const auto& one) {
    return lives[one.first] == one.second && !has_it(one.first);
  });
}

// With tasks_mutex_. Also a push that was given up, and may come to the other copy when this server
// has been filled from that.
bool ClientOperation::is_repeated(const Progress& progress, uint32_t server) {
  if (finished() && !(progress.task.repeats_push(server) && has_pending(progress))) return false;
  return progress.lacks(server);
}

bool ClientOperation::has_pending() {
  std::lock_guard lock(tasks_mutex_);
  return std::any_of(tasks_.begin(), tasks_.end(),
                     [this](const Progress& progress) { return has_pending(progress); });
}

std::optional<uint64_t> ClientOperation::clock_awaited(uint32_t server) {
  std::lock_guard lock(tasks_mutex_);
  for (const Progress& progress : tasks_) {
    if (is_repeated(progress, server)) return progress.task.command.clock;
  }
  return std::nullopt;
}

void ClientOperation::shift(uint32_t server, uint64_t shift) {
  std::lock_guard lock(tasks_mutex_);
  for (Progress& progress : tasks_) {
    if (!progress.lacks(server)) continue;
    progress.task.command.clock += shift - progress.shift;
    progress.shift = shift;
  }
}

// An answer that came over the old connection, and that nobody has looked at, is given again.
Result<bool> ClientOperation::repeat(uint32_t server, Deadline deadline) {
  std::lock_guard lock(tasks_mutex_);
  bool repeats = false;
  for (Progress& progress : tasks_) {
    if (!is_repeated(progress, server)) continue;
    repeats = true;
    if (progress.task.repeats_push(server)) {
      attempt(progress, server, true, false);
      continue;
    }
    {
      // Until then messages of the old connection may touch the memory.
      std::unique_lock state(mutex_);
      const auto all_done = [&] {
        return std::all_of(progress.attempts.begin(), progress.attempts.end(),
                           [](const auto& attempt) { return attempt->is_done(); });
      };
      const std::chrono::nanoseconds left(deadline.remaining_ns());
      if (!changed_.wait_for(state, left, all_done)) {
        return Status(StatusCode::timeout, "the last connection to server ", server,
                      " has not ended yet");
      }
    }
    progress.attempts.clear();
    begin(progress);
  }
  return repeats;
}

void ClientOperation::retry() {
  std::lock_guard lock(tasks_mutex_);
  for (Progress& progress : tasks_) {
    const bool is_due = !progress.complete() && progress.attempts.empty();
    if (is_due && !progress.task.repeats_in_order()) begin(progress);
  }
}

std::vector<uint32_t> ClientOperation::lost() {
  std::lock_guard lock(tasks_mutex_);
  std::set<uint32_t> servers;
  for (const Progress& progress : tasks_) {
    const uint32_t first = progress.task.servers.front();
    // One with replicas may have come back since the replica was asked, and be asked next.
    const bool is_used = progress.task.servers.size() > 1 && links_.link(first) != nullptr;
    const bool is_stuck = !progress.complete() && progress.attempts.empty();
    if (is_stuck && !is_used) servers.insert(first);
    if (!awaits_verdict(progress)) continue;
    for (uint32_t server : progress.task.servers) {
      if (has_server(links_.suspected_servers(), server)) servers.insert(server);
    }
  }
  return {servers.begin(), servers.end()};
}

}  // namespace dmlcomm::ps
