#include "engine/local/direct_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "engine/segments.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "schedule/algorithms/shared_memory.h"

namespace dmlcomm::engine {
namespace {

// Copies inside this process of at least this size go past the cache.
constexpr uint64_t kStreamBytes = 2u << 20;

bool reduces(const Transfer& transfer) { return transfer.sources.size() > 1; }

// For memory that all ranks map: sums are still in the nearest cache when they are copied. (4
// ranks, 16 MiB: 3.8 ms; 4.1 ms with 16 KiB or 128 KiB.)
constexpr size_t kMappedSegmentBytes = 64 * 1024;

bool is_mapped(const Transfer& transfer) {
  const auto is_here = [](const Place& place) { return place.here != nullptr; };
  return std::all_of(transfer.sources.begin(), transfer.sources.end(), is_here) &&
         std::all_of(transfer.targets.begin(), transfer.targets.end(), is_here);
}

// Bytes that are used again at once stay in the cache; plain copies are not cut up for that.
size_t segment_bytes(const Transfer& transfer) {
  if (is_mapped(transfer)) return kMappedSegmentBytes;
  if (reduces(transfer)) {
    return segment_bytes_for(transfer.sources.size(), kMaxDirectSegmentBytes);
  }
  return transfer.targets.empty() ? transport::kPullBytes : kMaxDirectSegmentBytes;
}

}  // namespace

DirectRunner::DirectRunner(Board& board, const OpState& op, const schedule::Algorithm& algorithm,
                           MemoryPool& pool)
    : BoardRunner(board, op, algorithm),
      pool_(pool),
      may_copy_(schedule::copies_to_slots(op.request().shape, board.memory())),
      shown_(static_cast<size_t>(board.num_ranks())) {
  std::vector<Region>& own = shown_[static_cast<size_t>(rank())];
  own = shown_regions(request(), is_root());
  consider_sharing(own);
}

DirectRunner::~DirectRunner() { pool_.give_back(std::move(staging_)); }

void DirectRunner::stop() {
  board().header().accepts_round.store(0);
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (rank == this->rank()) continue;
    // A link that has failed says nothing of the process behind it, which may just be frozen.
    transport::CooperativeMemory* const words = board().link(rank).memory()->cooperative();
    if (words == nullptr || words->wait_for_peers_write()) continue;
    for (SharedBlocks::Use& use : uses_) use.abandon();
  }
  uses_.clear();
}

void DirectRunner::put() {
  if (round_of_op() == 2) return;
  std::vector<Region>& own = shown_[static_cast<size_t>(rank())];
  first_round_ = round();
  for (size_t i = 0; i < own.size(); ++i) {
    show(own[i], is_written_by_others(request(), is_root(), i));
  }
  own.resize(num_regions());
  std::memcpy(board().own_slot(round()), own.data(), own.size() * sizeof(Region));
  board().header().accepts_round.store(first_round_);
}

Status DirectRunner::take(int rank) {
  if (round_of_op() == 2) return Status();
  std::vector<Region>& theirs = shown_[static_cast<size_t>(rank)];
  theirs.resize(num_regions());
  std::memcpy(theirs.data(), board().slot_of(rank, round()), theirs.size() * sizeof(Region));
  return Status();
}

Status DirectRunner::all_taken() {
  if (round_of_op() == 1) {
    begin_work();
    return prepare();
  }
  board().header().accepts_round.store(0);
  if (copy_ != nullptr) std::memcpy(tensor().data, copy_, tensor().bytes);
  finish();
  return Status();
}

// Of what the others use: what fills a block from end to end, perhaps with several pieces.
void DirectRunner::consider_sharing(const std::vector<Region>& regions) {
  Region run;
  const auto consider = [&run] {
    SharedBlocks::instance().consider(reinterpret_cast<const void*>(run.address), run.bytes);
  };
  for (const Region& region : regions) {
    if (run.address + run.bytes != region.address) {
      consider();
      run = {region.address, 0};
    }
    run.bytes += region.bytes;
  }
  consider();
}

// Says where the others find the region.
void DirectRunner::show(Region& region, bool is_result) {
  auto use = SharedBlocks::instance().use(reinterpret_cast<const void*>(region.address),
                                          region.bytes, is_result);
  if (use.address() != 0) {
    region.address = use.address();
    uses_.push_back(std::move(use));
  } else if (may_copy_) {
    copy_to_slot(region);
  }
}

void DirectRunner::copy_to_slot(Region& region) {
  DMLCOMM_CHECK(region.bytes <= most_copied_bytes(board().slot_bytes()));
  copy_ = board().own_slot(round()) + kCopyOffset;
  std::memcpy(copy_, reinterpret_cast<const void*>(region.address), region.bytes);
  region = {kCopyOffset, region.bytes, 1};
}

// Null if it does not end inside the slot.
std::byte* DirectRunner::find_in_slot(int rank, uint64_t address, uint64_t bytes) const {
  const size_t room = board().slot_bytes();
  if (address > room || bytes > room - address) return nullptr;
  return board().slot_of(rank, first_round_) + address;
}

std::byte* DirectRunner::find_here(const Place& place, uint64_t bytes) const {
  if (place.in_slot) return find_in_slot(place.rank, place.address, bytes);
  if (place.rank == rank()) return reinterpret_cast<std::byte*>(place.address);
  return board().link(place.rank).memory()->mapped({place.address}, bytes);
}

Status DirectRunner::prepare() {
  auto transfers = transfers_of(request(), rank(), shown_);
  if (!transfers.ok()) {
    return Status(transfers.status().code(), "in ", op().text(), ": ",
                  transfers.status().message());
  }
  transfers_ = std::move(*transfers);
  for (Transfer& t : transfers_) {
    for (Place& source : t.sources) source.here = find_here(source, t.bytes);
    for (Place& target : t.targets) target.here = find_here(target, t.bytes);
    if (copy_ != nullptr) t.result = copy_ + (t.result - tensor().data);
  }
  // A reduction keeps a segment of each source there, and the result of one that is passed on.
  size_t bytes = 0;
  for (const Transfer& t : transfers_) {
    if (reduces(t)) bytes = std::max(bytes, (t.sources.size() + 1) * segment_bytes(t));
  }
  if (bytes > 0) staging_ = pool_.take(bytes);
  return Status();
}

// One segment. Bytes from a rank that gave up meanwhile may be anything: then the others must not
// believe that all is in place.
Status DirectRunner::work(bool* moved) {
  if (abandoned_) return Status();
  *moved = true;
  if (current_ < transfers_.size()) {
    const Transfer& transfer = transfers_[current_];
    const size_t bytes = std::min<uint64_t>(segment_bytes(transfer), transfer.bytes - position_);
    DMLCOMM_RETURN_IF_ERROR(move_segment(transfer, position_, bytes));
    if (abandoned_) return Status();
    position_ += bytes;
    if (position_ < transfer.bytes) return Status();
    ++current_;
    position_ = 0;
  }
  if (current_ < transfers_.size()) return Status();
  abandoned_ = !all_accept();
  if (!abandoned_) enter();
  return Status();
}

// Until all are through with the first round's work a rank accepts, unless it has given up.
bool DirectRunner::accepts(int rank) const {
  return board().header_of(rank).accepts_round.load() == first_round_;
}

bool DirectRunner::all_accept() const {
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (rank != this->rank() && !accepts(rank)) return false;
  }
  return true;
}

Status DirectRunner::read(const Place& source, uint64_t position, std::byte* to, size_t bytes) {
  transport::Access access{};
  Status status =
      board().link(source.rank).read_memory({source.address + position}, to, bytes, &access);
  abandoned_ = abandoned_ || access == transport::Access::revoked;
  return status;
}

Status DirectRunner::move_segment(const Transfer& transfer, uint64_t position, size_t bytes) {
  Result<const std::byte*> data = reduces(transfer) ? reduce_segment(transfer, position, bytes)
                                                    : copy_segment(transfer, position, bytes);
  if (!data.ok()) return data.status();
  if (abandoned_) return Status();
  for (const Place& target : transfer.targets) {
    DMLCOMM_RETURN_IF_ERROR(write_to(target, position, *data, bytes));
  }
  return Status();
}

Result<const std::byte*> DirectRunner::reduce_segment(const Transfer& transfer, uint64_t position,
                                                      size_t bytes) {
  std::vector<const void*> sources;
  std::byte* free = staging_.get();
  for (const Place& source : transfer.sources) {
    if (source.here != nullptr) {
      sources.push_back(source.here + position);
      continue;
    }
    DMLCOMM_RETURN_IF_ERROR(read(source, position, free, bytes));
    sources.push_back(free);
    free += segment_bytes(transfer);
  }
  std::byte* result = transfer.result != nullptr ? transfer.result + position : free;
  kernels::reduce(result, sources.data(), sources.size(), bytes / size_of(request().dtype),
                  request().dtype, request().reduce_op, divisor());
  return static_cast<const std::byte*>(result);
}

Result<const std::byte*> DirectRunner::copy_segment(const Transfer& transfer, uint64_t position,
                                                    size_t bytes) {
  const Place& source = transfer.sources[0];
  std::byte* result = transfer.result == nullptr ? nullptr : transfer.result + position;
  if (source.here == nullptr) {
    DMLCOMM_RETURN_IF_ERROR(read(source, position, result, bytes));
    return static_cast<const std::byte*>(result);
  }
  const std::byte* own = source.here + position;
  if (result == nullptr || result == own) return own;
  if (transfer.bytes >= kStreamBytes) {
    kernels::stream_copy(result, own, bytes);
  } else {
    std::memcpy(result, own, bytes);
  }
  return own;
}

Status DirectRunner::write_to(const Place& target, uint64_t position, const std::byte* data,
                              size_t bytes) {
  transport::Link& link = board().link(target.rank);
  const transport::WriteGuard guard(*link.memory()->cooperative());
  if (!accepts(target.rank)) {
    abandoned_ = true;
  } else if (target.here != nullptr) {
    std::memcpy(target.here + position, data, bytes);
  } else {
    transport::Access access{};
    return link.write_memory({target.address + position}, data, bytes, &access);
  }
  return Status();
}

}  // namespace dmlcomm::engine
