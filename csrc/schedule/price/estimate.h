// The estimate of an algorithm is its price as a closed form, which stands beside its generator and
// is stated in these few numbers. The planner compares estimates; the simulator checks them.
//
// Vocabulary: N ranks; S bytes of the whole vector (all_reduce, reduce, broadcast) or of all pieces
// together (all_gather, reduce_scatter); alpha, overhead (o), beta and gamma as in topology.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "topology/topology.h"

namespace dmlcomm::schedule {

struct EstimateTerms {
  const topology::Topology* topology = nullptr;  // of which these are the terms
  uint32_t num_ranks = 1;
  double bytes = 0;
  double alpha = 0;
  double overhead = 0;  // of one message by every rank at the same time
  double crowding = 1;  // see Topology
  double gamma = 0;
  // Seconds per byte of a rank that exchanges with all others at once, that alone sends to them,
  // that exchanges with its neighbours r - 1 and r + 1 only, and with a rank far away while all
  // others of its host do the same.
  double beta_all = 0;
  double beta_spread = 0;
  double beta_next = 0;
  double beta_far = 0;
  double beta_far_alone = 0;  // without what shared cores add
  double beta_core = 0;  // of shared cores, for one rank; the others have it for all ranks at once
  // Sizes of the levels of the grid, empty elsewhere. `alpha` is that of the longest path; to a
  // neighbour a message takes `hop_alpha`, and `beta_of_rail` seconds per byte.
  std::vector<uint32_t> grid;
  double hop_alpha = 0;
  std::vector<double> beta_of_rail;
  std::vector<double> bml_shares;  // of the bytes, by stream; see bml_shares.h
  double contention = 1;           // see Topology; where several send to one port
  bool sender_is_free = false;     // single copy: only the receiver spends time

  double others() const { return num_ranks - 1.0; }
  // The bytes without one of N equal parts.
  double bytes_of_others() const { return bytes * others() / num_ranks; }

  // A round in which every rank posts `messages` and waits for as many.
  double latency(double messages = 1) const { return alpha + messages * overhead; }
  // A round in which only `senders` of the ranks post. If ranks share cores, these have the cores
  // of the others too.
  double latency_of(double senders, double messages = 1) const {
    return alpha + messages * overhead * std::max(1 / crowding, senders / num_ranks);
  }
  // All rounds of a binomial tree: in round k the 2^k ranks that have the data send, or those that
  // are left receive. `link_seconds` is the links' time for the bytes.
  double tree(double link_seconds) const;

  double all(double sent, double received) const { return beta_all * busier(sent, received); }
  double spread(double sent, double received) const { return beta_spread * busier(sent, received); }
  double next(double sent, double received) const { return beta_next * busier(sent, received); }
  double far(double sent, double received) const { return beta_far * busier(sent, received); }
  // The same number of bytes each way.
  double all(double bytes_each_way) const { return beta_all * bytes_each_way; }
  double next(double bytes_each_way) const { return beta_next * bytes_each_way; }
  // The same where few ranks send at a time.
  double far_alone(double sent, double received) const {
    return beta_far_alone * busier(sent, received);
  }

 private:
  // Links are full duplex.
  double busier(double sent, double received) const {
    return sender_is_free ? received : std::max(sent, received);
  }
};

// The terms of `bytes` on `topology`, on which they are exact with one host or one rank per host.
EstimateTerms estimate_terms(const topology::Topology& topology, double bytes);
// The same with these shares of BML's streams, which take a search.
EstimateTerms estimate_terms(const topology::Topology& topology, double bytes,
                             std::vector<double> bml_shares);

// The estimates of algorithms on one topology. Where ranks of several hosts share cores, these post
// messages while the links carry others: the longer of the two counts, and a part of the shorter.
class Estimates {
 public:
  explicit Estimates(const topology::Topology& topology);
  Estimates(const Estimates&) = delete;
  Estimates& operator=(const Estimates&) = delete;

  // `form` is the closed form of an algorithm.
  double seconds(double (*form)(const EstimateTerms& terms), double bytes);

 private:
  topology::Topology cores_;
  std::optional<topology::Topology> links_;  // apart only where ranks share cores
  EstimateTerms of_cores_;                   // or of both
  std::optional<EstimateTerms> of_links_;
};

// Smallest k with 2^k >= n: rounds of a tree or of dissemination.
inline uint32_t ceil_log2(uint32_t n) {
  uint32_t k = 0;
  while ((uint64_t{1} << k) < n) ++k;
  return k;
}

// How the hosts at one switch exchange their parts: each sends to all others, or to the next one.
enum class LevelExchange { direct, ring };

// Seconds of one stage of BML, aggregation or broadcast, without the combining. In step w stream t
// moves (n - 1) / n of a set over level l = (w + t) mod k, of size n, each way; the k streams share
// a rank's time for posting. Since steps overlap, the rail that is busy longest
// decides.
double bml_stage_seconds(const EstimateTerms& terms,
                         LevelExchange exchange = LevelExchange::direct);

}  // namespace dmlcomm::schedule
