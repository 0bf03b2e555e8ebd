// all_reduce, BML: aggregation level by level of a grid, and back, on all rails at once.
//
// Source: Wang, Li, Cheng, Geng, et al., "BML: A High-performance, Low-cost Gradient
// Synchronization Algorithm for DML Training", NeurIPS 2018, generalised from BCube(n, k) to grids
// whose levels differ in size. One rank per host; a host's number has one digit per level, and
// rail l leads to its neighbours on level l (grid.h).
//
// Vocabulary: k levels; *stream* t of k has 1/k of the vector, or its share where levels differ
// (bml_shares.h), in N *pieces*, each owned by one host; level, step, set and chunk as in
// bml_stream.h.
//
// Steps, of each stream: k steps of aggregation; in each a host sends every neighbour on the step's
// level that part of its set for which the neighbour is responsible from now on, and combines with
// its own what the neighbours send it. Then it has its piece complete. k steps of broadcast go the
// same way back: each sends its set, complete, to its neighbours, and has theirs after it.
// 2 sum(n_l - 1) messages per stream, more where large ones go in chunks.
//
// Cost: step w moves (n - 1) / n of a set of S / (k n^w) bytes on one rail, so each stage takes
// (N - 1) / (k N) of the time T_F in which one rail sends S: GST = 2 (N - 1) / (k N) T_F, 1 / k of
// the least that one rail allows, plus 2 k rounds of latency. Each element is finished by one host,
// and combined in a fixed order, so all ranks have identical bits.
//
// Example, BCube(2, 2), stream 0 on host 0 (digits 0, 0): sends the second half of its share to
// host 1 on rail 0, and combines the first; sends the second quarter to host 2 on rail 1, and
// finishes the first; then gets the second quarter from 2, and the second half from 1. Stream 1
// does the same with the levels, hence the rails, exchanged.
//
// all_reduce_bml_ring is the same with one difference: the n hosts at a switch do not send to each
// other all at once, but around a ring, in n - 1 rounds. The bytes on each rail, hence GST, are the
// same, with more rounds of latency; but no two hosts ever send to the same port of a switch, where
// their packets would be lost. 16 hosts, BCube(4, 2) at 200 Mb/s and MTU 9000: 12.5 MB take 1.069
// times the GST of above instead of 1.097; of 100 MB both take 1.05 times it.
#include "schedule/algorithms/generators.h"

#include "schedule/algorithms/bml_shares.h"
#include "schedule/algorithms/bml_stream.h"

namespace dmlcomm::schedule {
namespace {

// One stream of one member: its share of the vector, and the set it has after each step.
class ReducingStream : BmlMember {
 public:
  ReducingStream(ScheduleBuilder* builder, const Group& group, const topology::Grid& grid,
                 uint32_t stream, uint32_t segment, const Range& share, uint32_t element_bytes)
      : BmlMember(builder, group, grid, stream, segment, element_bytes), sets_{share} {
    for (uint32_t step = 0; step < order_.num_steps(); ++step) {
      sets_.push_back(part(step, order_.own_part(step)));
    }
  }

  // Invariant: before step w the set of step w has the sum over all hosts that differ from this
  // one on the levels of steps before w only.
  void aggregate(uint32_t step) {
    enter(step);
    const auto after = order_.parts_after(step);
    for (uint32_t chunk = 0; chunk < kMaxBmlChunks; ++chunk) {
      for (uint32_t p : after) {
        const auto chunks = chunks_of(step, part(step, p), ChunkOrder::own_first);
        if (chunk < chunks.size()) builder_->send(chunks[chunk], rank_of(step, p));
      }
    }
    const bool is_last = step + 1 == order_.num_steps();
    for (const Range& chunk : chunks_of(step, sets_[step + 1], ChunkOrder::own_first)) {
      builder_->recv_reduce_run(chunk, chunk, senders(step), is_last);
    }
  }

  // The same with the neighbours of a level in a ring: in round s the part that a host passes on is
  // the one that it completed with its own in round s - 1, and after the last it has its own.
  void aggregate_around(uint32_t step) {
    enter(step);
    const bool is_last = step + 1 == order_.num_steps();
    const uint32_t num_rounds = order_.num_parts(step) - 1;
    for (uint32_t round = 0; round < num_rounds; ++round) {
      send_chunks(step, part(step, before(step, round + 1)), ChunkOrder::own_last,
                  before(step, num_rounds));
      for (const Range& chunk :
           chunks_of(step, part(step, before(step, round + 2)), ChunkOrder::own_last)) {
        builder_->recv_reduce(chunk, chunk, rank_of(step, before(step, 1)),
                              is_last && round + 1 == num_rounds);
      }
    }
  }

  void broadcast_around(uint32_t step) {
    enter(step);
    const uint32_t num_rounds = order_.num_parts(step) - 1;
    for (uint32_t round = 0; round < num_rounds; ++round) {
      send_chunks(step, part(step, before(step, round)), ChunkOrder::own_first,
                  before(step, num_rounds));
      for (const Range& chunk :
           chunks_of(step, part(step, before(step, round + 1)), ChunkOrder::own_first)) {
        builder_->recv(chunk, rank_of(step, before(step, 1)));
      }
    }
  }

  // The way back, from the last step to the first. Invariant: before step w the set after step w
  // is complete; after it the set before step w is.
  void broadcast(uint32_t step) {
    enter(step);
    const auto after = order_.parts_after(step), before = order_.parts_before(step);
    for (const Range& chunk : chunks_of(step, sets_[step + 1], ChunkOrder::own_first)) {
      for (uint32_t p : after) builder_->send(chunk, rank_of(step, p));
    }
    for (uint32_t chunk = 0; chunk < kMaxBmlChunks; ++chunk) {
      for (uint32_t p : before) {
        const auto chunks = chunks_of(step, part(step, p), ChunkOrder::own_first);
        if (chunk < chunks.size()) builder_->recv(chunks[chunk], rank_of(step, p));
      }
    }
  }

 private:
  // The part of the host that stands `distance` places before this one in the ring of the step.
  uint32_t before(uint32_t step, uint32_t distance) const {
    const uint32_t n = order_.num_parts(step);
    return (order_.own_part(step) + 2 * n - distance) % n;
  }

  void send_chunks(uint32_t step, const Range& message, ChunkOrder order, uint32_t to_part) {
    for (const Range& chunk : chunks_of(step, message, order)) {
      builder_->send(chunk, rank_of(step, to_part));
    }
  }

  Range part(uint32_t step, uint32_t part) const {
    return Parts(sets_[step], order_.num_parts(step), element_bytes_)(part);
  }

  std::vector<Range> chunks_of(uint32_t step, const Range& message, ChunkOrder order) const {
    const uint32_t count = num_chunks(message.length * element_bytes_, kMaxBmlChunks);
    return order_.chunks(step, message, count, order,
                         [this](const Range& range, uint32_t parts, uint32_t first, uint32_t last) {
                           return Parts(range, parts, element_bytes_).run(first, last);
                         });
  }

  std::vector<Range> sets_;  // [w]: before step w
};

}  // namespace

void add_all_reduce_bml(ScheduleBuilder* builder, const Group& group,
                        const topology::Topology& topology, const Range& all,
                        uint32_t element_bytes, LevelExchange exchange) {
  const bool is_ring = exchange == LevelExchange::ring;
  const topology::Grid grid(topology.grid);
  const uint32_t num_levels = grid.num_levels();
  const BmlShares shares(topology);
  std::vector<ReducingStream> streams;
  for (uint32_t t = 0; t < num_levels; ++t) {
    const Range share = shares.cut(all, t, element_bytes);
    const uint32_t num_segments = shares.num_segments(share.length * element_bytes);
    const Parts segments(share, num_segments, element_bytes);
    for (uint32_t segment = 0; segment < num_segments; ++segment) {
      streams.emplace_back(builder, group, grid, t, segment, segments(segment), element_bytes);
    }
  }
  // The streams take turns on a rail, and earlier steps go first there. On the way back steps grow:
  // were a stream ahead, the many bytes of its next step would hold up the few of the stream that
  // still has this rail, and that one's own rail would be idle later.
  for (uint32_t step = 0; step < num_levels; ++step) {
    for (ReducingStream& stream : streams) {
      is_ring ? stream.aggregate_around(step) : stream.aggregate(step);
    }
  }
  for (uint32_t step = num_levels; step-- > 0;) {
    for (ReducingStream& stream : streams) {
      is_ring ? stream.broadcast_around(step) : stream.broadcast(step);
    }
  }
}

namespace {

Schedule all_reduce_with(LevelExchange exchange, const OpShape& shape,
                         const topology::Topology& topology) {
  ScheduleBuilder builder(shape);
  add_all_reduce_bml(&builder, group_across_hosts(topology, shape.rank), topology,
                     {BufferId::output, 0, shape.counts[0]}, shape.element_bytes, exchange);
  return builder.build();
}

double seconds_with(LevelExchange exchange, const EstimateTerms& terms) {
  return 2 * bml_stage_seconds(terms, exchange) + terms.gamma * terms.bytes_of_others();
}

}  // namespace

Schedule all_reduce_bml(const OpShape& shape, const topology::Topology& topology) {
  return all_reduce_with(LevelExchange::direct, shape, topology);
}

double all_reduce_bml_seconds(const EstimateTerms& terms) {
  return seconds_with(LevelExchange::direct, terms);
}

Schedule all_reduce_bml_ring(const OpShape& shape, const topology::Topology& topology) {
  return all_reduce_with(LevelExchange::ring, shape, topology);
}

double all_reduce_bml_ring_seconds(const EstimateTerms& terms) {
  return seconds_with(LevelExchange::ring, terms);
}

}  // namespace dmlcomm::schedule
