#!/bin/bash
# Runs every libFuzzer target for some seconds, one on each core:
#   scripts/fuzz.sh [--run] [seconds each, default 15] [target ...]
#   scripts/fuzz.sh --compile
# --compile does not run them, --run takes what has been compiled.
# Inputs found so far are kept in build/fuzz/corpus; seeds come from csrc/tests/fuzz/seeds/<target>/.
set -euo pipefail
cd "$(dirname "$0")/.."
part=both
case "${1:-}" in
  --compile | --run) part=${1#--}; shift ;;
  --*) echo "$0: there is no option $1" >&2; exit 2 ;;
esac
seconds=${1:-15}
build=build/fuzz

if [ "$part" != run ]; then
  if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi
  cmake -S . -B "$build" -DCMAKE_CXX_COMPILER="$(command -v clang++)" -DDMLCOMM_FUZZ=ON \
    -DDMLCOMM_SANITIZE=address -DDMLCOMM_BUILD_TESTS=OFF >/dev/null
  cmake --build "$build" --target fuzzers --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
fi
[ "$part" != compile ] || exit 0

# A fuzzer that cannot see a crash proves nothing: this one must fail.
if "$build/fuzz/expected_crash" -max_total_time=60 -artifact_prefix="$build/" >/dev/null 2>&1; then
  echo "expected_crash did not crash: the fuzzing set-up is broken" >&2
  exit 1
fi

fuzz() {  # fuzz <folder of the build> <target> <seconds>
  local corpus=$1/corpus/$2 seeds=csrc/tests/fuzz/seeds/$2 log=$1/$2.log
  mkdir -p "$corpus"
  "$1/fuzz/$2" "$corpus" $([ -d "$seeds" ] && echo "$seeds") -max_total_time="$3" \
    -rss_limit_mb=2048 -timeout=10 -verbosity=0 -print_final_stats=1 -artifact_prefix="$1/" \
    >"$log" 2>&1 || { mv "$log" "$log.failed"; return 1; }
  echo "$2: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $3 s"
}
export -f fuzz
shift || true
if [ $# = 0 ]; then set -- "$build"/fuzz/*; fi
rm -f "$build"/*.log.failed
for target in "$@"; do
  [ "$(basename "$target")" = expected_crash ] || basename "$target"
done | xargs -P "$(nproc)" -I{} bash -c 'fuzz "$@"' - "$build" {} "$seconds" || {
  for log in "$build"/*.log.failed; do
    echo "$(basename "$log" .log.failed) has failed:"
    grep -v NEW_FUNC "$log" | tail -n 60
  done
  exit 1
}
