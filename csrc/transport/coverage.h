// Coverage: which numbers of [0, infinity) are there already: a prefix, and intervals ahead of it.
// Bytes of a message whose parts come over several lanes, and the numbers of frames that came.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dmlcomm::transport {

class Coverage {
 public:
  // Everything below is there.
  uint64_t prefix() const { return prefix_; }
  bool has_gaps() const { return !ahead_.empty(); }

  bool contains(uint64_t number) const {
    return number < prefix_ || std::any_of(ahead_.begin(), ahead_.end(), [&](const Interval& i) {
             return i.begin <= number && number < i.end;
           });
  }

  void add(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    if (begin > prefix_) return add_ahead({begin, end});
    prefix_ = std::max(prefix_, end);
    while (!ahead_.empty() && ahead_.front().begin <= prefix_) {
      prefix_ = std::max(prefix_, ahead_.front().end);
      ahead_.erase(ahead_.begin());
    }
  }

 private:
  struct Interval {
    uint64_t begin, end;
  };

  // The intervals stay in order, and apart from each other.
  void add_ahead(Interval added) {
    auto first = std::find_if(ahead_.begin(), ahead_.end(),
                              [&](const Interval& i) { return i.end >= added.begin; });
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
