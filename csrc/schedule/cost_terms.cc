#include "schedule/cost_terms.h"

namespace dmlcomm::schedule {

// k ranks of a host share its NICs. A rank that talks to all others sends the fraction
// (N - k) / (N - 1) of its bytes through them, k ranks at a time; the rest goes through memory
// meanwhile. In a ring over ranks in host order, one rank of each host uses the NICs.
CostTerms cost_terms(const topology::Topology& topology, double bytes) {
  CostTerms terms;
  terms.num_ranks = topology.num_ranks();
  terms.bytes = bytes;
  terms.gamma = topology.gamma_s_per_byte;
  const bool one_host = topology.is_one_host();
  const topology::Link& link = one_host ? topology.intra_host : topology.inter_host;
  terms.alpha = link.alpha_s;
  terms.overhead = link.overhead_s;
  terms.sender_is_free = one_host && topology.single_copy;
  const double local = topology.intra_host.beta_s_per_byte;
  if (one_host) {
    terms.beta_all = terms.beta_next = terms.beta_far = local;
    return terms;
  }
  const double nic = topology.inter_host.beta_s_per_byte / topology.num_rails;
  const double per_host = topology.max_ranks_per_host();
  const double num_remote = terms.num_ranks - per_host;
  const double all_contention = num_remote * per_host > 1 ? topology.contention : 1;
  const double far_contention = per_host > 1 ? topology.contention : 1;
  const double remote_share = num_remote / (terms.num_ranks - 1.0);
  terms.beta_all =
      std::max(remote_share * per_host * nic * all_contention, (1 - remote_share) * local);
  terms.beta_next = per_host > 1 ? std::max(nic, local) : nic;
  terms.beta_far = per_host * nic * far_contention;
  return terms;
}

}  // namespace dmlcomm::schedule
