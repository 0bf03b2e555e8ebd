// Verifier: proves that a set of schedules, one per rank, computes its operation. It moves no data:
// an element is the expression that made it, and order is what dependencies guarantee, not what a
// run happened to do. A verified set is right in every interleaving.
//
// It proves:
//  - Form: dependencies name earlier steps in ascending order; ranges lie inside their buffers and
//    cross no border between pieces; nobody writes to the input; each message has the same length
//    at its sender and receiver, in order on each (sender, receiver, stream), which has one rail.
//  - No race: two steps of one rank that touch the same element, one of them writing, are ordered
//    by that rank's own dependencies (or are recv_reduce steps of one stream onto one range).
//  - No deadlock: it holds even where a send completes only with its receive, and where a run of
//    recv_reduce steps waits for all its messages. A transport that buffers can only do better.
//  - Result: each output element combines each rank's element exactly once, by the same expression
//    on every rank; inputs are preserved; nothing is read that was not written, but for messages
//    from scratch to scratch memory; `finalizes` stands at each element's last combination and at
//    no other. For a barrier: nobody leaves before everyone has entered.
//
// Cost: elements x steps, and the square of the steps of one rank; for tests, not for the hot path.
#pragma once

#include <vector>

#include "base/status.h"
#include "schedule/op_shape.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

enum class Aliasing {
  separate,  // input and output are different memory
  // The rank's own piece of the output (all_gather, gather, reduce) or of the input (scatter) is
  // the memory of its other buffer. Copies of memory onto itself do nothing.
  in_place,
};

// shapes[r] and schedules[r] are those of rank r. Ok, or `invalid_argument`
// with rank, step and reason.
Status verify(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules,
              Aliasing aliasing = Aliasing::separate);

// A step that names a rail goes to another host, on a grid to a neighbour there.
Status check_rails(const topology::Topology& topology, const std::vector<Schedule>& schedules);

}  // namespace dmlcomm::schedule
