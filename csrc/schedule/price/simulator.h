// The simulator: the time of schedules on a topology, in seconds.
//
// A message starts when both sides have reached it. Its sender posts its messages one after the
// other (`overhead` each), and if ranks share cores, all senders together one message per
// core at a time; `alpha` later it becomes a flow, and all flows share the resources they need by
// max-min fairness: between hosts the NICs of both hosts (one rail of each on a grid, and of the
// hosts that relay, for which `alpha` grows; all rails elsewhere), where a NIC to which several
// hosts send is slower (`contention`), and the cores where ranks share them, of which a sender has
// one at most; inside a host the receiving rank, and the sending rank too unless the topology has
// single copy. Messages from one rank to another follow each other. A rank combines and copies one
// range at a time, at `gamma`.
//
// Use: to compare algorithms on machines one does not have, and to keep the closed forms beside the
// generators honest. The planner uses those: a simulation takes milliseconds to seconds.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// Seconds until the last rank is done. `schedules` holds one per rank of the topology and must
// verify. Grows about with messages x concurrent messages: for groups up to some tens of ranks.
double simulate(const topology::Topology& topology, const std::vector<Schedule>& schedules,
                uint32_t element_bytes);

// The same from the schedule of one rank, so that a group of 10,000 costs no more than its one
// generator call: for algorithms in which all ranks do the same at the same time (direct,
// ring, BML, recursive doubling in a power of two, Bruck, pairwise, dissemination). Such a rank's
// j-th receive is fed by a send that its peer started when this rank started its own j-th
// send, and every rank of a host loads the NICs as much as this one. With uneven lengths it is
// the time of a group of such ranks.
double simulate_in_lockstep(const topology::Topology& topology, const Schedule& schedule,
                            uint32_t rank, uint32_t element_bytes);

}  // namespace dmlcomm::schedule
