// The algorithms of every operation: one table, from which the planner chooses and the tests loop.
#pragma once

#include <string>
#include <vector>

#include "schedule/op_shape.h"
#include "schedule/price/cost_terms.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

struct Algorithm {
  OpKind kind;
  const char* name;  // "ring"; the generator and Schedule::algorithm are "all_reduce_ring"
  // Where `applies` says so only. `shape` has the topology's ranks.
  Schedule (*generate)(const OpShape& shape, const topology::Topology& topology);
  double (*seconds)(const CostTerms& terms);
  bool (*applies)(const topology::Topology& topology);
  const char* needs;  // what `applies` asks for, in words: "one rank per host of a grid"
};

// Every algorithm, grouped by kind. Of two that cost the same, the planner takes the first.
const std::vector<Algorithm>& all_algorithms();

// Names of the algorithms of `kind`, in the order of the table.
std::vector<std::string> algorithms_of(OpKind kind);

// nullptr where `kind` has no algorithm of that name.
const Algorithm* find_algorithm(OpKind kind, const std::string& name);

}  // namespace dmlcomm::schedule
