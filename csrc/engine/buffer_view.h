// BufferView: a buffer of an operation, seen by schedules as one run of bytes, that may consist of
// several pieces in memory (one tensor per rank).
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "engine/communicator.h"

namespace dmlcomm::engine {

class BufferView {
 public:
  BufferView() = default;
  explicit BufferView(Span whole) { add(whole); }
  explicit BufferView(ConstSpan whole) { add({const_cast<void*>(whole.data), whole.bytes}); }
  explicit BufferView(const std::vector<Span>& pieces) {
    for (const Span& piece : pieces) add(piece);
  }
  explicit BufferView(const std::vector<ConstSpan>& pieces) {
    for (const ConstSpan& p : pieces) add({const_cast<void*>(p.data), p.bytes});
  }

  size_t bytes() const { return pieces_.empty() ? 0 : pieces_.back().end; }
  size_t num_pieces() const { return pieces_.size(); }
  Span piece(size_t i) const { return {pieces_[i].data, pieces_[i].bytes}; }

  // Whether any byte of memory belongs to both.
  bool overlaps(const BufferView& other) const {
    if (first_ >= other.last_ || other.first_ >= last_) return false;
    for (const Piece& a : pieces_) {
      for (const Piece& b : other.pieces_) {
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
    return it->data + (it->bytes - (it->end - offset));
  }

 private:
  struct Piece {
    std::byte* data;
    size_t bytes;
    size_t end;  // of this piece in the buffer
  };

  void add(Span piece) {
    auto* const data = static_cast<std::byte*>(piece.data);
    pieces_.push_back({data, piece.bytes, bytes() + piece.bytes});
    if (piece.bytes == 0) return;
    first_ = last_ == nullptr ? data : std::min(first_, data);
    last_ = std::max(last_, data + piece.bytes);
  }

  std::vector<Piece> pieces_;
  // All bytes lie between.
  std::byte* first_ = nullptr;
  std::byte* last_ = nullptr;
};

}  // namespace dmlcomm::engine
