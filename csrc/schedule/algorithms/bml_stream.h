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

#include "schedule/algorithms/generators.h"

namespace dmlcomm::schedule {

// Chunks of a message. With more, a step would begin no earlier: eight took as long as four in the
// simulation of 1 to 100 MB.
constexpr uint32_t kMaxBmlChunks = 4;

// In which order the chunks of a message follow each other, so that the next step has begun when
// the last of them arrives. Parts count down, as they come around a ring.
enum class ChunkOrder {
  // The part of the next step that is the host's own: if all neighbours exchange at once, they all
  // wait for it; in a broadcast the host has had it for longest.
  own_first,
  // Around a ring the next step needs the own part last, and the one below it first.
  own_last,
};

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
    for (const PieceRun& chunk : chunks(step, message, parts, ChunkOrder::own_first, cut_pieces)) {
      for (uint32_t place = chunk.first; place < chunk.last; ++place) places.push_back(place);
    }
    return places;
  }

  // Parts [first, last) of pieces in `parts`.
  static PieceRun cut_pieces(const PieceRun& pieces, uint32_t parts, uint32_t first,
                             uint32_t last) {
    const uint32_t size = pieces.size() / parts;
    return {pieces.first + first * size, pieces.first + last * size};
  }

  static PieceRun cut(const PieceRun& pieces, uint32_t parts, uint32_t part) {
    return cut_pieces(pieces, parts, part, part + 1);
  }

  // A message of `step` is sent in *chunks*, so that arrived data can be passed on, or combined
  // for the next step, while the rest is on the wire. Chunks are cut where the next step cuts:
  // either they are runs of its parts, or each part is cut as the next step would cut it. Sender
  // and receiver agree on all of this, since they differ on the level of `step` only. In the last
  // step, which no other step follows, any cut will do.
  //
  // `cut(message, parts, first, last)` is parts [first, last) of a message in `parts`.
  template <typename Message, typename Cut>
  std::vector<Message> chunks(uint32_t step, const Message& message, uint32_t num_chunks,
                              ChunkOrder order, Cut cut) const {
    std::vector<Message> chunks;
    const bool is_last = step + 1 == num_steps();
    const uint32_t parts = is_last ? num_chunks : num_parts(step + 1);
    if (is_last || num_chunks < 2 * parts) {
      for (const auto& [first, last] : part_runs(step, std::min(num_chunks, parts), parts, order)) {
        chunks.push_back(cut(message, parts, first, last));
      }
      return chunks;
    }
    std::vector<std::vector<Message>> of_parts;
    for (const auto& [first, last] : part_runs(step, parts, parts, order)) {
      const Message part = cut(message, parts, first, last);
      of_parts.push_back(this->chunks(step + 1, part, num_chunks / parts, order, cut));
    }
    return in_turns(of_parts);
  }

 private:
  using PartRun = std::pair<uint32_t, uint32_t>;  // [first, second) of the parts of the next step

  // The parts of the next step in `count` runs, in their order.
  std::vector<PartRun> part_runs(uint32_t step, uint32_t count, uint32_t parts,
                                 ChunkOrder order) const {
    std::vector<PartRun> runs;
    for (uint32_t i = count; i-- > 0;) {
      runs.emplace_back(uint64_t{i} * parts / count, uint64_t{i + 1} * parts / count);
    }
    if (step + 1 == num_steps()) return runs;
    const uint32_t own = own_part(step + 1);
    const auto it = std::find_if(runs.begin(), runs.end(), [&](const PartRun& run) {
      return run.first <= own && own < run.second;
    });
    std::rotate(runs.begin(), order == ChunkOrder::own_first ? it : it + 1, runs.end());
    return runs;
  }

  // Of lists of one length: the first of each, then the second of each, ...
  template <typename Message>
  static std::vector<Message> in_turns(const std::vector<std::vector<Message>>& lists) {
    std::vector<Message> merged;
    for (size_t i = 0; i < lists.front().size(); ++i) {
      for (const auto& list : lists) merged.push_back(list[i]);
    }
    return merged;
  }

  const topology::Grid& grid_;
  uint32_t host_;
  uint32_t stream_;
};

// What streams of all_reduce and reduce_scatter have in common: one stream of one member of a
// group, which adds its steps to a schedule.
class BmlMember {
 protected:
  BmlMember(ScheduleBuilder* builder, const Group& group, const topology::Grid& grid,
            uint32_t stream, uint32_t segment, uint32_t element_bytes)
      : builder_(builder),
        group_(group),
        order_(grid, group.index, stream),
        stream_(static_cast<uint16_t>(segment * grid.num_levels() + stream)),
        element_bytes_(element_bytes) {}

  // The steps that follow are those of `step`.
  void enter(uint32_t step) { builder_->on(stream_, static_cast<uint8_t>(order_.level(step))); }

  uint32_t rank_of(uint32_t step, uint32_t part) const {
    return group_.ranks[order_.host_of_part(step, part)];
  }

  std::vector<uint32_t> senders(uint32_t step) const {
    std::vector<uint32_t> ranks;
    for (uint32_t p : order_.parts_before(step)) ranks.push_back(rank_of(step, p));
    return ranks;
  }

  ScheduleBuilder* builder_;
  const Group& group_;
  const BmlStream order_;
  const uint16_t stream_;
  const uint32_t element_bytes_;
};

}  // namespace dmlcomm::schedule
