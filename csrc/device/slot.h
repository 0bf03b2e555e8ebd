// Slot: pinned memory through which operations pass, one use after the other.
//
//     queue out:  until `freed` is use - 1   copies to the slot      `filled` = use
//     host:       until `filled` is use      the operation           `finished` = use
//     queue in:   until `finished` is use    copies from the slot    `freed` = use
//
// A use waits only for pieces that queues got before it, and for the host: queues that the device
// happens to run one after the other, in the order of the calls, do not block each other.
//
// Threads: submit() one at a time; the rest from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/alignment.h"
#include "device/device.h"
#include "memory/span.h"

namespace dmlcomm::device {

// Between memory of the device and a place in the slot.
struct Copy {
  std::byte* device = nullptr;
  size_t offset = 0;  // in the slot
  size_t bytes = 0;
};

class Slot {
 public:
  // Of the three words: each has a cache line.
  static constexpr size_t kWordsBytes = 3 * kCacheLineBytes;

  // `words` is pinned memory of its own, at the beginning of a cache line. No queue has work left
  // on either.
  Slot(Span memory, std::byte* words);

  const Span& memory() const { return memory_; }

  // Gives both queues, which may be one, their pieces of the next use: its number.
  Result<uint32_t> submit(Queue& out, const std::vector<Copy>& copies_out, Queue& in,
                          const std::vector<Copy>& copies_in);

  // Of the host's part.
  bool is_filled(uint32_t use) const { return filled_.has_reached(use); }
  void finish(uint32_t use) const { finished_.set(use); }
  bool is_free(uint32_t use) const { return freed_.has_reached(use); }

 private:
  Status submit(uint32_t use, Queue& out, const std::vector<Copy>& copies_out, Queue& in,
                const std::vector<Copy>& copies_in) const;

  const Span memory_;
  const Word filled_;
  const Word finished_;
  const Word freed_;
  uint32_t last_use_ = 0;
};

}  // namespace dmlcomm::device
