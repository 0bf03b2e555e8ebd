#!/bin/bash
# Cross-builds the core (without torch and Python) and its C++ tests for arm64, and runs the tests
# under emulation: those of pure code by default. Debian's packages: g++-aarch64-linux-gnu,
# qemu-user-static and libgtest-dev.
#   scripts/arm64.sh [--help] [test ...]      test: a name such as engine_test
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "scripts/$(basename "$0")"
  exit
fi
build=build/arm64
emulator=(qemu-aarch64-static -L /usr/aarch64-linux-gnu)
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static cmake; do
  command -v "$tool" >/dev/null || { echo "$0: $tool was not found; see --help" >&2; exit 1; }
done
[[ -d /usr/src/googletest ]] || { echo "$0: no sources of GoogleTest; see --help" >&2; exit 1; }
cross=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc)
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

cmake -S /usr/src/googletest -B "$build/googletest" "${cross[@]}" -DBUILD_GMOCK=OFF \
  -DCMAKE_INSTALL_PREFIX="$PWD/$build/installed" >/dev/null
cmake --build "$build/googletest" --target install >/dev/null
cmake -S . -B "$build/core" "${cross[@]}" \
  -DGTest_DIR="$PWD/$build/installed/lib/cmake/GTest" >/dev/null

tests=("$@")
((${#tests[@]})) || tests=(base_test kernels_test convert_test update_test quantize_test crc32c_test
  frame_test topology_test schedule_verifier_test schedule_planner_test schedule_bml_test
  sim_shares_test)
cmake --build "$build/core" --target "${tests[@]}"
for test in "${tests[@]}"; do
  "${emulator[@]}" "$(find "$build/core" -type f -name "$test" -perm -1)" --gtest_brief=1
done
