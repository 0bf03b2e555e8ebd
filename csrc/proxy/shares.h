// How the jobs that send over one NIC share it, by their priorities. Pure: benchmarks/proxy asks it
// for jobs of a simulation, too.
#pragma once

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
};

// By job, its part of the NIC while all of these have something to send; the sum is 1. Jobs of one
// priority have equal parts.
std::vector<double> shares_of(std::span<const unsigned> priorities, const SharePolicy& policy);

}  // namespace dmlcomm::proxy
