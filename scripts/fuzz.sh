#!/bin/bash
# Runs every libFuzzer target for some seconds: scripts/fuzz.sh [seconds each, default 15] [target ...]
# Inputs found so far are kept in build/fuzz/corpus; seeds come from csrc/tests/fuzz/seeds/<target>/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-15}
build=build/fuzz

if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi
cmake -S . -B "$build" -DCMAKE_CXX_COMPILER=clang++ -DDMLCOMM_FUZZ=ON -DDMLCOMM_SANITIZE=address \
  -DDMLCOMM_BUILD_TESTS=OFF >/dev/null
cmake --build "$build" --target fuzzers --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"

# A fuzzer that cannot see a crash proves nothing: this one must fail.
if "$build/fuzz/expected_crash" -max_total_time=60 -artifact_prefix="$build/" >/dev/null 2>&1; then
  echo "expected_crash did not crash: the fuzzing set-up is broken" >&2
  exit 1
fi

shift || true
for target in "${@:-$build/fuzz/*}"; do
  for binary in $target; do
    name=$(basename "$binary")
    [ "$name" != expected_crash ] || continue
    corpus=$build/corpus/$name
    mkdir -p "$corpus"
    seeds=csrc/tests/fuzz/seeds/$name
    echo "fuzz $name for $seconds s"
    "$build/fuzz/$name" "$corpus" $([ -d "$seeds" ] && echo "$seeds") -max_total_time="$seconds" \
      -rss_limit_mb=2048 -timeout=10 -verbosity=0 -print_final_stats=1 -artifact_prefix="$build/"
  done
done
