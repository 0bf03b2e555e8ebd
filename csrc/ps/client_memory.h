// PieceMemory: turns the tensors of a worker into the pieces of a shard, and back.
//
// A piece that lies within one tensor, and travels in its own type, is sent and received in place.
// Others are staged: pieces at the border of two tensors, pieces that travel as another type, and
// the rows of sparse tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/span.h"
#include "ps/model_spec.h"

namespace dmlcomm::ps {

// Memory of one tensor.
struct Extent {
  std::byte* data = nullptr;
  uint64_t elements = 0;
};

// By space: its tensors, in order. A space that takes no part is empty.
using Buffers = std::vector<std::vector<Extent>>;

// One message.
struct StagedPiece {
  Span memory;  // in a tensor, or `copy`
  std::unique_ptr<std::byte[]> copy;
};

class PieceMemory {
 public:
  // `spec` outlives it.
  PieceMemory(const ModelSpec& spec, uint32_t shard, Buffers buffers)
      : spec_(spec), shard_(shard), buffers_(std::move(buffers)) {}

  // The message to send, with its elements.
  StagedPiece outgoing(const Piece& piece) const;
  // Memory to receive into; take_in() copies a staged piece to the tensors.
  StagedPiece incoming(const Piece& piece) const;
  void take_in(const Piece& piece, const StagedPiece& staged) const;

 private:
  template <typename Visit>
  void for_each_run(const Piece& piece, Visit visit) const;
  std::byte* whole(const Piece& piece) const;

  const ModelSpec& spec_;
  const uint32_t shard_;
  const Buffers buffers_;
};

// invalid_argument unless every space that `needed` names has memory for all of its elements.
Status check_buffers(const ModelSpec& spec, const Buffers& buffers, bool tables_too);

}  // namespace dmlcomm::ps
