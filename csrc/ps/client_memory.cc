#include "ps/client_memory.h"

#include <algorithm>

#include "kernels/convert.h"

namespace dmlcomm::ps {
namespace {

// Calls visit(memory, elements, done) for the runs that make up [first, first + count).
template <typename Visit>
void for_each_extent(const std::vector<Extent>& extents, size_t element_bytes, uint64_t first,
                     uint64_t count, Visit visit) {
  uint64_t done = 0;
  for (const Extent& extent : extents) {
    if (done == count) return;
    if (first >= extent.elements) {
      first -= extent.elements;
      continue;
    }
    const uint64_t run = std::min(extent.elements - first, count - done);
    visit(extent.data + first * element_bytes, run, done);
    done += run;
    first = 0;
  }
}

}  // namespace

// Runs of memory that make up the piece, with their place in it: visit(memory, elements, done).
template <typename Visit>
void PieceMemory::for_each_run(const Piece& piece, Visit visit) const {
  const Space& space = spec_.spaces[piece.space];
  const size_t element = size_of(space.dtype);
  const std::vector<Extent>& extents = buffers_[piece.space];
  if (!space.sparse()) {
    return for_each_extent(extents, element, piece.first, piece.count, visit);
  }
  // Row i of the shard is row i * num_servers + shard of the table.
  const uint64_t row = space.row_elements;
  for (uint64_t done = 0; done < piece.count; done += row) {
    const uint64_t number = (piece.begin + done) / row * spec_.num_servers + shard_;
    for_each_extent(extents, element, number * row, row,
                    [&](std::byte* memory, uint64_t elements, uint64_t within) {
                      visit(memory, elements, done + within);
                    });
  }
}

// The piece's memory if it is one run that travels as it is, or null.
std::byte* PieceMemory::whole(const Piece& piece) const {
  const Space& space = spec_.spaces[piece.space];
  if (space.wire != space.dtype || space.sparse()) return nullptr;
  std::byte* memory = nullptr;
  for_each_run(piece, [&](std::byte* run, uint64_t elements, uint64_t) {
    if (elements == piece.count) memory = run;
  });
  return memory;
}

StagedPiece PieceMemory::incoming(const Piece& piece) const {
  StagedPiece staged;
  staged.memory = Span(whole(piece), piece.wire_bytes(spec_));
  if (staged.memory.data == nullptr) {
    staged.copy = std::make_unique_for_overwrite<std::byte[]>(staged.memory.bytes);
    staged.memory.data = staged.copy.get();
  }
  return staged;
}

StagedPiece PieceMemory::outgoing(const Piece& piece) const {
  StagedPiece staged = incoming(piece);
  if (staged.copy == nullptr) return staged;
  const Space& space = spec_.spaces[piece.space];
  for_each_run(piece, [&](std::byte* run, uint64_t elements, uint64_t done) {
    kernels::convert(staged.memory.data + done * size_of(space.wire), space.wire, run, space.dtype,
                     elements);
  });
  return staged;
}

void PieceMemory::take_in(const Piece& piece, const StagedPiece& staged) const {
  if (staged.copy == nullptr) return;
  const Space& space = spec_.spaces[piece.space];
  for_each_run(piece, [&](std::byte* run, uint64_t elements, uint64_t done) {
    kernels::convert(run, space.dtype, staged.memory.data + done * size_of(space.wire), space.wire,
                     elements);
  });
}

Status check_buffers(const ModelSpec& spec, const Buffers& buffers, bool tables_too) {
  if (buffers.size() != spec.spaces.size()) {
    return Status(StatusCode::invalid_argument, "model '", spec.name, "' has ", spec.spaces.size(),
                  " spaces, got memory of ", buffers.size());
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (spec.spaces[i].sparse() && !tables_too) continue;
    uint64_t elements = 0;
    for (const Extent& extent : buffers[i]) elements += extent.elements;
    if (elements == spec.spaces[i].count) continue;
    return Status(StatusCode::invalid_argument, "space ", i, " of model '", spec.name, "' has ",
                  spec.spaces[i].count, " elements, got memory of ", elements);
  }
  return Status();
}

}  // namespace dmlcomm::ps
