# Where the two Python modules find their headers and libraries. Everything is asked from the given
# interpreter (-DPython_EXECUTABLE=...), at every configure and never cached, so that a build folder
# survives a change of environment.

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)

# Sets `variable` to what the Python `code` prints.
function(dmlcomm_ask_python variable code what)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "${code}"
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no ${what}; try: pip install ${what}")
  endif()
  set(${variable} "${answer}" PARENT_SCOPE)
endfunction()

if(DMLCOMM_BUILD_BINDINGS)
  dmlcomm_ask_python(pybind11_include "import pybind11; print(pybind11.get_include())" pybind11)
endif()

# Not find_package(Torch): with a CUDA wheel that demands a CUDA toolkit, and nothing here uses CUDA.
if(DMLCOMM_BUILD_TORCH)
  # One question, since `import torch` takes seconds: libraries | minor version | ABI | include folders.
  dmlcomm_ask_python(answer "
import os, torch
from torch.utils.cpp_extension import include_paths
major, minor = torch.__version__.split('.')[:2]
print(os.path.join(os.path.dirname(torch.__file__), 'lib'), f'{major}.{minor}',
      int(torch._C._GLIBCXX_USE_CXX11_ABI), *include_paths(), sep=';')" torch)
  list(POP_FRONT answer torch_lib torch_minor torch_cxx11_abi)
  set(torch_includes ${answer})
  if(torch_minor VERSION_LESS 2.11)
    message(FATAL_ERROR "torch >= 2.11 is needed; ${Python_EXECUTABLE} has version ${torch_minor}")
  endif()
  # The core is linked into the same module, so it must see the same std::string.
  if(NOT torch_cxx11_abi)
    add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=0)
  endif()
  message(STATUS "torch: version ${torch_minor}, libraries in ${torch_lib}")
endif()
