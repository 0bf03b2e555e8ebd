#include "schedule/cost_terms.h"

#include <algorithm>

namespace dmlcomm::schedule {
namespace {

// Seconds per byte of a host that sends as much to every other host, and relays for others what
// takes several hops: of N - 1 destinations N (1 - 1/n) differ on a level of size n, and by
// symmetry each host carries as much on its rail there. The rail that is busy longest decides.
double grid_beta_all(const topology::Topology& topology) {
  const double hosts = topology.num_hosts();
  double longest = 0;
  for (uint32_t level = 0; level < topology.grid.size(); ++level) {
    longest = std::max(longest, topology.rail_beta(level) * (1 - 1.0 / topology.grid[level]));
  }
  return longest * hosts / (hosts - 1);
}

}  // namespace

double CostTerms::tree_latency() const {
  double seconds = 0;
  for (double reached = 1; reached < num_ranks; reached *= 2) {
    seconds += latency_of(std::min(reached, num_ranks - reached));
  }
  return seconds;
}

// k ranks of a host share its NICs. A rank that talks to all others sends the fraction
// (N - k) / (N - 1) of its bytes through them, k ranks at a time; the rest goes through memory
// meanwhile. In a ring over ranks in host order, one rank of each host uses the NICs.
//
// On a grid a message takes one path, and all rails of a flat network. A host that exchanges with
// one other uses one rail, whoever that is, for some of them the slowest: for shifts and pairs the
// paths of all hosts, lowest level first, share no rail, since from the host that relays and the
// shift follows who sends.
CostTerms cost_terms(const topology::Topology& topology, double bytes) {
  CostTerms terms;
  terms.topology = &topology;
  terms.num_ranks = topology.num_ranks();
  terms.bytes = bytes;
  terms.gamma = topology.gamma_s_per_byte;
  const bool one_host = topology.is_one_host();
  const topology::Link& link = one_host ? topology.intra_host : topology.inter_host;
  terms.alpha = link.alpha_s;
  terms.crowding = topology.crowding();
  terms.overhead = link.overhead_s * terms.crowding;
  terms.sender_is_free = one_host && topology.single_copy;
  const double local = topology.intra_host.beta_s_per_byte;
  if (one_host) {
    terms.beta_all = terms.beta_next = terms.beta_far = local;
    return terms;
  }
  terms.grid = topology.grid;
  terms.hop_alpha = link.alpha_s;
  for (uint32_t rail = 0; rail < topology.num_rails; ++rail) {
    terms.beta_of_rail.push_back(topology.rail_beta(rail));
  }
  terms.contention = topology.contention;
  const bool is_flat = topology.grid.empty();
  if (!is_flat) {
    terms.alpha += topology.relay_s * (static_cast<double>(topology.grid.size()) - 1);
  }
  const double nic = is_flat ? topology.striped_beta() : topology.slowest_rail_beta();
  const double nic_all = is_flat ? nic : grid_beta_all(topology);
  const double per_host = topology.max_ranks_per_host();
  const double num_remote = terms.num_ranks - per_host;
  const double all_contention = num_remote * per_host > 1 ? topology.contention : 1;
  const double far_contention = per_host > 1 ? topology.contention : 1;
  const double remote_share = num_remote / (terms.num_ranks - 1.0);
  terms.beta_all =
      std::max(remote_share * per_host * nic_all * all_contention, (1 - remote_share) * local);
  terms.beta_next = per_host > 1 ? std::max(nic, local) : nic;
  terms.beta_far = per_host * nic * far_contention;
  return terms;
}

}  // namespace dmlcomm::schedule
