#include "schedule/price/estimate.h"

#include <utility>

#include "schedule/algorithms/bml_shares.h"

namespace dmlcomm::schedule {
namespace {

// Seconds per byte of a host that sends as much to every other host, and relays for others what
// takes several hops: of N - 1 destinations N (1 - 1/n) differ on a level of size n, and by
// symmetry each host carries as much on its rail there. The rail that is busy longest decides.
double grid_beta_all(const topology::Topology& topology, double hosts, double contention) {
  double longest = 0;
  for (uint32_t level = 0; level < topology.grid.size(); ++level) {
    const double size = topology.grid[level];
    const double port = size > 2 ? contention : 1;  // of a switch to which others send
    longest = std::max(longest, port * topology.rail_beta(level) * (1 - 1 / size));
  }
  return longest * hosts / (hosts - 1);
}

// All cores have the same number of ranks, neighbours in their order. A byte between two of them
// takes that core, and one to another core takes both.
void add_kept_cores(const topology::Topology& topology, EstimateTerms* terms) {
  const double together = topology.ranks_kept_together();
  const double others = terms->num_ranks - 1.0;
  const double elsewhere = terms->num_ranks - together;
  const double core = terms->beta_core = topology.core_s_per_byte;
  const auto at_least = [](double* beta, double core_s) { *beta = std::max(*beta, core_s); };
  at_least(&terms->beta_all, core * together * (together - 1 + 2 * elsewhere) / others);
  at_least(&terms->beta_next, core * (elsewhere > 0 ? together + 1 : together));
  at_least(&terms->beta_far, core * (elsewhere > 0 ? 2 * together : together));
}

// Of the times of cores and links, the share of the shorter that is not beside the longer: with a
// half, `direct` for 64 KiB on 9 hosts at 200 Mb/s is 6.0 ms (4.9 measured).
constexpr double kNotOverlapped = 0.5;

topology::Topology cores_of(topology::Topology topology) {
  topology.inter_host.beta_s_per_byte = 0;
  topology.rail_betas_s_per_byte.clear();
  return topology;
}

topology::Topology links_of(topology::Topology topology) {
  topology.intra_host = {};
  topology.inter_host.alpha_s = topology.inter_host.overhead_s = 0;
  topology.relay_s = topology.gamma_s_per_byte = 0;
  topology.ranks_per_core = topology.core_s_per_byte = 0;
  return topology;
}

}  // namespace

double EstimateTerms::tree(double link_seconds) const {
  double latency_s = 0, core_s = 0;
  for (double reached = 1; reached < num_ranks; reached *= 2) {
    const double senders = std::min(reached, num_ranks - reached);
    latency_s += latency_of(senders);
    core_s += bytes * beta_core * std::max(1.0, crowding * senders / num_ranks);
  }
  return latency_s + std::max(link_seconds, core_s);
}

// k ranks of a host share its NICs. A rank that talks to all others sends the fraction
// (N - k) / (N - 1) of its bytes through them, k ranks at a time; the rest goes through memory
// meanwhile. In a ring over ranks in host order, one rank of each host uses the NICs.
//
// On a grid a message takes one path, on a flat network all rails. A host on a grid that exchanges
// with one other host uses one rail, for some of them the slowest: for shifts and pairs the
// paths of all hosts, lowest level first, share no rail, since from the host that relays and the
// shift follows who sends.
EstimateTerms estimate_terms(const topology::Topology& topology, double bytes,
                             std::vector<double> bml_shares) {
  EstimateTerms terms;
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
    terms.beta_all = terms.beta_spread = terms.beta_next = terms.beta_far = terms.beta_far_alone =
        local;
    if (topology.ranks_kept_together() > 1) add_kept_cores(topology, &terms);
    return terms;
  }
  terms.grid = topology.grid;
  terms.hop_alpha = link.alpha_s;
  // All ranks send at the same time, on a grid over all rails.
  terms.beta_core = topology.core_s_per_byte;
  const double crowded = terms.beta_core * terms.crowding;
  for (uint32_t rail = 0; rail < topology.num_rails; ++rail) {
    terms.beta_of_rail.push_back(std::max(topology.rail_beta(rail), crowded * topology.num_rails));
  }
  terms.contention = topology.contention;
  const bool is_flat = topology.grid.empty();
  if (!is_flat) {
    terms.alpha += topology.relay_s * (static_cast<double>(topology.grid.size()) - 1);
    terms.bml_shares = std::move(bml_shares);
  }
  const double nic = is_flat ? topology.striped_beta() : topology.slowest_rail_beta();
  const double per_host = topology.max_ranks_per_host();
  const double num_remote = terms.num_ranks - per_host;
  const double remote_share = num_remote / (terms.num_ranks - 1.0);
  const double hosts = topology.num_hosts();
  const auto beta_all = [&](double contention) {
    const double port = hosts > 2 ? contention : 1;
    const double nic_all = is_flat ? nic * port : grid_beta_all(topology, hosts, contention);
    return std::max({remote_share * per_host * nic_all, (1 - remote_share) * local, crowded});
  };
  terms.beta_all = beta_all(topology.contention);
  terms.beta_spread = beta_all(1);
  terms.beta_next = per_host > 1 ? std::max(nic, local) : nic;
  terms.beta_far_alone = per_host * nic;
  terms.beta_next = std::max(terms.beta_next, crowded);
  terms.beta_far = std::max(terms.beta_far_alone, crowded);
  return terms;
}

EstimateTerms estimate_terms(const topology::Topology& topology, double bytes) {
  std::vector<double> found;
  if (!topology.grid.empty()) {
    const BmlShares shares(topology);
    for (uint32_t t = 0; t < shares.num_streams(); ++t) found.push_back(shares.of(t));
  }
  return estimate_terms(topology, bytes, std::move(found));
}

Estimates::Estimates(const topology::Topology& topology) : cores_(topology) {
  if (topology.ranks_per_core > 1 && !topology.is_one_host()) {
    cores_ = cores_of(topology);
    links_ = links_of(topology);
    of_links_ = estimate_terms(*links_, 0);
  }
  of_cores_ = estimate_terms(cores_, 0);
}

double Estimates::seconds(double (*form)(const EstimateTerms& terms), double bytes) {
  of_cores_.bytes = bytes;
  const double cores_s = form(of_cores_);
  if (!of_links_) return cores_s;
  of_links_->bytes = bytes;
  const double links_s = form(*of_links_);
  return std::max(cores_s, links_s) + kNotOverlapped * std::min(cores_s, links_s);
}

double bml_stage_seconds(const EstimateTerms& terms, LevelExchange exchange) {
  const bool is_ring = exchange == LevelExchange::ring;
  std::vector<double> busy_s(terms.grid.size(), 0);  // each rail
  double messages = 0;                               // of one step
  double rounds = 0;
  for (uint32_t t = 0; t < terms.grid.size(); ++t) {
    if (terms.bml_shares[t] == 0) continue;
    messages += terms.grid[t] - 1;
    rounds += is_ring ? terms.grid[t] - 1 : 1;
    const std::vector<double> loads = bml_loads(terms.grid, t);
    for (size_t level = 0; level < loads.size(); ++level) {
      const double contention = is_ring || terms.grid[level] <= 2 ? 1 : terms.contention;
      busy_s[level] +=
          terms.beta_of_rail[level] * contention * terms.bytes * terms.bml_shares[t] * loads[level];
    }
  }
  const double longest = busy_s.empty() ? 0 : *std::max_element(busy_s.begin(), busy_s.end());
  const auto num_steps = static_cast<double>(terms.grid.size());
  return rounds * terms.hop_alpha + num_steps * messages * terms.overhead + longest;
}

}  // namespace dmlcomm::schedule
