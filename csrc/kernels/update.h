// Updates of weights by a gradient, as optimisers do them: pure loops over raw memory that read and
// write every array once.
//
// No allocation, no locks, callable from any thread. Pointers need the alignment of a byte only,
// and the arrays of a call do not overlap. Everything is computed in the type of the arrays; all
// instruction sets give the same bits, except which bits a NaN has.
//
// A step holds the values that are the same for all elements; the caller computes them once. w, g,
// and the state are elements; g is the gradient, multiplied with `scale` on the way in.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace dmlcomm::kernels {

//   g += weight_decay w
//   b = kept b + share g                 the momentum, where there is one
//   w -= rate (b, or g + momentum b for Nesterov, or g without momentum)
struct SgdStep {
  double scale;
  double rate;
  double weight_decay;
  double momentum;  // 0: none, and no array for it
  double kept;      // of the array; 0 in the first step, which makes it the gradient
  double share;     // of the gradient in the array
  bool nesterov;
};

//   g += gradient_decay w
//   m += (1 - beta1) (g - m)
//   v = beta2 v + (1 - beta2) g^2
//   w = kept_weight w - rate m / (root_factor sqrt(v) + eps)
struct AdamStep {
  double scale;
  double rate;  // the learning rate / (1 - beta1^t)
  double beta1;
  double beta2;
  double root_factor;  // 1 / sqrt(1 - beta2^t)
  double eps;
  double gradient_decay;  // Adam's weight decay; 0 for AdamW
  double kept_weight;     // AdamW: 1 - the learning rate x weight decay; 1 for Adam
};

//   g += weight_decay w
//   s += g^2
//   w -= rate g / (sqrt(s) + eps)
struct AdagradStep {
  double scale;
  double rate;
  double weight_decay;
  double eps;
};

// Whether update_sgd, update_adam and update_adagrad are defined for the type: f32 and f64.
bool supports_update(DType dtype);

// `momentum` is not touched if step.momentum is 0.
void update_sgd(void* weights, const void* gradient, void* momentum, size_t count, DType dtype,
                const SgdStep& step);

void update_adam(void* weights, const void* gradient, void* first_moment, void* second_moment,
                 size_t count, DType dtype, const AdamStep& step);

void update_adagrad(void* weights, const void* gradient, void* sum_of_squares, size_t count,
                    DType dtype, const AdagradStep& step);

// Whether `add_scaled` is defined for the type: f16, bf16, f32 and f64.
bool supports_add_scaled(DType dtype);

// w += scale g. f16 and bf16 are computed in f32 and rounded once.
void add_scaled(void* weights, const void* gradient, size_t count, DType dtype, double scale);

}  // namespace dmlcomm::kernels
