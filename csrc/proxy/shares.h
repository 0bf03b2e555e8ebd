// How the jobs that send over one NIC share it, by their priorities. Pure: benchmarks/proxy asks it
// for jobs of a simulation, too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dmlcomm::proxy {

struct SharePolicy {
  // Jobs behind those of the first priority share the floor alone. Otherwise a job has twice the
  // share of one of the next priority.
  bool is_strict = true;
  // The jobs behind those of the first priority have at least this part together, so that none
  // starves; above 0, below 1.
  double floor = 0.05;
  // That the fabric tells apart by DSCPs; 0: packets show none. Up to 8, one for each priority.
  unsigned num_classes = 0;
};

// Of packets of jobs with this priority. The first class has DSCP 1, and the last one 0: switches
// serve packets without a mark last. Classes have equally many priorities, or about so.
uint8_t dscp_of_class(unsigned priority, unsigned num_classes);

// By job, its part of the NIC while all of these have something to send; the sum is 1. Jobs of one
// priority have equal parts.
std::vector<double> shares_of(std::span<const unsigned> priorities, const SharePolicy& policy);

}  // namespace dmlcomm::proxy
