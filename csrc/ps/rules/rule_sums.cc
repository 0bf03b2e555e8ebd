#include "ps/rules/rule_options.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/reduce.h"
#include "kernels/update.h"

namespace dmlcomm::ps {
namespace {

bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
    case DType::u16:
    case DType::i16:
    case DType::u32:
    case DType::i32:
    case DType::u64:
    case DType::i64: return true;
    default: return false;
  }
}

// n where scale is 1/n as a division of doubles gives it, for a whole n from 1 to 2^32; 0 for
// everything else. The inverse of the inverse of such an n is less than 1/2 away from n.
uint64_t divisor_of(double scale) {
  constexpr double kMaxDivisor = 4294967296.0;
  const double divisor = std::round(1 / scale);
  if (!(divisor >= 1 && divisor <= kMaxDivisor) || 1 / divisor != scale) return 0;
  return static_cast<uint64_t>(divisor);
}

// Common to both: no state, and which types and scales there are.
class SumRule : public Rule {
 public:
  explicit SumRule(const char* name) : name_(name) {}

  size_t num_slots() const override { return 0; }
  double first_value(size_t) const override { return 0; }
  bool supports(DType dtype) const override {
    return is_integer(dtype) || kernels::supports_add_scaled(dtype);
  }

  Status apply(const UpdateRange& range) const override {
    DMLCOMM_CHECK(std::isfinite(range.scale));
    if (!supports(range.dtype)) {
      return Status(StatusCode::unsupported, "update rule '", name_, "' does not support ",
                    to_string(range.dtype), "; it supports integers, f16, bf16, f32 and f64");
    }
    const uint64_t divisor = is_integer(range.dtype) ? divisor_of(range.scale) : 1;
    if (divisor == 0) {
      return Status(StatusCode::invalid_argument, "update rule '", name_,
                    "': ", to_string(range.dtype),
                    " can be scaled by 1/n only (n whole, at most 2^32), but the scale is ",
                    range.scale, "; use a mean or a sum, or push floating-point numbers");
    }
    combine(range, divisor);
    return Status();
  }

 private:
  // `divisor` is for integers, `scale` for the others.
  virtual void combine(const UpdateRange& range, uint64_t divisor) const = 0;

  const char* name_;
};

class AssignRule : public SumRule {
 public:
  AssignRule() : SumRule("assign") {}

  bool replaces() const override { return true; }

 private:
  void combine(const UpdateRange& range, uint64_t divisor) const override {
    if (range.scale == 1 && range.weights == range.gradient) return;
    if (is_integer(range.dtype) || range.scale == 1) {
      const void* const srcs[] = {range.gradient};
      kernels::reduce(range.weights, srcs, 1, range.count, range.dtype, ReduceOp::avg, divisor);
    } else {
      kernels::scale(range.weights, range.gradient, range.count, range.dtype, range.scale);
    }
  }
};

class AddRule : public SumRule {
 public:
  AddRule() : SumRule("add") {}

 private:
  void combine(const UpdateRange& range, uint64_t divisor) const override {
    if (divisor != 1) {
      add_quotients(range, divisor);
    } else if (is_integer(range.dtype) || range.scale == 1) {
      add(range.weights, range.gradient, range.count, range.dtype);
    } else {
      kernels::add_scaled(range.weights, range.gradient, range.count, range.dtype, range.scale);
    }
  }

  static void add(std::byte* weights, const std::byte* gradient, size_t count, DType dtype) {
    const void* const srcs[] = {weights, gradient};
    kernels::reduce(weights, srcs, 2, count, dtype, ReduceOp::sum, 1);
  }

  // Only the gradient is divided, so the quotients are made first: as many at a time as stay in the
  // L1 cache.
  static void add_quotients(const UpdateRange& range, uint64_t divisor) {
    alignas(64) std::byte quotients[4096];
    const size_t element_bytes = size_of(range.dtype);
    const size_t block = sizeof(quotients) / element_bytes;
    for (size_t first = 0; first < range.count; first += block) {
      const size_t count = std::min(block, range.count - first);
      const size_t offset = first * element_bytes;
      const void* const srcs[] = {range.gradient + offset};
      kernels::reduce(quotients, srcs, 1, count, range.dtype, ReduceOp::avg, divisor);
      add(range.weights + offset, quotients, count, range.dtype);
    }
  }
};

}  // namespace

std::unique_ptr<Rule> make_assign(const OptionValues&) { return std::make_unique<AssignRule>(); }

std::unique_ptr<Rule> make_add(const OptionValues&) { return std::make_unique<AddRule>(); }

}  // namespace dmlcomm::ps
