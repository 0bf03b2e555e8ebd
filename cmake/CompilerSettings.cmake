# Language level, warnings, optimisation, sanitizers and ccache for every target of the project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# -g1: line numbers for stack traces at a tenth of the size of full debug information.
# Sanitizers instrument what the optimiser leaves; -Og compiles in two thirds of the time of -O1.
if(DMLCOMM_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-Og -g1 -DNDEBUG")
else()
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1 -DNDEBUG")
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

add_compile_options(-Wall -Wextra)
if(DMLCOMM_WERROR)
  add_compile_options(-Werror)
endif()
# Messages and debug information name files relative to the source tree, on every machine.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)

if(DMLCOMM_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(DMLCOMM_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC warns that ThreadSanitizer does not model std::atomic_thread_fence.
    add_compile_options(-Wno-tsan)
  endif()
elseif(DMLCOMM_SANITIZE)
  message(FATAL_ERROR "DMLCOMM_SANITIZE is '${DMLCOMM_SANITIZE}'; legal are '', address, thread")
endif()
if(sanitizers)
  add_compile_options(${sanitizers} -fno-omit-frame-pointer)
  add_link_options(${sanitizers})
endif()

if(DMLCOMM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "DMLCOMM_FUZZ needs clang: configure with -DCMAKE_CXX_COMPILER=clang++")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Several build folders compile the same core; without the hash of the folder they share the cache.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()
