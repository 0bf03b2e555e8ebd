// Coverage: which numbers of [0, infinity) are there already: a prefix, and intervals ahead of it.
// Bytes of a message whose parts come over several lanes, numbers of frames that came, and of
// collectives that a peer has begun. Adding at the end is constant time, a look-up logarithmic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dmlcomm::transport {

class Coverage {
 public:
  // Everything below is there.
  uint64_t prefix() const { return prefix_; }

  bool contains(uint64_t number) const {
    if (number < prefix_) return true;
    const auto at = ahead_.begin() + first_that_ends_from(number + 1);
    return at != ahead_.end() && at->begin <= number;
  }

  void add(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    if (begin > prefix_) return add_ahead({begin, end});
    prefix_ = std::max(prefix_, end);
    auto joined = ahead_.begin();
    for (; joined != ahead_.end() && joined->begin <= prefix_; ++joined) {
      prefix_ = std::max(prefix_, joined->end);
    }
    ahead_.erase(ahead_.begin(), joined);
  }

 private:
  struct Interval {
    uint64_t begin, end;
  };

  ptrdiff_t first_that_ends_from(uint64_t end) const {
    const auto ends_before = [](const Interval& i, uint64_t least) { return i.end < least; };
    return std::lower_bound(ahead_.begin(), ahead_.end(), end, ends_before) - ahead_.begin();
  }

  // The intervals stay in order, and apart from each other.
  void add_ahead(Interval added) {
    const auto first = ahead_.begin() + first_that_ends_from(added.begin);
    auto last = first;
    for (; last != ahead_.end() && last->begin <= added.end; ++last) {
      added = {std::min(added.begin, last->begin), std::max(added.end, last->end)};
    }
    ahead_.insert(ahead_.erase(first, last), added);
  }

  uint64_t prefix_ = 0;
  std::vector<Interval> ahead_;
};

}  // namespace dmlcomm::transport
