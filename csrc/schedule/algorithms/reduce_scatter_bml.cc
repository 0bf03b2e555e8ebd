// reduce_scatter, BML: the aggregation of the BML all_reduce, level by level on all rails at once.
//
// Source, vocabulary and requirements: all_reduce_bml.cc. Here the pieces are given: rank p owns
// piece p, pieces may differ in length, and stream t works on the t-th of k parts of every piece.
//
// Steps: k. In the first the input's pieces, which may be separate tensors, go one by one: N - N /
// n messages per stream; partial sums lie in scratch from then on, in the order of the stream, so
// that what goes to a neighbour is one range. On the wire: (N - 1) / (k N) S bytes per rail, 1 / k
// of the least that one rail allows. Scratch: S / n elements.
//
// Example, BCube(2, 2), stream 0 on host 0: sends its parts of pieces 1 and 3 to host 1 on rail 0,
// and combines 0 and 2 in scratch; sends the sum of 2 to host 2 on rail 1, and finishes 0.
#include "schedule/algorithms/generators.h"

#include <algorithm>

#include "schedule/algorithms/bml_shares.h"
#include "schedule/algorithms/bml_stream.h"

namespace dmlcomm::schedule {
namespace {

// One stream of one member.
class ScatteringStream : BmlMember {
 public:
  ScatteringStream(ScheduleBuilder* builder, const Group& group, const topology::Grid& grid,
                   const BmlShares& shares, uint32_t stream, const std::vector<Range>& versions,
                   const Range& result, uint32_t element_bytes)
      : BmlMember(builder, group, grid, stream, 0, element_bytes),
        result_(shares.cut(result, stream, element_bytes)),
        begins_{0} {
    for (uint32_t place = 0; place < grid.num_hosts(); ++place) {
      const Range& version = versions[order_.owner(place)];
      versions_.push_back(shares.cut(version, stream, element_bytes));
      begins_.push_back(begins_.back() + versions_.back().length);
    }
    const PieceRun kept = order_.set(1);
    if (order_.num_steps() > 1) {
      scratch_ = builder->use_scratch(begins_[kept.last] - begins_[kept.first]);
    }
  }

  void first_step() {
    enter(0);
    const auto after = order_.parts_after(0);
    for (uint32_t i = 0; i < order_.part(0, 0).size(); ++i) {
      for (uint32_t p : after) {
        builder_->send(versions_[order_.places(0, order_.part(0, p))[i]], rank_of(0, p));
      }
    }
    const bool is_last = order_.num_steps() == 1;
    for (uint32_t place : order_.places(0, order_.set(1))) {
      const Range target = is_last ? result_ : sums({place, place + 1});
      builder_->recv_reduce_run(target, versions_[place], senders(0), is_last);
    }
  }

  // Invariant: before step w > 0 scratch has the sums of the set of step w over the hosts that
  // differ from this one on the levels of steps before w only.
  void later_step(uint32_t step) {
    enter(step);
    const auto after = order_.parts_after(step);
    for (uint32_t chunk = 0; chunk < kMaxBmlChunks; ++chunk) {
      for (uint32_t p : after) {
        const auto chunks = chunks_of(step, order_.part(step, p));
        if (chunk < chunks.size()) builder_->send(chunks[chunk], rank_of(step, p));
      }
    }
    if (step + 1 == order_.num_steps()) {
      return builder_->recv_reduce_run(result_, sums(order_.set(step + 1)), senders(step));
    }
    for (const Range& chunk : chunks_of(step, order_.set(step + 1))) {
      builder_->recv_reduce_run(chunk, chunk, senders(step), false);
    }
  }

 private:
  // Where the sums of pieces of the set after step 0 lie.
  Range sums(const PieceRun& pieces) const {
    const uint64_t begin = begins_[pieces.first];
    return {BufferId::scratch, scratch_ + begin - begins_[order_.set(1).first],
            begins_[pieces.last] - begin};
  }

  // The chunks of a message of `step`, which are whole pieces. In the last step there is nothing
  // left to overlap with.
  std::vector<Range> chunks_of(uint32_t step, const PieceRun& message) const {
    if (step + 1 == order_.num_steps()) return {sums(message)};
    const uint32_t most = std::min(kMaxBmlChunks, order_.num_parts(step + 1));
    const uint32_t count = num_chunks(sums(message).length * element_bytes_, most);
    std::vector<Range> ranges;
    for (const PieceRun& chunk :
         order_.chunks(step, message, count, ChunkOrder::own_first, BmlStream::cut_pieces)) {
      ranges.push_back(sums(chunk));
    }
    return ranges;
  }

  const Range result_;
  std::vector<Range> versions_;   // by place
  std::vector<uint64_t> begins_;  // of places, if all pieces lay one after the other
  uint64_t scratch_ = 0;
};

}  // namespace

void add_reduce_scatter_bml(ScheduleBuilder* builder, const Group& group,
                            const topology::Topology& topology, const std::vector<Range>& versions,
                            const Range& result, uint32_t element_bytes) {
  const topology::Grid grid(topology.grid);
  const BmlShares shares(topology);
  for (uint32_t t = 0; t < grid.num_levels(); ++t) {
    ScatteringStream stream(builder, group, grid, shares, t, versions, result, element_bytes);
    stream.first_step();
    for (uint32_t step = 1; step < grid.num_levels(); ++step) stream.later_step(step);
  }
}

Schedule reduce_scatter_bml(const OpShape& shape, const topology::Topology& topology) {
  const Group group = group_across_hosts(topology, shape.rank);
  const Pieces pieces(shape.counts);
  std::vector<Range> versions;
  for (uint32_t rank : group.ranks) versions.push_back(pieces.in(BufferId::input, rank));
  ScheduleBuilder builder(shape);
  add_reduce_scatter_bml(&builder, group, topology, versions,
                         {BufferId::output, 0, shape.counts[shape.rank]}, shape.element_bytes);
  return builder.build();
}

double reduce_scatter_bml_seconds(const EstimateTerms& terms) {
  double more_messages = 0;
  for (uint32_t size : terms.grid) {
    more_messages += (terms.num_ranks / size - 1.0) * (size - 1.0);  // of the stream's first step
  }
  return bml_stage_seconds(terms) + terms.overhead * more_messages +
         terms.gamma * terms.bytes_of_others();
}

}  // namespace dmlcomm::schedule
