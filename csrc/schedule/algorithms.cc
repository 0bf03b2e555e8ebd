#include "schedule/algorithms.h"

#include "schedule/algorithms/all_gather_bml.h"
#include "schedule/algorithms/all_gather_bruck.h"
#include "schedule/algorithms/all_gather_direct.h"
#include "schedule/algorithms/all_gather_hierarchical.h"
#include "schedule/algorithms/all_gather_ring.h"
#include "schedule/algorithms/all_reduce_bml.h"
#include "schedule/algorithms/all_reduce_direct.h"
#include "schedule/algorithms/all_reduce_halving_doubling.h"
#include "schedule/algorithms/all_reduce_hierarchical.h"
#include "schedule/algorithms/all_reduce_leaders.h"
#include "schedule/algorithms/all_reduce_recursive_doubling.h"
#include "schedule/algorithms/all_reduce_ring.h"
#include "schedule/algorithms/all_reduce_tree.h"
#include "schedule/algorithms/all_to_all_pairwise.h"
#include "schedule/algorithms/barrier_dissemination.h"
#include "schedule/algorithms/broadcast_chain.h"
#include "schedule/algorithms/broadcast_direct.h"
#include "schedule/algorithms/broadcast_hierarchical.h"
#include "schedule/algorithms/broadcast_scatter_allgather.h"
#include "schedule/algorithms/broadcast_tree.h"
#include "schedule/algorithms/gather_direct.h"
#include "schedule/algorithms/hierarchy.h"
#include "schedule/algorithms/reduce_direct.h"
#include "schedule/algorithms/reduce_scatter_bml.h"
#include "schedule/algorithms/reduce_scatter_direct.h"
#include "schedule/algorithms/reduce_scatter_halving.h"
#include "schedule/algorithms/reduce_scatter_hierarchical.h"
#include "schedule/algorithms/reduce_scatter_ring.h"
#include "schedule/algorithms/reduce_tree.h"
#include "schedule/algorithms/scatter_direct.h"

namespace dmlcomm::schedule {
namespace {

using topology::Topology;

// Most generators look at ranks alone, and do for any topology.
template <Schedule (*kGenerate)(const OpShape&)>
Schedule on_any(const OpShape& shape, const Topology&) {
  return kGenerate(shape);
}

bool always(const Topology&) { return true; }

bool shares_cores_of_loopback(const Topology& topology) {
  return topology.ranks_kept_together() > 1;
}

bool has_one_rank_per_host_of_grid(const Topology& topology) {
  return !topology.grid.empty() && topology.max_ranks_per_host() == 1;
}

}  // namespace

// Row (op, algorithm) refers to op_algorithm and op_algorithm_seconds.
#define DMLCOMM_ALGORITHM(op, algorithm) \
  {OpKind::op, #algorithm, on_any<op##_##algorithm>, op##_##algorithm##_seconds, always, "nothing"}
#define DMLCOMM_OF_TOPOLOGY(op, algorithm) \
  {OpKind::op, #algorithm, op##_##algorithm, op##_##algorithm##_seconds, always, "nothing"}
#define DMLCOMM_BML(op, algorithm) \
  {OpKind::op,                     \
   #algorithm,                     \
   op##_##algorithm,               \
   op##_##algorithm##_seconds,     \
   has_one_rank_per_host_of_grid,  \
   "one rank per host of a grid"}
#define DMLCOMM_HIERARCHICAL(op)                 \
  {OpKind::op,        "hierarchical",            \
   op##_hierarchical, op##_hierarchical_seconds, \
   is_hierarchical,   "several hosts with the same number of ranks, more than one each"}

const std::vector<Algorithm>& all_algorithms() {
  static const std::vector<Algorithm> table = {
      DMLCOMM_OF_TOPOLOGY(all_reduce, direct),
      DMLCOMM_ALGORITHM(all_reduce, ring),
      DMLCOMM_ALGORITHM(all_reduce, recursive_doubling),
      DMLCOMM_ALGORITHM(all_reduce, halving_doubling),
      DMLCOMM_ALGORITHM(all_reduce, tree),
      DMLCOMM_BML(all_reduce, bml),
      DMLCOMM_BML(all_reduce, bml_ring),
      DMLCOMM_HIERARCHICAL(all_reduce),
      {OpKind::all_reduce, "leaders", all_reduce_leaders, all_reduce_leaders_seconds,
       shares_cores_of_loopback, "ranks of one host over TCP, as many on each core"},
      DMLCOMM_ALGORITHM(reduce, direct),
      DMLCOMM_ALGORITHM(reduce, tree),
      DMLCOMM_ALGORITHM(broadcast, direct),
      DMLCOMM_ALGORITHM(broadcast, tree),
      DMLCOMM_ALGORITHM(broadcast, chain),
      DMLCOMM_ALGORITHM(broadcast, scatter_allgather),
      DMLCOMM_HIERARCHICAL(broadcast),
      DMLCOMM_ALGORITHM(all_gather, direct),
      DMLCOMM_ALGORITHM(all_gather, ring),
      DMLCOMM_ALGORITHM(all_gather, bruck),
      DMLCOMM_BML(all_gather, bml),
      DMLCOMM_HIERARCHICAL(all_gather),
      DMLCOMM_ALGORITHM(gather, direct),
      DMLCOMM_ALGORITHM(scatter, direct),
      DMLCOMM_ALGORITHM(reduce_scatter, direct),
      DMLCOMM_ALGORITHM(reduce_scatter, ring),
      DMLCOMM_ALGORITHM(reduce_scatter, halving),
      DMLCOMM_BML(reduce_scatter, bml),
      DMLCOMM_HIERARCHICAL(reduce_scatter),
      DMLCOMM_ALGORITHM(all_to_all, pairwise),
      DMLCOMM_ALGORITHM(barrier, dissemination),
  };
  return table;
}

#undef DMLCOMM_HIERARCHICAL
#undef DMLCOMM_BML
#undef DMLCOMM_OF_TOPOLOGY
#undef DMLCOMM_ALGORITHM

std::vector<std::string> algorithms_of(OpKind kind) {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.kind == kind) names.push_back(algorithm.name);
  }
  return names;
}

const Algorithm* find_algorithm(OpKind kind, const std::string& name) {
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.kind == kind && algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

}  // namespace dmlcomm::schedule
