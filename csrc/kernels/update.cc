#include "kernels/update.h"

#include "base/check.h"
#include "kernels/dispatch.h"

namespace dmlcomm::kernels {
namespace {

// nullptr for numbers that name no type, too.
template <typename Function>
Function find(const Function (&functions)[kNumDTypes], DType dtype) {
  const auto row = static_cast<size_t>(dtype);
  return row < kNumDTypes ? functions[row] : nullptr;
}

}  // namespace

bool supports_update(DType dtype) { return find(best_table().sgd, dtype) != nullptr; }

void update_sgd(void* weights, const void* gradient, void* momentum, size_t count, DType dtype,
                const SgdStep& step) {
  const UpdateFunction<SgdStep> function = find(best_table().sgd, dtype);
  DMLCOMM_CHECK(function != nullptr);
  void* const arrays[] = {weights, momentum};
  function(arrays, gradient, count, step);
}

void update_adam(void* weights, const void* gradient, void* first_moment, void* second_moment,
                 size_t count, DType dtype, const AdamStep& step) {
  const UpdateFunction<AdamStep> function = find(best_table().adam, dtype);
  DMLCOMM_CHECK(function != nullptr);
  void* const arrays[] = {weights, first_moment, second_moment};
  function(arrays, gradient, count, step);
}

void update_adagrad(void* weights, const void* gradient, void* sum_of_squares, size_t count,
                    DType dtype, const AdagradStep& step) {
  const UpdateFunction<AdagradStep> function = find(best_table().adagrad, dtype);
  DMLCOMM_CHECK(function != nullptr);
  void* const arrays[] = {weights, sum_of_squares};
  function(arrays, gradient, count, step);
}

bool supports_add_scaled(DType dtype) { return find(best_table().add_scaled, dtype) != nullptr; }

void add_scaled(void* weights, const void* gradient, size_t count, DType dtype, double scale) {
  const AddScaledFunction function = find(best_table().add_scaled, dtype);
  DMLCOMM_CHECK(function != nullptr);
  function(weights, gradient, count, scale);
}

}  // namespace dmlcomm::kernels
