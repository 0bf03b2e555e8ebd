// BmlStream: the order in which one stream of a BML algorithm visits the levels of the grid.
//
// Stream t of k is at level (w + t) mod k in *step* w, so in every step the k streams use k
// different levels, hence rails. After step w of the aggregation a host is responsible for the
// *set* of pieces whose owners have its own digit on the levels of steps 0 to w. The pieces of a
// stream lie in the order of their owners' digits, the first level visited being the most
// significant; then each set is one run of pieces, and the next step cuts it by one more digit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/chunk_size.h"
#include "schedule/rotation.h"
#include "schedule/schedule.h"
#include "topology/grid.h"

namespace dmlcomm::schedule {

// Chunks of a message. More shorten only the start and the end of a step, which four leave at a
// quarter.
constexpr uint32_t kMaxBmlChunks = 4;

// A run of pieces in the order of a stream.
struct PieceRun {
  uint32_t first, last;  // [first, last)
  uint32_t size() const { return last - first; }
};

class BmlStream {
 public:
  BmlStream(const topology::Grid& grid, uint32_t host, uint32_t stream)
      : grid_(grid), host_(host), stream_(stream) {}

  uint32_t num_steps() const { return grid_.num_levels(); }
  uint32_t level(uint32_t step) const { return (step + stream_) % grid_.num_levels(); }
  // Into how many parts a step cuts the set.
  uint32_t num_parts(uint32_t step) const { return grid_.size(level(step)); }
  uint32_t own_part(uint32_t step) const { return grid_.digit(host_, level(step)); }
  // The parts of the neighbours, in the order in which a host sends and receives.
  std::vector<uint32_t> parts_after(uint32_t step) const {
    return ranks_after(own_part(step), num_parts(step));
  }
  std::vector<uint32_t> parts_before(uint32_t step) const {
    return ranks_before(own_part(step), num_parts(step));
  }
  // The neighbour that is responsible for a part.
  uint32_t host_of_part(uint32_t step, uint32_t part) const {
    return grid_.with_digit(host_, level(step), part);
  }

  // The set before `step`, and the part of it for which `digit` is responsible after the step.
  PieceRun set(uint32_t step) const {
    PieceRun pieces{0, grid_.num_hosts()};
    for (uint32_t s = 0; s < step; ++s) pieces = cut(pieces, num_parts(s), own_part(s));
    return pieces;
  }
  PieceRun part(uint32_t step, uint32_t digit) const {
    return cut(set(step), num_parts(step), digit);
  }

  // Which host owns the piece at `place` of the stream.
  uint32_t owner(uint32_t place) const {
    uint32_t host = 0;
    for (uint32_t step = num_steps(); step-- > 0; place /= num_parts(step)) {
      host = grid_.with_digit(host, level(step), place % num_parts(step));
    }
    return host;
  }

  // The places of a message of `step`, each to be a message by itself, in the order of chunks.
  std::vector<uint32_t> places(uint32_t step, const PieceRun& message) const {
    std::vector<uint32_t> places;
    const uint32_t parts = step + 1 == num_steps() ? 1 : num_parts(step + 1);
    for (const auto& [first, last] : chunks(step, parts)) {
      const PieceRun chunk = cut(message, parts, first);
      for (uint32_t place = chunk.first; place < chunk.last; ++place) places.push_back(place);
    }
    return places;
  }

  static PieceRun cut(const PieceRun& pieces, uint32_t parts, uint32_t part) {
    const uint32_t size = pieces.size() / parts;
    return {pieces.first + part * size, pieces.first + (part + 1) * size};
  }

  // The chunks of a message of `step`, which sender and receiver work out from its bytes alone.
  // `cut(parts, first, last)` is the range of parts [first, last) of the message in `parts`.
  template <typename Cut>
  std::vector<Range> chunk_ranges(uint32_t step, uint64_t bytes, Cut cut) const {
    const uint32_t most = num_chunks(bytes, kMaxBmlChunks);
    const uint32_t parts = num_parts_cut_by(step, most);
    std::vector<Range> ranges;
    for (const auto& [first, last] : chunks(step, most)) {
      ranges.push_back(cut(parts, first, last));
    }
    return ranges;
  }

 private:
  // A message of `step` is sent in *chunks*, so that what has arrived can be passed on, or combined
  // for the next step, while the rest is on the wire. Chunks are cut where the next step cuts:
  // [first, last) of its parts, at most `num_chunks` of them. The chunk with the own part of the
  // next step comes first: without it the host cannot take part in that step. Neighbours agree on
  // all of this, since they have the same digit on the next step's level. In the last step, which
  // no other step follows, any cut will do.
  std::vector<std::pair<uint32_t, uint32_t>> chunks(uint32_t step, uint32_t num_chunks) const {
    const bool is_last = step + 1 == num_steps();
    const uint32_t parts = num_parts_cut_by(step, num_chunks);
    const uint32_t count = std::min(num_chunks, parts);
    std::vector<std::pair<uint32_t, uint32_t>> chunks;
    for (uint32_t i = 0; i < count; ++i) {
      chunks.emplace_back(uint64_t{i} * parts / count, uint64_t{i + 1} * parts / count);
    }
    const auto has_own = [&](const auto& chunk) {
      return !is_last && chunk.first <= own_part(step + 1) && own_part(step + 1) < chunk.second;
    };
    const auto first = std::find_if(chunks.begin(), chunks.end(), has_own);
    if (first != chunks.end()) std::rotate(chunks.begin(), first, chunks.end());
    return chunks;
  }

  // Into how many parts the messages of `step` are cut: [0, this) is a whole message.
  uint32_t num_parts_cut_by(uint32_t step, uint32_t num_chunks) const {
    return step + 1 == num_steps() ? num_chunks : num_parts(step + 1);
  }

  const topology::Grid& grid_;
  uint32_t host_;
  uint32_t stream_;
};

}  // namespace dmlcomm::schedule
