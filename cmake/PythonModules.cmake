# Where the two Python modules find their headers and libraries. Everything is asked from the given
# interpreter (-DPython_EXECUTABLE=...), at every configure and never cached, so that a build folder
# survives a change of environment.

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)

# Sets `variable` to what the Python `expression` prints.
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
  dmlcomm_ask_python(torch_includes
    "import torch.utils.cpp_extension as e; print(';'.join(e.include_paths()))" torch)
  dmlcomm_ask_python(torch_lib
    "import os, torch; print(os.path.join(os.path.dirname(torch.__file__), 'lib'))" torch)
  dmlcomm_ask_python(torch_version
    "import torch; major, minor = torch.__version__.split('.')[:2]; print(int(major) * 100 + int(minor))"
    torch)
  dmlcomm_ask_python(torch_cxx11_abi
    "import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))" torch)
  if(torch_version LESS 211)
    message(FATAL_ERROR "torch >= 2.11 is needed; ${Python_EXECUTABLE} has version ${torch_version} (major * 100 + minor)")
  endif()
  # The core is linked into the same module, so it must see the same std::string.
  if(NOT torch_cxx11_abi)
    add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=0)
  endif()
  message(STATUS "torch: version ${torch_version}, libraries in ${torch_lib}")
endif()
