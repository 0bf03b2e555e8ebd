// Partition: cuts `count` elements into `parts` runs whose lengths differ as little as
// alignment allows. Part i is [begin(i), end(i)); the parts cover [0, count) in order, and some
// are empty where count < parts.
//
// Large parts each begin at a multiple of a cache line, so that two ranks that write
// neighbouring parts of one aligned tensor never share a line, and vector loops start aligned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/alignment.h"
#include "base/check.h"

namespace dmlcomm::topology {

class Partition {
 public:
  Partition(uint64_t count, uint32_t parts, uint32_t element_bytes)
      : count_(count), unit_(unit_elements(count, parts, element_bytes)) {
    const uint64_t units = count_ / unit_ + (count_ % unit_ != 0 ? 1 : 0);
    quotient_ = units / parts;
    remainder_ = units % parts;
  }

  // With u units of which the last may be incomplete, u = q * parts + rem: the first rem parts get
  // q + 1 units, the others q. So i parts hold i * q + min(i, rem) units, at most u in all, and no
  // product exceeds `count` rounded up to a unit.
  uint64_t begin(uint32_t part) const {
    const uint64_t units = part * quotient_ + std::min<uint64_t>(part, remainder_);
    return std::min(count_, units * unit_);
  }
  uint64_t end(uint32_t part) const { return begin(part + 1); }
  uint64_t length(uint32_t part) const { return end(part) - begin(part); }

  // Elements in parts [first, last).
  uint64_t length_between(uint32_t first, uint32_t last) const {
    return begin(last) - begin(first);
  }

 private:
  // Aligned cuts make parts differ by a line. That is below 7 % where a part has at least 16 lines;
  // below that, the evenness of single elements is worth more.
  static constexpr uint64_t kLinesPerPart = 16;

  static uint64_t unit_elements(uint64_t count, uint32_t parts, uint32_t element_bytes) {
    DMLCOMM_CHECK(parts > 0 && element_bytes > 0);
    const uint64_t line = kCacheLineBytes / std::gcd<uint64_t>(kCacheLineBytes, element_bytes);
    return count / parts >= kLinesPerPart * line ? line : 1;
  }

  uint64_t count_;
  uint64_t unit_;  // elements that are never cut apart
  uint64_t quotient_;
  uint64_t remainder_;
};

}  // namespace dmlcomm::topology
