#include "engine/point_to_point.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace dmlcomm::engine {

PointToPointRunner::PointToPointRunner(transport::Mesh& mesh, transport::LinkEvents& events,
                                       Loopback& loopback, OpState& op, uint64_t order)
    : Runner(op.info()), mesh_(mesh), events_(events), loopback_(loopback), op_(op) {
  const OpRequest& request = op.request();
  const transport::Tag tag = transport::point_to_point_tag(request.tag);
  out_.tag = in_.tag = tag;
  out_.op = in_.op = op.info();
  out_.order.ticket = op.ticket();
  out_.age = op.age();
  out_.owner = in_.owner = this;
  if (sends()) {
    out_.bytes = request.input.bytes();
    out_.data = request.input.at(0, out_.bytes);
  } else {
    in_.bytes = request.output.bytes();
    in_.destination = request.output.at(0, in_.bytes);
    in_.posted_order = order;
  }
}

PointToPointRunner::~PointToPointRunner() {
  loopback_.sends.remove(this);
  loopback_.receives.remove(this);
}

Status PointToPointRunner::start() {
  const int peer = op_.request().peer;
  if (peer == kAnySource) return start_any_source();
  if (peer == mesh_.rank() && sends()) return send_to_self();
  if (peer == mesh_.rank()) {
    bool met = false;
    DMLCOMM_RETURN_IF_ERROR(receive_from_self(&met));
    if (!met) loopback_.receives.push_back(this);
  } else if (sends()) {
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
  arrived_ = true;
  return Status();
}

Status PointToPointRunner::send_to_self() {
  const auto it = std::find_if(loopback_.receives.begin(), loopback_.receives.end(),
                               [&](auto* r) { return r->in_.tag == out_.tag; });
  const uint64_t before = it == loopback_.receives.end() ? UINT64_MAX : (*it)->in_.posted_order;
  if (transport::RecvRequest* any = events_.claim_any_source(out_.tag, before)) {
    return copy_to(*any);
  }
  if (it == loopback_.receives.end()) {
    loopback_.sends.push_back(this);
    return Status();
  }
  PointToPointRunner* receiver = *it;
  loopback_.receives.erase(it);
  return copy_to(receiver->in_);
}

Status PointToPointRunner::receive_from_self(bool* met) {
  const auto it = std::find_if(loopback_.sends.begin(), loopback_.sends.end(),
                               [&](auto* s) { return s->out_.tag == in_.tag; });
  if (it == loopback_.sends.end()) return Status();
  PointToPointRunner* sender = *it;
  loopback_.sends.erase(it);
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
    unclaimed_ = true;
  }
  return Status();
}

transport::RecvRequest* PointToPointRunner::unclaimed() { return unclaimed_ ? &in_ : nullptr; }

Status PointToPointRunner::advance(bool* moved) {
  if (unclaimed_ && in_.source >= 0) unclaimed_ = false;
  if (!arrived_ || done_) return Status();
  if (!sends() && in_.offered) {
    bool complete = false;
    DMLCOMM_RETURN_IF_ERROR(mesh_.link(in_.source).take_offer(in_, moved, &complete));
    if (!complete) return Status();
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

void PointToPointRunner::on_sent(transport::SendRequest&) { arrived_ = true; }

void PointToPointRunner::on_arrived(transport::RecvRequest& request) {
  if (request.offered || request.arrived == request.bytes) arrived_ = true;
}

void PointToPointRunner::provide_window(transport::RecvRequest&) { DMLCOMM_CHECK(false); }

}  // namespace dmlcomm::engine
