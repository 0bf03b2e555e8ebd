// Schedule: one rank's part of one collective, as plain data.
//
// A generator (one file each) is a pure function (shape, topology) -> Schedule. The verifier
// proves a set of schedules right, the simulator prices it, the engine executes it. Nothing here
// knows sockets, threads or memory.
//
// Every operation that sends messages is a schedule. Two algorithms of ranks that share one host's
// memory are not, and the verifier does not know them: `slots` and `peer_memory`
// (shared_memory.cc). They are rows of the same table, and the planner chooses them as it chooses
// schedules. A pure function with a test of its own (direct_transfers_test.cc) has the transfers of
// each rank in `peer_memory`; the rest of both is tested end to end, on running ranks
// (engine_test.cc).
//
// Vocabulary: an operation works on up to three *buffers* of elements: `input`, `output`,
// `scratch`. In-place operations (all_reduce, broadcast) use `output` and scratch alone. A *range*
// is a run of elements of one buffer. A *step* moves or combines one range. Steps are grouped in
// *streams*.
//
// Meaning of the order:
//  - Streams run concurrently. A step may start as soon as every step in its `deps` is complete.
//    There is no other order between steps of one rank, with two exceptions:
//  - messages from rank a to rank b on one stream match in the order in which a's send steps and
//    b's receive steps stand in their streams; both ends of a message name the same rail, and a
//    stream has one rail to each peer;
//  - recv_reduce steps of one stream onto the same range are applied in the order in which they
//    stand (so that sums have one fixed order); a run of adjacent ones may be applied in one pass.
//  - A send is complete when its range may be overwritten.
//  - If several sends wait for one rail to a peer, the smallest id goes first: a generator writes
//    the most urgent send first.
//  - A copy of a range onto the same memory (an in-place operation) does nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dmlcomm::schedule {

struct Algorithm;

enum class BufferId : uint8_t { input, output, scratch };

// A run of `length` elements of `buffer`, from element `offset`.
struct Range {
  BufferId buffer = BufferId::output;
  uint64_t offset = 0;
  uint64_t length = 0;

  bool operator==(const Range&) const = default;
};

// The transport stripes the message over all rails that lead to the peer.
constexpr uint8_t kAnyRail = 0xff;

enum class StepKind : uint8_t {
  send,         // `range` to `peer`
  recv,         // from `peer`, replaces `range`
  recv_reduce,  // from `peer`, combined: range = op(source, received)
  copy,         // `source` to `range`, local
};

constexpr bool receives(StepKind kind) {
  return kind == StepKind::recv || kind == StepKind::recv_reduce;
}

struct Step {
  StepKind kind = StepKind::send;
  uint8_t rail = kAnyRail;
  uint32_t peer = 0;  // rank; own rank for copy
  Range range;
  // copy: the source. recv_reduce: the local operand, `range` itself to combine in place; in a
  // run onto one range only the first step may name another one. Same length as `range`.
  Range source;
  std::vector<uint32_t> deps;  // ids of steps of this rank that must be complete before
  // The result of `range` is final after this step: the engine applies the division of `avg` here.
  bool finalizes = false;
  // recv_reduce, never in a run of several: range = op(received, source). So that both sides of an
  // exchange compute the same, to the sign of a zero minimum and the payload of a NaN.
  bool received_first = false;
};

// Whether two steps that follow each other in a stream combine onto one range, in one run.
inline bool are_in_a_run(const Step& previous, const Step& step) {
  return previous.kind == StepKind::recv_reduce && step.kind == StepKind::recv_reduce &&
         previous.range == step.range;
}

// "recv_reduce output[4, 8) from 3", for logs and messages.
std::string to_string(const Step& step);

// A step's id is its index in `steps`.
struct Schedule {
  std::vector<Step> steps;
  // Stream of each step; same length as `steps`. Ids inside one stream ascend in stream order.
  std::vector<uint16_t> stream_of;
  uint16_t num_streams = 1;
  // Elements of scratch memory this rank needs.
  uint64_t scratch_elements = 0;
  // The row of the table that made it; null where none did.
  const Algorithm* algorithm = nullptr;
};

// "all_reduce_ring", for messages.
std::string name_of(const Schedule& schedule);

}  // namespace dmlcomm::schedule
