// Kernels for x86-64 CPUs with AVX-512 F, BW, VL and DQ; compiled with these enabled.
#include "kernels/isa_table.h"

namespace dmlcomm::kernels::avx512 {

constinit const KernelTable kTable = make_table("avx512");

}  // namespace dmlcomm::kernels::avx512
