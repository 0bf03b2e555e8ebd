// How an engine fails, and what it says about it: every text that names ranks, hosts and
// operations.

#include "base/exceptions.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "engine/engine.h"

namespace dmlcomm::engine {

using transport::OpInfo;
using transport::RecvRequest;

void Engine::abort(const std::string& reason) {
  if (is_copy()) return;
  driver_->call([&] { fail(aborted(reason)); });
}

Status Engine::aborted(const std::string& reason) const {
  return Status(StatusCode::aborted, name_of(options_.rank), " aborted: ", reason);
}

void Engine::fail(const Status& status) {
  if (!queue_.set_error(status)) return;
  failure_ = status;
  log_info("group '", options_.name, "' failed: ", status.to_string());
  end_all(status);
}

void Engine::end_all(const Status& status) {
  beside_ = nullptr;
  queue_.for_each([&](Running& running) {
    if (running.runner) running.runner->stop();
    queue_.end(running, status);
  });
  mesh_->fail_all(status);
  queue_.take_submitted();
}

// Messages and steps may have been left half-way, so nothing of this group goes on. The exception
// may also have ended an earlier call of this.
void Engine::on_exception(const std::exception& error) {
  in_runner_ = is_finishing_ = false;
  const Status before = queue_.error();
  if (!before.ok()) return end_all(before);
  const Status reason = status_of(error);
  fail(Status(reason.code(), name_of(options_.rank), " failed ", current_text(), ": ",
              reason.message()));
}

void Engine::check_deadlines() {
  const Running* expired =
      queue_.find_if([](const Running& running) { return running.op->deadline().expired(); });
  if (expired != nullptr) fail(timed_out(*expired));
}

// --- texts ---

std::string Engine::name_of(int peer) const {
  const transport::HostAddress& host = mesh_->job().hosts[peer];
  const auto p = static_cast<size_t>(peer);
  const bool renamed = p < options_.global_ranks.size() && options_.global_ranks[p] != peer;
  return str_cat(options_.names.empty() ? str_cat("rank ", peer) : options_.names[p],
                 renamed ? str_cat(" (rank ", options_.global_ranks[p], " of the job)") : "",
                 " on host ", host.host_name, " (pid ", host.pid, ")");
}

std::string Engine::current_text() {
  const Running* current = queue_.find_if([](const Running&) { return true; });
  if (current != nullptr) return str_cat("during ", current->op->text());
  const auto& [sequence, info] = history_.last_begun();
  return sequence == 0 ? "before the first collective"
                       : str_cat("after ", describe(info), " #", sequence);
}

Status Engine::timed_out(const Running& running) {
  std::string waiting;
  for (int peer : awaited_by(running)) {
    waiting += str_cat(waiting.empty() ? "" : ", ", name_of(peer));
  }
  return Status(StatusCode::timeout, running.op->text(), " timed out on ", name_of(options_.rank),
                waiting.empty() ? ", before its turn came" : "; it waits for ", waiting);
}

Status Engine::disagreement_error(
    const std::optional<CollectiveHistory::Disagreement>& found) const {
  if (!found) return Status();
  return disagreement(found->sequence, name_of(options_.rank), found->ours, name_of(found->peer),
                      found->theirs);
}

// --- what the links say of failures ---

Status Engine::check_operation(int peer, transport::Tag tag, const OpInfo& theirs) {
  const uint64_t sequence =
      transport::widen_sequence(transport::sequence_of(tag), oldest_collective());
  return disagreement_error(history_.hear(peer, sequence, theirs));
}

Status Engine::size_mismatch(int peer, const RecvRequest& ours, const OpInfo& theirs,
                             uint64_t their_bytes) {
  if (transport::is_point_to_point(ours.tag)) {
    return Status(StatusCode::mismatch, "recv of tag ", static_cast<uint32_t>(ours.tag), " on ",
                  name_of(options_.rank), " expects ", ours.bytes, " bytes, but ", name_of(peer),
                  " sent ", their_bytes);
  }
  return Status(StatusCode::mismatch, "in collective #", transport::sequence_of(ours.tag), " ",
                describe(theirs), ", ", name_of(options_.rank), " expects ", ours.bytes,
                " bytes from ", name_of(peer), ", which sends ", their_bytes,
                "; sizes must fit between the ranks");
}

void Engine::on_rail_event(int peer, bool lost, const std::string& text) {
  log_text(lost ? LogLevel::warning : LogLevel::info, "group '", options_.name, "', ",
           name_of(peer), ": ", text);
}

// An operation that waits for no rank has what it needs, and was not asked since: it does not end
// with the peer that had completed it before. It does if it still has to send, or if its last
// bytes are behind the reason on another rail. Runners that fail here end with the communicator.
void Engine::end_what_waits_for_nobody() {
  if (in_runner_) return;
  is_finishing_ = true;
  queue_.for_each([this](Running& running) {
    bool moved = running.runner != nullptr;
    while (moved && waits_for_nobody(*running.runner)) {
      moved = false;
      if (!running.runner->advance(&moved).ok()) break;
    }
    if (running.runner && running.runner->complete()) queue_.end(running, Status());
  });
  is_finishing_ = false;
}

bool Engine::waits_for_nobody(const Runner& runner) const {
  for (int peer = 0; peer < options_.num_ranks; ++peer) {
    if (peer != options_.rank && runner.waits_for(peer)) return false;
  }
  return !runner.complete();
}

void Engine::on_failed(int peer, const Status& status, bool reported) {
  if (is_finishing_) return;  // the first failure ends all
  end_what_waits_for_nobody();
  if (reported) return fail(status);
  if (status.code() == StatusCode::mismatch) return fail(status);
  const StatusCode code =
      status.code() == StatusCode::io_error ? StatusCode::peer_lost : status.code();
  fail(Status(code, "lost ", name_of(peer), " ", current_text(), ": ", status.message()));
}

void Engine::on_goodbye(int peer) {
  if (is_finishing_ || !waits_for(peer)) return;
  end_what_waits_for_nobody();
  fail(Status(StatusCode::peer_lost, "lost ", name_of(peer), " ", current_text(),
              ": it has left the group; do all ranks call the same operations?"));
}

}  // namespace dmlcomm::engine
