// Which torch this is compiled for: c10d's interface to backends changes with each minor version.
#pragma once

#include <torch/version.h>

#define DMLCOMM_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||          \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// 2.14 has hooks for aborts only, and nobody can ask for them.
#define DMLCOMM_HAS_HOOKS DMLCOMM_TORCH_AT_LEAST(2, 15)
