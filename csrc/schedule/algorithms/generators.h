// The generators: one function and one estimate per algorithm, as <operation>_<algorithm>.cc
// describes it: source, steps, bytes on the wire, an example. The table (schedule/algorithms.h)
// refers to them; who wants a schedule goes through the table or the planner.
#pragma once

#include "schedule/op_shape.h"
#include "schedule/price/estimate.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

Schedule all_reduce_direct(const OpShape& shape, const topology::Topology& topology);
double all_reduce_direct_seconds(const EstimateTerms& terms);

Schedule all_reduce_ring(const OpShape& shape);
double all_reduce_ring_seconds(const EstimateTerms& terms);

Schedule all_reduce_recursive_doubling(const OpShape& shape);
double all_reduce_recursive_doubling_seconds(const EstimateTerms& terms);

Schedule all_reduce_halving_doubling(const OpShape& shape);
double all_reduce_halving_doubling_seconds(const EstimateTerms& terms);

Schedule all_reduce_tree(const OpShape& shape);
double all_reduce_tree_seconds(const EstimateTerms& terms);

Schedule all_reduce_bml(const OpShape& shape, const topology::Topology& topology);
double all_reduce_bml_seconds(const EstimateTerms& terms);

Schedule all_reduce_bml_ring(const OpShape& shape, const topology::Topology& topology);
double all_reduce_bml_ring_seconds(const EstimateTerms& terms);

Schedule all_reduce_hierarchical(const OpShape& shape, const topology::Topology& topology);
double all_reduce_hierarchical_seconds(const EstimateTerms& terms);

Schedule all_reduce_leaders(const OpShape& shape, const topology::Topology& topology);
double all_reduce_leaders_seconds(const EstimateTerms& terms);

Schedule reduce_direct(const OpShape& shape);
double reduce_direct_seconds(const EstimateTerms& terms);

Schedule reduce_tree(const OpShape& shape);
double reduce_tree_seconds(const EstimateTerms& terms);

Schedule broadcast_direct(const OpShape& shape);
double broadcast_direct_seconds(const EstimateTerms& terms);

Schedule broadcast_tree(const OpShape& shape);
double broadcast_tree_seconds(const EstimateTerms& terms);

Schedule broadcast_chain(const OpShape& shape);
double broadcast_chain_seconds(const EstimateTerms& terms);

Schedule broadcast_scatter_allgather(const OpShape& shape);
double broadcast_scatter_allgather_seconds(const EstimateTerms& terms);

Schedule broadcast_hierarchical(const OpShape& shape, const topology::Topology& topology);
double broadcast_hierarchical_seconds(const EstimateTerms& terms);

Schedule all_gather_direct(const OpShape& shape);
double all_gather_direct_seconds(const EstimateTerms& terms);

Schedule all_gather_ring(const OpShape& shape);
double all_gather_ring_seconds(const EstimateTerms& terms);

Schedule all_gather_bruck(const OpShape& shape);
double all_gather_bruck_seconds(const EstimateTerms& terms);

Schedule all_gather_bml(const OpShape& shape, const topology::Topology& topology);
double all_gather_bml_seconds(const EstimateTerms& terms);

Schedule all_gather_hierarchical(const OpShape& shape, const topology::Topology& topology);
double all_gather_hierarchical_seconds(const EstimateTerms& terms);

Schedule gather_direct(const OpShape& shape);
double gather_direct_seconds(const EstimateTerms& terms);

Schedule scatter_direct(const OpShape& shape);
double scatter_direct_seconds(const EstimateTerms& terms);

Schedule reduce_scatter_direct(const OpShape& shape);
double reduce_scatter_direct_seconds(const EstimateTerms& terms);

Schedule reduce_scatter_ring(const OpShape& shape);
double reduce_scatter_ring_seconds(const EstimateTerms& terms);

Schedule reduce_scatter_halving(const OpShape& shape);
double reduce_scatter_halving_seconds(const EstimateTerms& terms);

Schedule reduce_scatter_bml(const OpShape& shape, const topology::Topology& topology);
double reduce_scatter_bml_seconds(const EstimateTerms& terms);

Schedule reduce_scatter_hierarchical(const OpShape& shape, const topology::Topology& topology);
double reduce_scatter_hierarchical_seconds(const EstimateTerms& terms);

Schedule all_to_all_pairwise(const OpShape& shape);
double all_to_all_pairwise_seconds(const EstimateTerms& terms);

Schedule barrier_dissemination(const OpShape& shape);
double barrier_dissemination_seconds(const EstimateTerms& terms);

}  // namespace dmlcomm::schedule
