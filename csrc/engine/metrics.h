// Metrics: the figures of ranks, in the text format of Prometheus.
//
// Each metric has one name and one meaning, which metrics.cc lists. A sample is the value of one
// metric for one group of ranks, or for one rail of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/rail_counters.h"

namespace dmlcomm::engine {

// Of one group of ranks, as one rank sees it.
struct GroupFigures {
  uint64_t operations = 0;  // in flight
  uint64_t last_collective = 0;
  bool has_failed = false;
};

struct Sample {
  size_t metric;       // its place in the list
  std::string labels;  // group, rank, and perhaps rail: key="value", ...
  uint64_t value;
};
using Samples = std::vector<Sample>;

Samples samples_of(const std::string& group, int rank, const GroupFigures& figures,
                   const std::vector<transport::RailCounters>& rails);

// All metrics with their samples, in the order of the list. `labels` goes before those of each.
std::string metrics_text(const std::string& labels, const Samples& samples);

}  // namespace dmlcomm::engine
