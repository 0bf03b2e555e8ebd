// ModelSpec: the description of a model: spaces of elements, their distribution over the servers,
// and the treatment of pushes. Plain data, the same on all workers and servers.
//
//   model   a list of spaces.
//   space   a run of elements of one type: all dense tensors of that type, one after the other, or
//           one sparse table, whose rows are pushed and pulled singly.
//   shard   one server's part of every space: an even range of the elements, or of a sparse table
//           every num_servers-th row.
//   piece   the unit of messages, locks and updates: a range of one space within one shard.
//
// Balance follows from cutting spaces and not tensors: shards differ by less than a cache line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace dmlcomm::ps {

// When pushes become an update.
enum class Apply : uint8_t {
  at_clock,  // all of one clock at once, when every worker has closed the clock
  at_push,   // each by itself, when it arrives
};

// The reduction of the pushes of a window.
enum class Combine : uint8_t { mean, sum };

struct Space {
  DType dtype = DType::f32;
  uint64_t count = 0;         // elements
  uint32_t row_elements = 0;  // of a sparse table; 0: dense
  DType wire = DType::f32;    // in messages: dtype, or a 16-bit float in the place of f32

  // Servers keep 16-bit floats as f32: small updates would be rounded away.
  DType stored() const;
  bool sparse() const { return row_elements > 0; }
  uint64_t num_rows() const { return sparse() ? count / row_elements : 0; }
  bool operator==(const Space&) const = default;
};

struct ModelSpec {
  std::string name;
  std::vector<Space> spaces;
  uint32_t num_servers = 1;
  uint32_t replicas = 0;  // servers beside the first that hold a shard
  Apply apply = Apply::at_clock;
  Combine combine = Combine::mean;
  std::string rule = "assign";
  std::map<std::string, double> options;

  bool operator==(const ModelSpec&) const = default;
};

// One line for messages: "2 spaces (f32 x 1000, f32 x 50 in rows of 10), rule sgd (lr 0.1), ...".
std::string describe(const ModelSpec& spec);

Status check(const ModelSpec& spec);

// Elements of the space that `shard` holds.
uint64_t shard_count(const Space& space, uint32_t shard, uint32_t num_servers);

// Bytes of weights of a shard as the servers keep them.
uint64_t shard_bytes(const ModelSpec& spec, uint32_t shard);

// Elements [begin, begin + count) of the shard's part of the space; in a dense space they are
// elements [first, first + count) of the space itself.
struct Piece {
  uint32_t space = 0;
  uint64_t begin = 0;
  uint64_t count = 0;
  uint64_t first = 0;

  size_t wire_bytes(const ModelSpec& spec) const;
  size_t stored_bytes(const ModelSpec& spec) const;
};

// Approximate bytes of a piece on a server. Every piece costs some 25 us in messages and
// hand-overs, so large models have larger ones: 40 MB take 22 ms in pieces of 1 MiB and 27 ms in
// pieces of 256 KiB. But there have to be many, so that pushes, updates and pulls overlap.
constexpr size_t kMinPieceBytes = 256 * 1024;
constexpr size_t kMaxPieceBytes = 1024 * 1024;
constexpr size_t kPieceGrain = 64 * 1024;   // bytes; chunks of cooperative copies stay whole
constexpr uint64_t kPiecesToPipeline = 64;  // of a shard's part of a space

// Of all spaces, in order; the pieces of sparse tables are whole rows.
std::vector<Piece> pieces_of(const ModelSpec& spec, uint32_t shard);

// The server that holds copy `replica` (0: the first) of `shard`.
inline uint32_t server_of(const ModelSpec& spec, uint32_t shard, uint32_t replica) {
  return (shard + replica) % spec.num_servers;
}

}  // namespace dmlcomm::ps
