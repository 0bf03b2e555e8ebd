// Topology: the machines of one communicator, to the planner and the simulator.
//
// Plain data. Every rank must hold the same value, since each chooses its algorithms alone. The
// network between hosts is flat, where any host reaches any other at full speed on every rail, or a
// grid (see grid.h), where rail l leads to the neighbours on level l, and hosts in between relay
// what goes further.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace dmlcomm::topology {

// The price of a message of b bytes: alpha + overhead + b * beta, in seconds. `alpha` passes while
// others may use the link; `overhead` occupies the rank that posts the message, so that k messages
// posted together cost alpha + k * overhead.
struct Link {
  double alpha_s = 0;
  double overhead_s = 0;
  double beta_s_per_byte = 0;
};

// The memory that ranks of one host share, beside messages.
struct SharedMemory {
  bool exists = false;  // all ranks meet there
  // Of each rank's slot, which it fills and the others read.
  uint64_t slot_bytes = 0;
  // Each rank reads and writes the memory of all others, and the slots hold the addresses.
  bool reaches_peers = false;
  // Tensors from `least` to `most` bytes may be in memory that all ranks map, and fit into a slot.
  uint64_t least_mapped_bytes = 1;
  uint64_t most_mapped_bytes = 0;
};

struct Topology {
  std::vector<uint32_t> host_of_rank;
  Link intra_host;
  Link inter_host;  // of one rail
  uint32_t num_rails = 1;
  // Seconds per byte of each rail, where they differ in speed; empty: inter_host's on all of them.
  std::vector<double> rail_betas_s_per_byte;
  // The latency that each relaying host on a grid adds to a message.
  double relay_s = 0;
  // Sizes of the grid's levels, level 0 first; empty on a flat network. The numbers in host_of_rank
  // are then the hosts' numbers on the grid, all of them occur, and level l is wired on rail l.
  std::vector<uint32_t> grid;
  // A NIC to which several hosts send at once takes so many times as long per byte.
  double contention = 1;

  // The receiver reads the sender's memory: one copy, which costs the sender nothing.
  // Otherwise both sides pay beta.
  bool single_copy = false;

  // If hosts run on one kernel, or one host's ranks on too few cores: the ranks per core. Of
  // messages that they post at the same time, one per core goes forward, so all pay `overhead`. 0
  // if each host has its own cores, and these suffice.
  double ranks_per_core = 0;
  // The time of a core for a byte between such hosts, for both sides and the network. Over
  // loopback, the time of each of the two cores that its sender and its receiver are kept on. 0
  // elsewhere.
  double core_s_per_byte = 0;

  // Reduction or local copy of one byte by one rank.
  double gamma_s_per_byte = 0;

  SharedMemory memory;

  uint32_t num_ranks() const { return static_cast<uint32_t>(host_of_rank.size()); }
  bool same_host(uint32_t a, uint32_t b) const { return host_of_rank[a] == host_of_rank[b]; }
  const Link& link(uint32_t a, uint32_t b) const {
    return same_host(a, b) ? intra_host : inter_host;
  }

  double rail_beta(uint32_t rail) const {
    return rail_betas_s_per_byte.empty() ? inter_host.beta_s_per_byte : rail_betas_s_per_byte[rail];
  }
  // Of the slowest rail, and of a message that is striped over all of them by their speeds.
  double slowest_rail_beta() const;
  double striped_beta() const;

  uint32_t num_hosts() const;
  bool is_one_host() const;
  // How many ranks wait for each other when all post a message at the same time, 1 or more.
  double crowding() const { return std::max(1.0, ranks_per_core); }
  uint32_t max_ranks_per_host() const;
  // Over loopback, if all cores have the same number of ranks: rank r is kept on core r / this. 1
  // elsewhere.
  uint32_t ranks_kept_together() const;
};

// `invalid_argument` for a topology without ranks or rails, with a negative price, with a price
// of some rails only, or with a grid that its hosts and rails do not form.
Status validate(const Topology& topology);

// All ranks on one host, through shared memory (single copy) or loopback TCP, at the prices that
// were measured on a small server; they need to be right in their ratios only.
Topology single_host(uint32_t num_ranks, bool single_copy);

// The given hosts on a flat network of `num_rails` rails, each of `bits_per_second`.
Topology flat_network(std::vector<uint32_t> host_of_rank, uint32_t num_rails,
                      double bits_per_second, bool single_copy);

// The given hosts on a grid of levels of these `sizes`, each wired on a rail of `bits_per_second`.
Topology grid_network(std::vector<uint32_t> host_of_rank, std::vector<uint32_t> sizes,
                      double bits_per_second, bool single_copy);

// The network of a job, as far as it knows it: a grid of levels of these sizes, or flat where
// `grid` is empty. Rates as of at_rates(); where they are not known, 1 Gb/s.
Topology job_network(std::vector<uint32_t> host_of_rank, uint32_t num_rails,
                     std::vector<uint32_t> grid, const std::vector<uint64_t>& bits_per_second);

// The same network where rail l has so many bits per second; unchanged where that is not known of
// every rail. More rates than rails are of rails that this network has as spares only.
Topology at_rates(Topology topology, const std::vector<uint64_t>& bits_per_second);

// The same network of hosts of one kernel, where so many ranks share a core; unchanged where each
// rank has one. Messages are then dearer, since they pass through no NIC but through that kernel.
// Also the same host whose ranks talk over loopback.
Topology on_shared_cores(Topology topology, double ranks_per_core);

}  // namespace dmlcomm::topology
