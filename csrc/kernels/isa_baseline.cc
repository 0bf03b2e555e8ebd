// Kernels for every CPU of the architecture: SSE2 on x86-64, NEON on arm64.
#include "kernels/isa_table.h"

namespace dmlcomm::kernels::baseline {

#if defined(__aarch64__)
constinit const KernelTable kTable = make_table("neon");
#else
constinit const KernelTable kTable = make_table("baseline");
#endif

}  // namespace dmlcomm::kernels::baseline
