// BufferView: a buffer of an operation, seen by schedules as one run of bytes, that may consist of
// several pieces in memory (one tensor per rank).
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "memory/span.h"

namespace dmlcomm::engine {

class BufferView {
 public:
  BufferView() = default;
  explicit BufferView(Span whole) { add(whole); }
  explicit BufferView(const std::vector<Span>& pieces) {
    for (const Span& piece : pieces) add(piece);
  }

  size_t bytes() const { return pieces_.empty() ? 0 : pieces_.back().end; }
  size_t num_pieces() const { return pieces_.size(); }
  Span piece(size_t i) const { return pieces_[i].memory; }

  // Whether any byte of memory belongs to both.
  bool overlaps(const BufferView& other) const {
    if (first_ >= other.last_ || other.first_ >= last_) return false;
    for (const auto& [a, a_end] : pieces_) {
      for (const auto& [b, b_end] : other.pieces_) {
        if (a.data < b.data + b.bytes && b.data < a.data + a.bytes) return true;
      }
    }
    return false;
  }

  // Where [offset, offset + bytes) lies; it must not cross the border between two pieces.
  std::byte* at(size_t offset, size_t bytes) const {
    if (bytes == 0) return nullptr;
    // The first piece that ends behind `offset`: empty pieces before it are passed over.
    const auto it = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                     [](size_t at, const Piece& piece) { return at < piece.end; });
    DMLCOMM_CHECK(it != pieces_.end() && offset + bytes <= it->end);
    return it->memory.data + (it->memory.bytes - (it->end - offset));
  }

 private:
  struct Piece {
    Span memory;
    size_t end;  // in the buffer
  };

  void add(Span piece) {
    pieces_.push_back({piece, bytes() + piece.bytes});
    if (piece.bytes == 0) return;
    first_ = last_ == nullptr ? piece.data : std::min(first_, piece.data);
    last_ = std::max(last_, piece.data + piece.bytes);
  }

  std::vector<Piece> pieces_;
  // All bytes lie between.
  std::byte* first_ = nullptr;
  std::byte* last_ = nullptr;
};

}  // namespace dmlcomm::engine
