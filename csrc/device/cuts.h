// How operations are cut into parts that fit into slots, and where their spans lie there. Pure.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/alignment.h"
#include "base/status.h"
#include "device/staging.h"
#include "memory/span.h"

namespace dmlcomm::device {

// Of the spans of one slot. A multiple of every element.
constexpr size_t kPieceAlignment = kCacheLineBytes;

// Memory that is copied to the beginning of the slot, and back.
inline Part in_place(std::byte* data, size_t bytes) {
  Part part;
  part.bytes = bytes;
  part.out.push_back({data, 0, bytes});
  part.in = part.out;
  return part;
}

// make_part(at, bytes) for parts of at most `room` bytes, which is a multiple of every element. One
// part at least, so that there is an operation where there are no bytes.
template <typename MakePart>
std::vector<Part> cut_evenly(size_t bytes, size_t room, MakePart make_part) {
  std::vector<Part> parts;
  size_t at = 0;
  do {
    const size_t length = std::min(room, bytes - at);
    parts.push_back(make_part(at, length));
    at += length;
  } while (at < bytes);
  return parts;
}

// make_part(at, bytes of each piece) for pieces, one for each rank, that are cut at the same places
// into at most `room` bytes. All ranks know the sizes of all pieces, so all make the same parts.
template <typename MakePart>
std::vector<Part> cut_pieces(const std::vector<Span>& pieces, size_t room, MakePart make_part) {
  size_t longest = 0;
  for (const Span& piece : pieces) longest = std::max(longest, piece.bytes);
  return cut_evenly(longest, room, [&](size_t at, size_t) {
    std::vector<size_t> bytes;
    for (const Span& piece : pieces) {
      bytes.push_back(piece.bytes > at ? std::min(room, piece.bytes - at) : 0);
    }
    return make_part(at, bytes);
  });
}

// Spans of these sizes in the slot, each with room of its own.
inline std::vector<Span> pieces_at(std::byte* slot, const std::vector<size_t>& bytes, size_t room) {
  std::vector<Span> spans;
  for (const size_t length : bytes) {
    spans.emplace_back(slot + spans.size() * room, length);
  }
  return spans;
}

// The copies of `spans`, one after the other in a slot of which `*bytes` are taken.
inline std::vector<Copy> copies_after(const std::vector<Span>& spans, size_t* bytes) {
  std::vector<Copy> copies;
  for (const Span& span : spans) {
    copies.push_back({span.data, *bytes, span.bytes});
    *bytes += round_up(span.bytes, kPieceAlignment);
  }
  return copies;
}

// Where they are in the slot.
inline std::vector<Span> spans_at(std::byte* slot, const std::vector<Copy>& copies) {
  std::vector<Span> spans;
  for (const Copy& copy : copies) spans.emplace_back(slot + copy.offset, copy.bytes);
  return spans;
}

// `pieces` are not one for each of `num_ranks`, or that of rank `own` has not `own_bytes`.
inline Status check_pieces(std::string_view operation, const std::vector<Span>& pieces,
                           size_t num_ranks, size_t own, size_t own_bytes) {
  if (pieces.size() != num_ranks) {
    return Status(StatusCode::invalid_argument, operation, ": got ", pieces.size(),
                  " tensors on rank ", own, ", expected ", num_ranks, " (one per rank)");
  }
  if (pieces[own].bytes == own_bytes) return Status();
  return Status(StatusCode::invalid_argument, operation, ": piece ", own, " has ",
                pieces[own].bytes, " bytes, but rank ", own, "'s own tensor has ", own_bytes);
}

}  // namespace dmlcomm::device
