// What all ranks together do with their tensors, carried out in one address space.

#include "engine/local/direct_transfers.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

namespace dmlcomm::engine {
namespace {

using schedule::OpKind;
using Bytes = std::vector<uint8_t>;

constexpr OpKind kKinds[] = {OpKind::all_reduce, OpKind::reduce,    OpKind::reduce_scatter,
                             OpKind::broadcast,  OpKind::gather,    OpKind::all_gather,
                             OpKind::scatter,    OpKind::all_to_all};

// Uneven, and empty between some.
size_t piece_bytes(int from, int to, size_t bytes) {
  return bytes * static_cast<size_t>((from + 2 * to) % 4);
}

// A bit per rank, so that a sum tells who is in it.
Bytes filled(int rank, size_t bytes) { return Bytes(bytes, static_cast<uint8_t>(1 << rank)); }

// The tensors of all ranks of one operation.
struct Group {
  Group(OpKind kind_of_all, int ranks, int root_rank, size_t bytes)
      : kind(kind_of_all),
        num_ranks(ranks),
        root(root_rank),
        input(static_cast<size_t>(ranks)),
        output(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      add_whole(rank, bytes);
      for (int peer = 0; peer < num_ranks; ++peer) add_piece(rank, peer, bytes);
    }
  }

  void add_whole(int rank, size_t bytes) {
    auto& in = input[static_cast<size_t>(rank)];
    auto& out = output[static_cast<size_t>(rank)];
    if (kind == OpKind::all_reduce || kind == OpKind::broadcast) {
      out.push_back(filled(rank, bytes));
    } else if (kind == OpKind::reduce) {
      in.push_back(filled(rank, bytes));
      if (rank == root) out.emplace_back(bytes);
    } else if (kind == OpKind::reduce_scatter || kind == OpKind::scatter) {
      out.emplace_back(piece_bytes(0, rank, bytes));
    } else if (kind == OpKind::all_gather || kind == OpKind::gather) {
      in.push_back(filled(rank, piece_bytes(rank, 0, bytes)));
    }
  }

  void add_piece(int rank, int peer, size_t bytes) {
    auto& in = input[static_cast<size_t>(rank)];
    auto& out = output[static_cast<size_t>(rank)];
    const bool is_root = rank == root;
    if (kind == OpKind::reduce_scatter || (kind == OpKind::scatter && is_root)) {
      in.push_back(filled(rank, piece_bytes(0, peer, bytes)));
    } else if (kind == OpKind::all_gather || (kind == OpKind::gather && is_root)) {
      out.emplace_back(piece_bytes(peer, 0, bytes));
    } else if (kind == OpKind::all_to_all) {
      in.push_back(filled(rank, piece_bytes(rank, peer, bytes)));
      out.emplace_back(piece_bytes(peer, rank, bytes));
    }
  }

  static BufferView view(std::vector<Bytes>& pieces) {
    std::vector<Span> spans;
    for (Bytes& piece : pieces) spans.push_back({piece.data(), piece.size()});
    return BufferView(spans);
  }

  OpRequest request(int rank) {
    OpRequest request;
    request.shape.kind = kind;
    request.shape.rank = static_cast<uint32_t>(rank);
    request.shape.num_ranks = static_cast<uint32_t>(num_ranks);
    request.shape.root = static_cast<uint32_t>(root);
    request.input = view(input[static_cast<size_t>(rank)]);
    request.output = view(output[static_cast<size_t>(rank)]);
    request.shape.counts = {kind == OpKind::reduce ? request.input.bytes()
                                                   : request.output.bytes()};
    return request;
  }

  std::vector<std::vector<Region>> shown() {
    std::vector<std::vector<Region>> regions;
    for (int rank = 0; rank < num_ranks; ++rank) {
      regions.push_back(shown_regions(request(rank), rank == root));
      regions.back().resize(static_cast<size_t>(num_ranks));
    }
    return regions;
  }

  Bytes expected(size_t piece, size_t bytes) const {
    switch (kind) {
      case OpKind::all_reduce:
      case OpKind::reduce:
      case OpKind::reduce_scatter: return Bytes(bytes, static_cast<uint8_t>((1 << num_ranks) - 1));
      case OpKind::broadcast:
      case OpKind::scatter: return filled(root, bytes);
      default: return filled(static_cast<int>(piece), bytes);
    }
  }

  const OpKind kind;
  const int num_ranks;
  const int root;
  std::vector<std::vector<Bytes>> input;
  std::vector<std::vector<Bytes>> output;
};

// Who reads and who writes a byte, a bit per rank, by address.
struct Use {
  uint32_t readers = 0;
  uint32_t writers = 0;
};
using Uses = std::map<uint64_t, Use>;

void carry_out(const Transfer& t, int rank, Uses* uses) {
  const uint32_t bit = 1u << rank;
  for (uint64_t i = 0; i < t.bytes; ++i) {
    uint8_t sum = 0;
    for (const Place& source : t.sources) {
      sum = static_cast<uint8_t>(sum + *reinterpret_cast<const uint8_t*>(source.address + i));
      (*uses)[source.address + i].readers |= bit;
    }
    const auto write = [&](uint64_t address) {
      *reinterpret_cast<uint8_t*>(address) = sum;
      ASSERT_EQ(std::exchange((*uses)[address].writers, bit), 0u) << "a byte is written twice";
    };
    if (t.result != nullptr) write(reinterpret_cast<uint64_t>(t.result) + i);
    for (const Place& target : t.targets) write(target.address + i);
  }
}

void check(OpKind kind, int num_ranks, int root, size_t bytes) {
  Group group(kind, num_ranks, root, bytes);
  const auto shown = group.shown();
  Uses uses;
  for (int rank = 0; rank < num_ranks; ++rank) {
    auto transfers = transfers_of(group.request(rank), rank, shown);
    ASSERT_TRUE(transfers.ok()) << transfers.status();
    for (const Transfer& t : *transfers) carry_out(t, rank, &uses);
  }
  for (const auto& [address, use] : uses) {
    ASSERT_TRUE(use.writers == 0 || (use.readers & ~use.writers) == 0)
        << "one rank reads what another writes";
  }
  // What others write to is known to be written to.
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (size_t i = 0; i < shown[static_cast<size_t>(rank)].size(); ++i) {
      const Region& region = shown[static_cast<size_t>(rank)][i];
      uint32_t writers = 0;
      for (uint64_t at = 0; at < region.bytes; ++at) writers |= uses[region.address + at].writers;
      const bool written = (writers & ~(1u << rank)) != 0;
      ASSERT_TRUE(!written || is_written_by_others(group.request(rank), rank == root, i));
    }
  }
  for (const auto& pieces : group.output) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      ASSERT_EQ(pieces[i], group.expected(i, pieces[i].size()));
    }
  }
}

TEST(DirectTransfers, EveryByteOfTheResultIsWrittenOnceAndReadByNobodyElse) {
  for (OpKind kind : kKinds) {
    for (int num_ranks = 2; num_ranks <= 8; ++num_ranks) {
      for (int root : {0, num_ranks / 2, num_ranks - 1}) {
        for (size_t bytes : {0ul, 1ul, 5ul, 1000ul, 140'000ul}) {
          if (bytes > 1000 && (num_ranks > 3 || kind != OpKind::broadcast)) continue;
          SCOPED_TRACE(testing::Message() << to_string(kind) << ", " << num_ranks << " ranks, root "
                                          << root << ", " << bytes << " bytes");
          check(kind, num_ranks, root, bytes);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DirectTransfers, WhatIsOnlyReadIsKnownToBe) {
  for (OpKind kind : {OpKind::reduce_scatter, OpKind::scatter, OpKind::all_to_all}) {
    Group group(kind, 3, 0, 1000);
    EXPECT_FALSE(is_written_by_others(group.request(0), true, 0)) << to_string(kind);
  }
  Group broadcast(OpKind::broadcast, 3, 1, 1000);
  EXPECT_FALSE(is_written_by_others(broadcast.request(1), true, 0));
  Group reduce(OpKind::reduce, 3, 1, 1000);
  EXPECT_FALSE(is_written_by_others(reduce.request(1), true, 0));
  EXPECT_FALSE(is_written_by_others(reduce.request(0), false, 0));
}

TEST(DirectTransfers, SizesThatDoNotFitAreNamed) {
  for (OpKind kind : {OpKind::reduce_scatter, OpKind::all_gather, OpKind::gather, OpKind::scatter,
                      OpKind::all_to_all}) {
    Group group(kind, 3, 0, 1000);
    auto shown = group.shown();
    for (Region& region : shown[0]) region.bytes += 4;
    auto transfers = transfers_of(group.request(1), 1, shown);
    ASSERT_FALSE(transfers.ok()) << to_string(kind);
    EXPECT_EQ(transfers.status().code(), StatusCode::mismatch);
    EXPECT_NE(transfers.status().message().find("between rank 1 and rank 0"), std::string::npos);
  }
}

}  // namespace
}  // namespace dmlcomm::engine
