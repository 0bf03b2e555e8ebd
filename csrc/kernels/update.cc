#include "kernels/update.h"

#include "kernels/dispatch.h"

namespace dmlcomm::kernels {

bool supports_update(DType dtype) { return find(best_table().sgd, dtype) != nullptr; }

void update_sgd(void* weights, const void* gradient, void* momentum, size_t count, DType dtype,
                const SgdStep& step) {
  void* const arrays[] = {weights, momentum};
  get(best_table().sgd, dtype)(arrays, gradient, count, step);
}

void update_adam(void* weights, const void* gradient, void* first_moment, void* second_moment,
                 size_t count, DType dtype, const AdamStep& step) {
  void* const arrays[] = {weights, first_moment, second_moment};
  get(best_table().adam, dtype)(arrays, gradient, count, step);
}

void update_adagrad(void* weights, const void* gradient, void* sum_of_squares, size_t count,
                    DType dtype, const AdagradStep& step) {
  void* const arrays[] = {weights, sum_of_squares};
  get(best_table().adagrad, dtype)(arrays, gradient, count, step);
}

bool supports_add_scaled(DType dtype) { return find(best_table().add_scaled, dtype) != nullptr; }

void add_scaled(void* weights, const void* gradient, size_t count, DType dtype, double scale) {
  get(best_table().add_scaled, dtype)(weights, gradient, count, scale);
}

}  // namespace dmlcomm::kernels
