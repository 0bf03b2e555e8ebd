// Kernels for x86-64 CPUs with AVX2 and F16C; compiled with these enabled.
#include "kernels/isa_table.h"

namespace dmlcomm::kernels::avx2 {

constinit const KernelTable kTable = make_table("avx2");

}  // namespace dmlcomm::kernels::avx2
