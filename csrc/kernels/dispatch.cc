#include "kernels/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dmlcomm::kernels {

#if defined(__x86_64__)
namespace {

// clang's __builtin_cpu_supports does not know it. That the system saves its registers follows from
// AVX2, for which the builtin checks it.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace
#endif

std::vector<const KernelTable*> runnable_tables() {
  std::vector<const KernelTable*> tables{&baseline::kTable};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && has_f16c()) {
    tables.push_back(&avx2::kTable);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      tables.push_back(&avx512::kTable);
    }
  }
#endif
  return tables;
}

const KernelTable& best_table() {
  static const KernelTable* const table = runnable_tables().back();
  return *table;
}

}  // namespace dmlcomm::kernels
