// PowerOfTwoFold: how algorithms that pair ranks by the bits of their numbers work for any N.
//
// P is the largest power of two up to N, and E = N - P ranks are *extras*. Of the first 2 E ranks
// the odd ones are extras: each hands its contribution to its *partner*, the even rank below it,
// and gets the result back. The P others form the *core*, numbered without gaps: core rank v is
// rank 2 v for v < E, else rank v + E. Partners are neighbours, which are most often on one host.
//
// Example, N = 6: P = 4, E = 2; extras 1 and 3 with partners 0 and 2; the core is 0, 2, 4, 5.
#pragma once

#include <bit>
#include <cstdint>

namespace dmlcomm::schedule {

struct PowerOfTwoFold {
  uint32_t core_size;   // P
  uint32_t num_extras;  // E
  bool is_extra;
  bool has_extra;      // this rank is the partner of an extra
  uint32_t partner;    // of an extra its partner, of a partner its extra; else unused
  uint32_t core_rank;  // unused for an extra

  PowerOfTwoFold(uint32_t rank, uint32_t num_ranks)
      : core_size(std::bit_floor(num_ranks)),
        num_extras(num_ranks - core_size),
        is_extra(rank < 2 * num_extras && rank % 2 == 1),
        has_extra(rank < 2 * num_extras && rank % 2 == 0),
        partner(rank ^ 1),
        core_rank(rank < 2 * num_extras ? rank / 2 : rank - num_extras) {}

  // The rank behind core rank v; N for v = P.
  uint32_t rank_of(uint32_t v) const { return v < num_extras ? 2 * v : v + num_extras; }
};

}  // namespace dmlcomm::schedule
