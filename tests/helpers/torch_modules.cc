// The Python modules of tests that are written in C++, in one library with both names. To read the
// headers of torch takes longer than all that the modules have.
#include "fake_cuda.cc"

#include "../../csrc/torch/torch_version.h"

#if DMLCOMM_HAS_HOOKS
#include "completion_hooks.cc"
#endif
