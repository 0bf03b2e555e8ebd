#include "engine/point_to_point.h"

#include <algorithm>

#include "base/check.h"

namespace dmlcomm::engine {
namespace {

constexpr size_t kPullBytes = 1u << 20;  // read in one go, so that others get their turn

}  // namespace

PointToPointRunner::PointToPointRunner(transport::Mesh& mesh, OpState& op, uint64_t order)
    : mesh_(mesh), op_(op) {
  const OpRequest& request = op.request();
  const transport::Tag tag = transport::point_to_point_tag(request.tag);
  out_.tag = in_.tag = tag;
  out_.op = in_.op = op.info();
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

Status PointToPointRunner::start() {
  const int peer = op_.request().peer;
  if (sends()) {
    mesh_.link(peer).send(out_);
  } else if (peer == kAnySource) {
    start_any_source();
  } else {
    mesh_.link(peer).recv(in_);
  }
  return Status();
}

// Takes the oldest message that waits on any link, or waits for the first to come.
void PointToPointRunner::start_any_source() {
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
}

transport::RecvRequest* PointToPointRunner::unclaimed() { return unclaimed_ ? &in_ : nullptr; }

Status PointToPointRunner::advance(bool* moved) {
  if (unclaimed_ && in_.source >= 0) unclaimed_ = false;
  if (!arrived_ || done_) return Status();
  *moved = true;
  if (!sends() && in_.offered) {
    transport::Link& link = mesh_.link(in_.source);
    const size_t bytes = std::min(kPullBytes, in_.bytes - position_);
    DMLCOMM_RETURN_IF_ERROR(link.pull(in_, position_, bytes, in_.destination + position_));
    position_ += bytes;
    if (position_ < in_.bytes) return Status();
    link.finish_offer(in_);
  }
  if (!sends()) op_.set_source(in_.source);
  done_ = true;
  return Status();
}

bool PointToPointRunner::waits_for(int peer) const {
  if (done_) return false;
  const int wanted = op_.request().peer;
  return wanted == kAnySource ? in_.source == peer : wanted == peer;
}

void PointToPointRunner::on_sent(transport::SendRequest&) { arrived_ = true; }

void PointToPointRunner::on_arrived(transport::RecvRequest& request) {
  if (request.offered || request.arrived == request.bytes) arrived_ = true;
}

void PointToPointRunner::provide_window(transport::RecvRequest&) { DMLCOMM_CHECK(false); }

}  // namespace dmlcomm::engine
