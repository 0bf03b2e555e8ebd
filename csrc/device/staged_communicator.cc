#include "device/staged_communicator.h"

#include <algorithm>
#include <utility>

#include "device/cuts.h"

namespace dmlcomm::device {

using engine::OperationPtr;
using engine::OpOptions;

namespace {

// Once the communicators are closed, what the device still has to take takes this long at most.
constexpr std::chrono::seconds kLastDrainTime{1};

// Nobody waits for operations of the host.
OpOptions of_host(OpOptions options) {
  options.inline_wait = false;
  return options;
}

}  // namespace

Result<std::shared_ptr<StagedCommunicator>> StagedCommunicator::create(
    Device& device, std::shared_ptr<engine::Communicator> messages, Meet meet, size_t part_bytes) {
  const size_t least = kLeastBytesPerRank * static_cast<size_t>(messages->num_ranks());
  const size_t bytes = round_up(std::max(part_bytes, least), page_bytes());
  Result<std::unique_ptr<Staging>> staging = Staging::create(device, bytes);
  if (!staging.ok()) return staging.status();
  return std::shared_ptr<StagedCommunicator>(
      new StagedCommunicator(std::move(*staging), std::move(messages), std::move(meet)));
}

StagedCommunicator::StagedCommunicator(std::unique_ptr<Staging> staging,
                                       std::shared_ptr<engine::Communicator> messages, Meet meet)
    : staging_(std::move(staging)), messages_(std::move(messages)), meet_(std::move(meet)) {}

StagedCommunicator::~StagedCommunicator() { close(); }

OperationPtr StagedCommunicator::all_reduce(void* data, size_t count, DType dtype, ReduceOp op,
                                            const OpOptions& options) {
  return run([&](engine::Communicator& host) {
    return cut_evenly(count * size_of(dtype), staging_->slot_bytes(), [&](size_t at, size_t bytes) {
      Part part = in_place(static_cast<std::byte*>(data) + at, bytes);
      part.start = [&host, dtype, op, bytes, options = of_host(options)](std::byte* slot) {
        return host.all_reduce(slot, bytes / size_of(dtype), dtype, op, options);
      };
      return part;
    });
  });
}

OperationPtr StagedCommunicator::reduce(const void* input, void* output, size_t count, DType dtype,
                                        ReduceOp op, int root, const OpOptions& options) {
  const Span from(input, count * size_of(dtype));
  auto* const to = rank() == root ? static_cast<std::byte*>(output) : nullptr;
  return run([&](engine::Communicator& host) {
    return cut_evenly(from.bytes, staging_->slot_bytes(), [&](size_t at, size_t bytes) {
      Part part = in_place(from.data + at, bytes);
      part.in = to == nullptr ? std::vector<Copy>() : std::vector<Copy>{{to + at, 0, bytes}};
      part.start = [&host, dtype, op, root, bytes, options = of_host(options)](std::byte* slot) {
        return host.reduce(slot, slot, bytes / size_of(dtype), dtype, op, root, options);
      };
      return part;
    });
  });
}

OperationPtr StagedCommunicator::broadcast(Span data, int root, const OpOptions& options) {
  return run([&](engine::Communicator& host) {
    return cut_evenly(data.bytes, staging_->slot_bytes(), [&](size_t at, size_t bytes) {
      Part part = in_place(data.data + at, bytes);
      (rank() == root ? part.in : part.out).clear();
      part.start = [&host, root, bytes, options = of_host(options)](std::byte* slot) {
        return host.broadcast({slot, bytes}, root, options);
      };
      return part;
    });
  });
}

OperationPtr StagedCommunicator::all_gather(Span input, std::vector<Span> outputs,
                                            const OpOptions& options) {
  const auto own = static_cast<size_t>(rank());
  const auto n = static_cast<size_t>(num_ranks());
  const Status status = check_pieces("all_gather", outputs, n, own, input.bytes);
  if (!status.ok()) return Staging::ended(status);
  return run([&](engine::Communicator& host) {
    const size_t room = staging_->slot_bytes() / n / kPieceAlignment * kPieceAlignment;
    return cut_pieces(outputs, room, [&](size_t at, const std::vector<size_t>& bytes) {
      Part part;
      for (size_t p = 0; p < n; ++p) {
        const Copy copy{outputs[p].data + at, p * room, bytes[p]};
        if (p != own || outputs[p].data != input.data) part.in.push_back(copy);
      }
      part.out.push_back({input.data + at, own * room, bytes[own]});
      part.bytes = n * room;
      part.start = [&host, bytes, room, own, options = of_host(options)](std::byte* slot) {
        std::vector<Span> results = pieces_at(slot, bytes, room);
        const Span contribution = results[own];
        return host.all_gather(contribution, std::move(results), options);
      };
      return part;
    });
  });
}

OperationPtr StagedCommunicator::reduce_scatter(std::vector<Span> inputs, Span output, DType dtype,
                                                ReduceOp op, const OpOptions& options) {
  const auto own = static_cast<size_t>(rank());
  const auto n = static_cast<size_t>(num_ranks());
  const Status status = check_pieces("reduce_scatter", inputs, n, own, output.bytes);
  if (!status.ok()) return Staging::ended(status);
  return run([&](engine::Communicator& host) {
    const size_t room = staging_->slot_bytes() / (n + 1) / kPieceAlignment * kPieceAlignment;
    return cut_pieces(inputs, room, [&](size_t at, const std::vector<size_t>& bytes) {
      Part part;
      for (size_t p = 0; p < n; ++p) {
        part.out.push_back({inputs[p].data + at, p * room, bytes[p]});
      }
      part.in.push_back({output.data + at, n * room, bytes[own]});
      part.bytes = (n + 1) * room;
      part.start = [&host, bytes, room, own, n, dtype, op,
                    options = of_host(options)](std::byte* slot) {
        return host.reduce_scatter(pieces_at(slot, bytes, room), {slot + n * room, bytes[own]},
                                   dtype, op, options);
      };
      return part;
    });
  });
}

OperationPtr StagedCommunicator::gather(Span input, std::vector<Span> outputs, int root,
                                        const OpOptions& options) {
  return run_whole({input}, outputs,
                   [root, options = of_host(options)](auto& host, Spans from, Spans to) {
                     return host.gather(from.front(), std::move(to), root, options);
                   });
}

OperationPtr StagedCommunicator::scatter(std::vector<Span> inputs, Span output, int root,
                                         const OpOptions& options) {
  return run_whole(inputs, {output},
                   [root, options = of_host(options)](auto& host, Spans from, Spans to) {
                     return host.scatter(std::move(from), to.front(), root, options);
                   });
}

OperationPtr StagedCommunicator::all_to_all(std::vector<Span> inputs, std::vector<Span> outputs,
                                            const OpOptions& options) {
  return run_whole(inputs, outputs, [options = of_host(options)](auto& host, Spans from, Spans to) {
    return host.all_to_all(std::move(from), std::move(to), options);
  });
}

OperationPtr StagedCommunicator::barrier(const OpOptions& options) {
  return run_whole({}, {}, [options = of_host(options)](auto& host, const Spans&, const Spans&) {
    return host.barrier(options);
  });
}

OperationPtr StagedCommunicator::send(Span data, int destination, uint32_t tag,
                                      const OpOptions& options) {
  Part part = in_place(data.data, data.bytes);
  part.in.clear();
  part.start = [this, bytes = data.bytes, destination, tag,
                options = of_host(options)](std::byte* slot) {
    return messages_->send({slot, bytes}, destination, tag, options);
  };
  return run_message({Line::Kind::sends, destination, tag}, std::move(part));
}

OperationPtr StagedCommunicator::recv(Span data, int source_or_any, uint32_t tag,
                                      const OpOptions& options) {
  Part part = in_place(data.data, data.bytes);
  part.out.clear();
  part.start = [this, bytes = data.bytes, source_or_any, tag,
                options = of_host(options)](std::byte* slot) {
    return messages_->recv({slot, bytes}, source_or_any, tag, options);
  };
  return run_message({Line::Kind::receives, 0, tag}, std::move(part));
}

OperationPtr StagedCommunicator::run(const Cut& cut) {
  return in_order([&](engine::Communicator& host, uint64_t sequence) {
    return staging_->run(cut(host), sequence);
  });
}

OperationPtr StagedCommunicator::run_whole(const Spans& inputs, const Spans& outputs,
                                           const StartWhole& start) {
  Part part;
  part.out = copies_after(inputs, &part.bytes);
  part.in = copies_after(outputs, &part.bytes);
  return in_order([&](engine::Communicator& host, uint64_t sequence) {
    part.start = [&host, from = part.out, to = part.in, start](std::byte* slot) {
      return start(host, spans_at(slot, from), spans_at(slot, to));
    };
    return staging_->run_alone(Line{}, std::move(part), sequence);
  });
}

template <typename Submit>
OperationPtr StagedCommunicator::in_order(Submit submit) {
  std::lock_guard lock(order_);
  const Status status = meet_once();
  const uint64_t sequence = ++sequence_;
  if (!status.ok()) return Staging::ended(status, sequence);
  return submit(*collectives(), sequence);
}

OperationPtr StagedCommunicator::run_message(const Line& line, Part part) {
  const Status status = refusal();
  if (!status.ok()) return Staging::ended(status);
  return staging_->run_alone(line, std::move(part), 0);
}

Status StagedCommunicator::meet() {
  std::lock_guard lock(order_);
  return meet_once();
}

// With order_ held.
Status StagedCommunicator::meet_once() {
  DMLCOMM_RETURN_IF_ERROR(refusal());
  if (collectives() != nullptr) return Status();
  if (std::exchange(has_tried_to_meet_, true)) {
    return {StatusCode::aborted,
            "the ranks of this group did not meet for operations on its device, when it was first "
            "used; make a new group"};
  }
  Result<std::shared_ptr<engine::Communicator>> met = meet_();
  if (!met.ok()) return met.status();
  std::lock_guard lock(collectives_mutex_);
  collectives_ = std::move(*met);
  return Status();
}

std::shared_ptr<engine::Communicator> StagedCommunicator::collectives() const {
  std::lock_guard lock(collectives_mutex_);
  return collectives_;
}

// Why nothing can be called any more, or ok.
Status StagedCommunicator::refusal() const {
  if (Status status = error(); !status.ok()) return status;
  if (closed_.load()) return {StatusCode::aborted, "the group was closed"};
  return Status();
}

void StagedCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  messages_->set_timeout(timeout);
  if (const auto host = collectives()) host->set_timeout(timeout);
}

void StagedCommunicator::abort(const std::string& reason) {
  messages_->abort(reason);
  if (const auto host = collectives()) host->abort(reason);
}

void StagedCommunicator::close() {
  if (closed_.exchange(true)) return;
  (void)staging_->drain(kDrainTime);
  // A rank that was stopped may yet write to the memory of what has failed.
  const bool has_failed = !error().ok();
  const auto host = collectives();
  if (host != nullptr) host->close();
  messages_->close();
  (void)staging_->drain(kLastDrainTime);
  staging_->stop({StatusCode::aborted, "the group was closed"}, has_failed || has_writer());
}

Status StagedCommunicator::error() const {
  const auto host = collectives();
  const Status status = host == nullptr ? Status() : host->error();
  return status.ok() ? messages_->error() : status;
}

bool StagedCommunicator::has_writer() const {
  const auto host = collectives();
  return messages_->has_writer() || (host != nullptr && host->has_writer());
}

std::vector<transport::RailCounters> StagedCommunicator::rails() {
  std::vector<transport::RailCounters> all = messages_->rails();
  if (const auto host = collectives()) transport::add_rails(all, host->rails());
  return all;
}

}  // namespace dmlcomm::device
