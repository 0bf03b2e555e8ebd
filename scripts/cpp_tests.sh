#!/bin/bash
# Builds and runs the C++ tests of the core:
#   scripts/cpp_tests.sh [--compile|--run] plain|address|thread [build folder [CMake target ...]]
# --compile does not run them, --run takes what has been compiled. Targets are all that is compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
part=both
case "${1:-}" in
  --compile | --run) part=${1#--}; shift ;;
  --*) echo "$0: there is no option $1" >&2; exit 2 ;;
esac
variant=${1:?plain, address or thread}
build=${2:-build/tests-$variant}
# The others have one thread, in which there are no races to find.
tests_with_threads=(base_test engine_test proxy_test ps_cluster_test ps_model_test
  ps_replicas_test relay_service_test staging_test waiting_test)
targets=("${@:3}")
selected=()
if [ "$variant" = thread ]; then
  [ ${#targets[@]} != 0 ] || targets=("${tests_with_threads[@]}")
  selected=(--tests-regex "^($(IFS='|'; echo "${tests_with_threads[*]}"))(_[0-9]+)?$")
fi

if [ "$part" != run ]; then
  if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi
  cmake -S . -B "$build" -DDMLCOMM_SANITIZE="${variant/plain/}" -DDMLCOMM_BUILD_TESTS=ON >/dev/null
  cmake --build "$build" ${targets:+--target "${targets[@]}"} \
    --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
fi
[ "$part" != compile ] || exit 0

# ThreadSanitizer cannot map its shadow where the kernel randomises addresses too much.
launcher=()
if [ "$variant" = thread ] && setarch "$(uname -m)" -R true 2>/dev/null; then
  launcher=(setarch "$(uname -m)" -R)
fi
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
export GTEST_BRIEF=1  # of thousands of lines only those on failures are of use
# A plain run has the machine for itself, as its waits and timeouts assume; sanitizers are slow anyway.
jobs=$([ "$variant" = plain ] && echo 1 || nproc)
"${launcher[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$jobs" \
  "${selected[@]}"
