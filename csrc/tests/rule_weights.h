// Weights with the state of a rule, for the tests of update rules.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ps/rules/rule.h"
#include "tests/kernels_reference.h"

namespace dmlcomm::test {

// A rule that exists, or a failed test.
inline std::unique_ptr<ps::Rule> rule_of(const std::string& name,
                                         const std::map<std::string, double>& options = {}) {
  Result<std::unique_ptr<ps::Rule>> rule = ps::make_rule(name, options);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return std::move(*rule);
}

inline std::byte* bytes_of(void* memory) { return static_cast<std::byte*>(memory); }
inline const std::byte* bytes_of(const void* memory) {
  return static_cast<const std::byte*>(memory);
}

// Arrays that start `misalignment` bytes after an aligned address and end where their memory ends.
class Weights {
 public:
  Weights(const ps::Rule& rule, DType dtype, const std::vector<double>& values, size_t misalignment)
      : dtype_(dtype), count_(values.size()), misalignment_(misalignment) {
    arrays_.push_back(shifted(values));
    for (size_t slot = 0; slot < rule.num_slots(); ++slot) {
      arrays_.push_back(shifted(std::vector<double>(count_, rule.first_value(slot))));
    }
  }

  Status update(const ps::Rule& rule, const std::vector<double>& gradient, double scale,
                uint64_t step, double learning_rate = std::numeric_limits<double>::quiet_NaN()) {
    const Bytes pushed = shifted(gradient);
    std::vector<std::byte*> slots;
    for (size_t a = 1; a < arrays_.size(); ++a) {
      slots.push_back(bytes_of(arrays_[a].data() + misalignment_));
    }
    return rule.apply({.dtype = dtype_,
                       .weights = bytes_of(arrays_[0].data() + misalignment_),
                       .gradient = bytes_of(pushed.data() + misalignment_),
                       .slots = slots.data(),
                       .count = count_,
                       .scale = scale,
                       .step = step,
                       .learning_rate = learning_rate});
  }

  // Array 0 is the weights, the slots follow.
  double value(size_t array, size_t index) const {
    const Bytes& bytes = arrays_[array];
    const Bytes elements(bytes.begin() + static_cast<ptrdiff_t>(misalignment_), bytes.end());
    return decode(dtype_, elements, index);
  }
  const std::vector<Bytes>& arrays() const { return arrays_; }

 private:
  Bytes shifted(const std::vector<double>& values) const {
    Bytes bytes(misalignment_);
    const Bytes elements = encode(dtype_, values);
    bytes.insert(bytes.end(), elements.begin(), elements.end());
    return bytes;
  }

  DType dtype_;
  size_t count_;
  size_t misalignment_;
  std::vector<Bytes> arrays_;
};

}  // namespace dmlcomm::test
