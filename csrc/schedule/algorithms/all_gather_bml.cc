// all_gather, BML: the broadcast of the BML all_reduce, level by level on all rails at once.
//
// Source, vocabulary and requirements: all_reduce_bml.cc. Here the pieces are given: rank p has
// piece p, pieces may differ in length, and stream t moves its share of every piece.
//
// Steps: k, in the order of levels opposite to the aggregation's: a host sends every piece that it
// has of its set to each neighbour on the step's level. Pieces may be separate tensors, and go one
// by one, each as soon as it is there: N - 1 messages per stream. On the wire: (N - 1) / (k N) S
// bytes per rail, 1 / k of the least that one rail allows.
//
// Example, BCube(2, 2), stream 0 on host 0: sends its part of piece 0 to host 2 on rail 1, and gets
// that of piece 2; sends both to host 1 on rail 0, and gets those of 1 and 3.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/bml_shares.h"
#include "schedule/algorithms/bml_stream.h"

namespace dmlcomm::schedule {
namespace {

// Before step w, counted down, a host has the pieces of its set after step w of the aggregation;
// afterwards those of the set before it. parts[place] is the stream's part of a piece.
void add_step(ScheduleBuilder* builder, const Group& group, const BmlStream& order, uint32_t step,
              const std::vector<Range>& parts) {
  const auto rank_of = [&](uint32_t p) { return group.ranks[order.host_of_part(step, p)]; };
  for (uint32_t place : order.places(step, order.set(step + 1))) {
    for (uint32_t p : order.parts_after(step)) builder->send(parts[place], rank_of(p));
  }
  for (uint32_t i = 0; i < order.set(step + 1).size(); ++i) {
    for (uint32_t p : order.parts_before(step)) {
      builder->recv(parts[order.places(step, order.part(step, p))[i]], rank_of(p));
    }
  }
}

}  // namespace

void add_all_gather_bml(ScheduleBuilder* builder, const Group& group,
                        const topology::Topology& topology, const Range& own,
                        const std::vector<Range>& pieces, uint32_t element_bytes) {
  const topology::Grid grid(topology.grid);
  const uint32_t num_levels = grid.num_levels();
  const BmlShares shares(topology);
  std::vector<BmlStream> streams;
  std::vector<std::vector<Range>> parts(num_levels);
  for (uint32_t t = 0; t < num_levels; ++t) {
    streams.emplace_back(grid, group.index, t);
    for (uint32_t place = 0; place < group.size(); ++place) {
      const uint32_t owner = streams[t].owner(place);
      const Range& piece = owner == group.index ? own : pieces[owner];
      parts[t].push_back(shares.cut(piece, t, element_bytes));
    }
  }
  for (uint32_t step = num_levels; step-- > 0;) {
    for (uint32_t t = 0; t < num_levels; ++t) {
      builder->on(static_cast<uint16_t>(t), static_cast<uint8_t>(streams[t].level(step)));
      add_step(builder, group, streams[t], step, parts[t]);
    }
  }
}

Schedule all_gather_bml(const OpShape& shape, const topology::Topology& topology) {
  const Group group = group_across_hosts(topology, shape.rank);
  const Pieces all(shape.counts);
  std::vector<Range> pieces;
  for (uint32_t rank : group.ranks) pieces.push_back(all.in(BufferId::output, rank));
  const Range own{BufferId::input, 0, shape.counts[shape.rank]};
  ScheduleBuilder builder(shape);
  add_all_gather_bml(&builder, group, topology, own, pieces, shape.element_bytes);
  builder.copy(pieces[group.index], own);
  return builder.build();
}

double all_gather_bml_seconds(const EstimateTerms& terms) {
  double more_messages = 0;
  for (uint32_t size : terms.grid) more_messages += terms.num_ranks - size;
  return bml_stage_seconds(terms) + terms.overhead * more_messages;
}

}  // namespace dmlcomm::schedule
