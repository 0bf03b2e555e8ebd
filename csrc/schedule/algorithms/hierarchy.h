// Common parts of the hierarchical algorithms. They run in stages: inside each host through shared
// memory, and between hosts, where all ranks of a host work at once, each with one rank of every
// other host: BML on a grid, a ring or a chain on a flat network.
//
// The stages inside a host have a stream of their own. In the same one, their combining
// steps could form one run with those of a stage between hosts in the same place, and wait for it.
#pragma once

#include <vector>

#include "schedule/algorithms/group.h"
#include "schedule/op_shape.h"
#include "schedule/price/estimate.h"
#include "schedule/schedule_builder.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// Several hosts, all with the same number of ranks, which is above 1.
bool is_hierarchical(const topology::Topology& topology);

class Hierarchy {
 public:
  Hierarchy(const topology::Topology& topology, uint32_t rank);

  const Group within;  // this rank's host
  const Group across;  // the ranks in this rank's place on their hosts

  // The steps that follow run inside the host; between hosts.
  void enter_host(ScheduleBuilder* builder) const { builder->on(host_stream_, kAnyRail); }
  void leave_host(ScheduleBuilder* builder) const { builder->on(0, kAnyRail); }

  // The other members of `within`, in the order in which to send and to receive.
  std::vector<uint32_t> mates_after() const;
  std::vector<uint32_t> mates_before() const;
  std::vector<uint32_t> ranks_of_mates_before() const;

  // The part of the output that `member` of `within` takes across hosts.
  Range part_of_output(const OpShape& shape, uint32_t member) const;

 private:
  const uint16_t host_stream_;
};

struct StageTerms {
  EstimateTerms within;  // a stage inside a host, of all bytes
  EstimateTerms across;  // a stage between hosts: a rank has its part of the bytes and of the NICs
};
StageTerms stage_terms(const EstimateTerms& terms);

}  // namespace dmlcomm::schedule
