#include "engine/local/direct_transfers.h"

#include <utility>

#include "topology/partition.h"

namespace dmlcomm::engine {
namespace {

using schedule::OpKind;

// Broadcasts up to this size are fetched whole by every rank: cutting them in parts saves less than
// the additional system calls cost.
constexpr uint64_t kMinSharedBroadcastBytes = 128 * 1024;

Region region_of(Span piece) { return {reinterpret_cast<uint64_t>(piece.data), piece.bytes}; }

// The regions of a reduction, besides reduce_scatter: the input, and the output on a root.
constexpr size_t kInput = 0;
constexpr size_t kRootOutput = 1;

class TransferPlanner {
 public:
  TransferPlanner(const OpRequest& request, int rank, const std::vector<std::vector<Region>>& shown)
      : request_(request),
        rank_(rank),
        num_ranks_(static_cast<int>(shown.size())),
        root_(static_cast<int>(request.shape.root)),
        shown_(shown) {}

  Result<std::vector<Transfer>> plan() {
    switch (request_.shape.kind) {
      case OpKind::all_reduce:
      case OpKind::reduce: plan_reduction(); break;
      case OpKind::reduce_scatter: plan_reduce_scatter(); break;
      case OpKind::broadcast: plan_broadcast(); break;
      case OpKind::all_gather:
      case OpKind::gather: plan_gather(); break;
      case OpKind::scatter:
      case OpKind::all_to_all: plan_scatter(); break;
      default: break;
    }
    if (!status_.ok()) return status_;
    return std::move(transfers_);
  }

 private:
  const Region& region(int rank, size_t index) const {
    return shown_[static_cast<size_t>(rank)][index];
  }
  Place place(int rank, size_t index, uint64_t offset) const {
    const Region& of = region(rank, index);
    return {rank, of.address + offset, of.in_slot != 0};
  }
  // The other ranks, each beginning with its successor, so that not all work on the same one.
  int other(int i) const { return (rank_ + i) % num_ranks_; }

  void add(Transfer transfer) {
    if (transfer.bytes > 0) transfers_.push_back(std::move(transfer));
  }

  // The run of bytes of the vector that this rank takes care of.
  std::pair<uint64_t, uint64_t> own_part() const {
    const auto element = static_cast<uint32_t>(size_of(request_.dtype));
    const topology::Partition cuts(request_.shape.counts[0], static_cast<uint32_t>(num_ranks_),
                                   element);
    const auto r = static_cast<uint32_t>(rank_);
    return {cuts.begin(r) * element, cuts.length(r) * element};
  }

  // The same place of every rank, in rank order.
  std::vector<Place> places(size_t index, uint64_t offset) const {
    std::vector<Place> all;
    for (int rank = 0; rank < num_ranks_; ++rank) all.push_back(place(rank, index, offset));
    return all;
  }

  void plan_reduction() {
    const bool to_all = request_.shape.kind == OpKind::all_reduce;
    const auto [offset, bytes] = own_part();
    Transfer t{bytes, places(kInput, offset), nullptr, {}};
    if (bytes > 0 && (to_all || rank_ == root_)) t.result = request_.output.at(offset, bytes);
    for (int i = 1; i < num_ranks_; ++i) {
      if (to_all) t.targets.push_back(place(other(i), kInput, offset));
      if (!to_all && other(i) == root_) t.targets.push_back(place(root_, kRootOutput, offset));
    }
    add(std::move(t));
  }

  void plan_reduce_scatter() {
    Transfer t{request_.output.bytes(), places(static_cast<size_t>(rank_), 0), nullptr, {}};
    if (t.bytes > 0) t.result = request_.output.at(0, t.bytes);
    for (int rank = 0; rank < num_ranks_; ++rank) expect(rank, t.bytes);
    add(std::move(t));
  }

  void plan_broadcast() {
    const uint64_t total = request_.output.bytes();
    const bool is_shared = total >= kMinSharedBroadcastBytes;
    if (!is_shared && rank_ == root_) return;
    const auto [offset, bytes] = is_shared ? own_part() : std::pair{uint64_t{0}, total};
    Transfer t{bytes, {place(root_, kInput, offset)}, nullptr, {}};
    if (rank_ != root_ && bytes > 0) t.result = request_.output.at(offset, bytes);
    for (int i = 1; is_shared && i < num_ranks_; ++i) {
      if (other(i) != root_) t.targets.push_back(place(other(i), kInput, offset));
    }
    add(std::move(t));
  }

  void plan_gather() {
    const bool to_all = request_.shape.kind == OpKind::all_gather;
    const auto own = static_cast<size_t>(rank_);
    Transfer t{request_.input.bytes(), {}, nullptr, {}};
    const auto input = reinterpret_cast<uint64_t>(request_.input.at(0, t.bytes));
    t.sources.push_back({rank_, input});
    if (to_all || rank_ == root_) {
      t.result = request_.output.piece(own).data;
    }
    for (int i = 1; i < num_ranks_; ++i) {
      if (!to_all && other(i) != root_) continue;
      expect(other(i), t.bytes);
      t.targets.push_back(place(other(i), own, 0));
    }
    add(std::move(t));
  }

  void plan_scatter() {
    const bool from_all = request_.shape.kind == OpKind::all_to_all;
    const auto own = static_cast<size_t>(rank_);
    for (int i = 0; i < num_ranks_; ++i) {
      const int source = other(i);
      if (!from_all && source != root_) continue;
      const Span piece = request_.output.piece(from_all ? static_cast<size_t>(source) : 0);
      expect(source, piece.bytes);
      add({piece.bytes, {place(source, own, 0)}, piece.data, {}});
    }
  }

  // What `rank` shows for this one must have as many bytes as this one has.
  void expect(int rank, uint64_t bytes) {
    const uint64_t theirs = region(rank, static_cast<size_t>(rank_)).bytes;
    if (theirs == bytes || !status_.ok()) return;
    status_ = Status(StatusCode::mismatch, "the piece between rank ", rank_, " and rank ", rank,
                     " has ", bytes, " bytes on rank ", rank_, " and ", theirs, " bytes on rank ",
                     rank, "; sizes must fit between the ranks");
  }

  const OpRequest& request_;
  const int rank_;
  const int num_ranks_;
  const int root_;
  const std::vector<std::vector<Region>>& shown_;
  std::vector<Transfer> transfers_;
  Status status_;
};

std::vector<Region> pieces_of(const BufferView& view) {
  std::vector<Region> regions;
  for (size_t i = 0; i < view.num_pieces(); ++i) regions.push_back(region_of(view.piece(i)));
  return regions;
}

}  // namespace

size_t max_regions(OpKind kind, size_t num_ranks) {
  switch (kind) {
    case OpKind::all_reduce:
    case OpKind::broadcast: return 1;
    case OpKind::reduce: return 2;
    default: return num_ranks;
  }
}

std::vector<Region> shown_regions(const OpRequest& request, bool is_root) {
  switch (request.shape.kind) {
    case OpKind::all_reduce:
    case OpKind::broadcast: return {region_of(request.output.piece(0))};
    case OpKind::reduce:
      if (!is_root) return {region_of(request.input.piece(0))};
      return {region_of(request.input.piece(0)), region_of(request.output.piece(0))};
    case OpKind::reduce_scatter:
    case OpKind::all_to_all: return pieces_of(request.input);
    case OpKind::scatter: return is_root ? pieces_of(request.input) : std::vector<Region>();
    case OpKind::all_gather: return pieces_of(request.output);
    case OpKind::gather: return is_root ? pieces_of(request.output) : std::vector<Region>();
    default: return {};
  }
}

bool is_written_by_others(const OpRequest& request, bool is_root, size_t region) {
  switch (request.shape.kind) {
    case OpKind::broadcast: return !is_root;
    case OpKind::reduce: return region == kRootOutput;
    case OpKind::reduce_scatter:
    case OpKind::scatter:
    case OpKind::all_to_all: return false;
    default: return true;
  }
}

Result<std::vector<Transfer>> transfers_of(const OpRequest& request, int rank,
                                           const std::vector<std::vector<Region>>& shown) {
  return TransferPlanner(request, rank, shown).plan();
}

}  // namespace dmlcomm::engine
