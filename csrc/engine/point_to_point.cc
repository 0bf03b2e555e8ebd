#include "engine/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace dmlcomm::engine {

PointToPointRunner::PointToPointRunner(transport::Mesh& mesh, transport::LinkEvents& events,
                                       Messages& messages, OperationQueue::Running& running)
    : Runner(running.op->info()),
      mesh_(mesh),
      events_(events),
      messages_(messages),
      running_(running),
      op_(*running.op) {
  const OpRequest& request = op_.request();
  const transport::Tag tag = transport::point_to_point_tag(request.tag);
  out_.tag = in_.tag = tag;
  out_.op = in_.op = op_.info();
  out_.order.ticket = op_.ticket();
  out_.age = op_.age();
  out_.owner = in_.owner = this;
  if (sends()) {
    out_.bytes = request.input.bytes();
    out_.data = request.input.at(0, out_.bytes);
  } else {
    in_.bytes = request.output.bytes();
    in_.destination = request.output.at(0, in_.bytes);
    in_.posted_order = ++messages_.num_receives;
  }
}

PointToPointRunner::~PointToPointRunner() {
  std::erase(messages_.ready, &running_);
  if (done_) return;
  messages_.own_sends.remove(this);
  messages_.own_receives.remove(this);
  messages_.unclaimed.remove(this);
}

Status PointToPointRunner::start() {
  const int peer = op_.request().peer;
  if (peer == kAnySource) return start_any_source();
  if (peer == mesh_.rank() && sends()) return send_to_self();
  if (peer == mesh_.rank()) {
    bool met = false;
    DMLCOMM_RETURN_IF_ERROR(receive_from_self(&met));
    if (!met) messages_.own_receives.push_back(this);
  } else if (sends()) {
    out_.waited_ns = op_.waited_ns();
    mesh_.link(peer).send(out_);
  } else {
    mesh_.link(peer).recv(in_);
  }
  return Status();
}

Status PointToPointRunner::copy_to(transport::RecvRequest& request) {
  if (request.bytes != out_.bytes) {
    return events_.size_mismatch(mesh_.rank(), request, out_.op, out_.bytes);
  }
  if (out_.bytes > 0) std::memmove(request.destination, out_.data, out_.bytes);
  request.source = mesh_.rank();
  request.arrived = request.bytes;
  events_.on_arrived(request);
  set_arrived();
  return Status();
}

Status PointToPointRunner::send_to_self() {
  const auto it = std::find_if(messages_.own_receives.begin(), messages_.own_receives.end(),
                               [&](auto* r) { return r->in_.tag == out_.tag; });
  const uint64_t before = it == messages_.own_receives.end() ? UINT64_MAX : (*it)->in_.posted_order;
  if (transport::RecvRequest* any = events_.claim_any_source(out_.tag, before)) {
    return copy_to(*any);
  }
  if (it == messages_.own_receives.end()) {
    messages_.own_sends.push_back(this);
    return Status();
  }
  PointToPointRunner* receiver = *it;
  messages_.own_receives.erase(it);
  return copy_to(receiver->in_);
}

Status PointToPointRunner::receive_from_self(bool* met) {
  const auto it = std::find_if(messages_.own_sends.begin(), messages_.own_sends.end(),
                               [&](auto* s) { return s->out_.tag == in_.tag; });
  if (it == messages_.own_sends.end()) return Status();
  PointToPointRunner* sender = *it;
  messages_.own_sends.erase(it);
  *met = true;
  return sender->copy_to(in_);
}

// Takes the oldest message that waits on any link, or waits for the first to come.
Status PointToPointRunner::start_any_source() {
  bool met = false;
  DMLCOMM_RETURN_IF_ERROR(receive_from_self(&met));
  if (met) return Status();
  transport::Link* oldest = nullptr;
  uint64_t oldest_order = UINT64_MAX;
  for (int peer = 0; peer < mesh_.num_ranks(); ++peer) {
    if (peer == mesh_.rank()) continue;
    transport::Link& link = mesh_.link(peer);
    const uint64_t order = link.oldest_unexpected(in_.tag);
    if (order != 0 && order < oldest_order) {
      oldest = &link;
      oldest_order = order;
    }
  }
  if (oldest != nullptr) {
    oldest->recv(in_);
  } else {
    messages_.unclaimed.push_back(this);
  }
  return Status();
}

Status PointToPointRunner::advance(bool* moved) {
  is_ready_ = false;
  if (!arrived_ || done_) return Status();
  if (!sends() && in_.offered) {
    bool complete = false;
    DMLCOMM_RETURN_IF_ERROR(mesh_.link(in_.source).take_offer(in_, moved, &complete));
    if (!complete) {
      set_ready();
      return Status();
    }
  }
  *moved = true;
  if (!sends()) op_.set_source(in_.source);
  done_ = true;
  return Status();
}

bool PointToPointRunner::waits_for(int peer) const {
  // Bytes that have arrived need their sender no more.
  if (done_ || (arrived_ && !in_.offered)) return false;
  const int wanted = op_.request().peer;
  return wanted == kAnySource ? in_.source == peer : wanted == peer;
}

void PointToPointRunner::on_sent(transport::SendRequest&) { set_arrived(); }

void PointToPointRunner::on_arrived(transport::RecvRequest& request) {
  if (request.offered || request.arrived == request.bytes) set_arrived();
}

void PointToPointRunner::set_arrived() {
  arrived_ = true;
  set_ready();
}

void PointToPointRunner::set_ready() {
  if (!std::exchange(is_ready_, true)) messages_.ready.push_back(&running_);
}

void PointToPointRunner::provide_window(transport::RecvRequest&) { DMLCOMM_CHECK(false); }

}  // namespace dmlcomm::engine
