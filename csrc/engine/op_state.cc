#include "engine/op_state.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/str_cat.h"
#include "schedule/algorithms.h"

namespace dmlcomm::engine {

using schedule::OpKind;

namespace {

// So that ranks notice when they cut the same sum in different pieces. 0 for even ones.
uint32_t hash_of_uneven(const std::vector<uint64_t>& counts) {
  if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) {
    return 0;
  }
  uint32_t hash = 2166136261u;  // FNV-1a, over whole counts
  for (uint64_t count : counts) {
    hash = (hash ^ static_cast<uint32_t>(count ^ (count >> 32))) * 16777619u;
  }
  return std::max(hash, 1u);
}

}  // namespace

transport::OpInfo OpRequest::info() const {
  transport::OpInfo info;
  info.kind = static_cast<uint8_t>(shape.kind);
  info.root = shape.root;
  if (reduces()) {
    info.dtype = static_cast<uint8_t>(dtype);
    info.reduce_op = static_cast<uint8_t>(reduce_op);
  } else if (element) {
    info.dtype = static_cast<uint8_t>(1 + static_cast<uint8_t>(*element));
  }
  switch (shape.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::broadcast: info.count = shape.counts[0]; break;
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
      for (uint64_t count : shape.counts) info.count += count;
      info.root = hash_of_uneven(shape.counts);
      break;
    default: break;
  }
  return info;
}

std::string describe(const transport::OpInfo& info) {
  const auto kind = static_cast<OpKind>(info.kind);
  const bool reduces = schedule::reduces(kind);
  std::string text = str_cat(to_string(kind), "(");
  if (reduces) {
    text += str_cat(dmlcomm::to_string(static_cast<ReduceOp>(info.reduce_op)), ", ",
                    dmlcomm::to_string(static_cast<DType>(info.dtype)), ", ");
  }
  if (info.count > 0) text += str_cat(info.count, reduces ? " elements" : " bytes");
  if (!reduces && info.dtype > 0) {
    text += str_cat(info.count > 0 ? " of " : "",
                    dmlcomm::to_string(static_cast<DType>(info.dtype - 1)));
  }
  if (kind == OpKind::broadcast || kind == OpKind::reduce || kind == OpKind::gather ||
      kind == OpKind::scatter) {
    text += str_cat(text.back() == '(' ? "" : ", ", "root ", info.root);
  }
  if ((kind == OpKind::all_gather || kind == OpKind::reduce_scatter) && info.root != 0) {
    text += str_cat(" in uneven pieces (their hash is ", info.root, ")");
  }
  const auto& algorithms = schedule::all_algorithms();
  if (info.algorithm > 0 && info.algorithm <= algorithms.size()) {
    text += str_cat(text.back() == '(' ? "" : ", ", algorithms[info.algorithm - 1].name);
  }
  return text + ")";
}

Status disagreement(uint64_t sequence, const std::string& us, const transport::OpInfo& ours,
                    const std::string& them, const transport::OpInfo& theirs) {
  return Status(StatusCode::mismatch, "ranks disagree about collective #", sequence, ": ", us,
                " called ", describe(ours), ", ", them, " called ", describe(theirs),
                "; every rank must call the same operations in the same order");
}

transport::OpInfo info_of(const OpState& op, uint8_t algorithm) {
  transport::OpInfo info = op.info();
  info.algorithm = algorithm;
  return info;
}

OpState::OpState(Driver* driver, OpRequest request, uint64_t sequence, uint64_t age,
                 Deadline deadline)
    : driver_(driver),
      request_(std::move(request)),
      info_(request_.info()),
      sequence_(sequence),
      age_(age),
      deadline_(deadline),
      called_ns_(request_.ticket < kDefaultTicket ? now_ns() : kNever),
      ticket_(request_.ticket) {}

std::string OpState::text() const {
  if (request_.is_point_to_point()) {
    const std::string peer =
        request_.peer == kAnySource ? "any rank" : str_cat("rank ", request_.peer);
    const bool sends = request_.shape.kind == OpKind::send;
    return str_cat(sends ? "send(to " : "recv(from ", peer, ", tag ", request_.tag, ", ",
                   sends ? request_.input.bytes() : request_.output.bytes(), " bytes)");
  }
  return str_cat(describe(info_), " #", sequence_);
}

Status OpState::wait(std::chrono::milliseconds timeout) {
  if (!done() && !driver_->drive_until(*this, deadline_of_wait(timeout))) {
    return Status(StatusCode::timeout, "wait() gave up after ", timeout.count(), " ms; ", text(),
                  " goes on");
  }
  return status();
}

}  // namespace dmlcomm::engine
