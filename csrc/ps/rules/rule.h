// Update rules: a parameter server applies one to the weights when the gradients of a window have
// come in. A rule is pure arithmetic on ranges of memory; it holds its options, and neither weights
// nor state.
//
// Rules do not change after they were made: any thread may call any function at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "base/status.h"

namespace dmlcomm::ps {

// One update of `count` elements of one type. Arrays may have any alignment, belong to the caller,
// and do not overlap (but see Rule::replaces()).
struct UpdateRange {
  DType dtype;                // of weights, gradient and slots
  std::byte* weights;         // read and written
  const std::byte* gradient;  // sum of the pushes of a window
  std::byte* const* slots;    // num_slots() arrays, read and written
  size_t count;
  double scale;          // gradients are multiplied with it first (1/n for a mean); finite
  uint64_t step;         // of this range, from 1
  double learning_rate;  // NaN: the rule's own; not negative; "assign" and "add" have none
};

class Rule {
 public:
  virtual ~Rule() = default;

  // Arrays of state per element, of the weights' type.
  virtual size_t num_slots() const = 0;

  // The value of the slot's elements before the first update.
  virtual double first_value(size_t slot) const = 0;

  virtual bool supports(DType dtype) const = 0;

  // The weights become the scaled gradient, whatever they were. Then `weights` and `gradient` may
  // be the same memory.
  virtual bool replaces() const { return false; }

  // Any thread; overlapping ranges never at once. A failure has changed nothing: unsupported for a
  // type that the rule does not support, invalid_argument for a learning rate or (integers) a scale
  // that it cannot use.
  virtual Status apply(const UpdateRange& range) const = 0;
};

// Makes the rule `name`. `options` are named as those of torch.optim, whose defaults they have; a
// flag is 0 or 1. The rules compute what torch computes, to the rounding of the type.
//
//   assign    weights = gradient x scale
//   add       weights += gradient x scale
//   sgd       lr (0.001), momentum (0), dampening (0), nesterov (0), weight_decay (0)
//   adam      lr (0.001), beta1 (0.9), beta2 (0.999), eps (1e-8), weight_decay (0)
//   adamw     as adam, weight_decay (0.01) is taken off the weights themselves
//   adagrad   lr (0.01), lr_decay (0), eps (1e-10), initial_accumulator_value (0), weight_decay (0)
//
// "assign" and "add" are for integers, f16, bf16, f32 and f64; the others for f32 and f64. Integers
// can be scaled by 1/n only, n whole and at most 2^32: the sum of the window is divided, and
// truncated, as for ReduceOp::avg. Any other scale would need a rounding that no type of ours has.
// f16 and bf16 are computed in f32 and rounded once. A range's learning rate takes the place of lr,
// to which adagrad applies lr_decay.
//
// Unknown names, unknown options and values out of range are an invalid_argument that lists what is
// allowed.
Result<std::unique_ptr<Rule>> make_rule(const std::string& name,
                                        const std::map<std::string, double>& options);

}  // namespace dmlcomm::ps
