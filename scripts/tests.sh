#!/bin/bash
# Every check and every test, for `make test`. A table at the end, good or bad, says how long all took.
#
# C++ is compiled beside other phases, with the time that these leave the cores: packages have to
# arrive, and many Python tests mostly wait.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
export PATH=$PATH:$PWD/$venv/bin  # cmake and ninja, where the system has none
set -m  # a process group for each job in the background, so that it can be ended as a whole

times=()
running=
phase() {  # phase <name> <command...>
  local begin=$SECONDS
  running=$1
  shift
  printf '\n=== %s\n' "$running"
  "$@"
  times+=("$(printf '%5d s  %s' $((SECONDS - begin)) "$running")")
}

declare -A jobs=()
compile() {  # compile <name> <change of priority> <script...>: starts it, beside what comes next
  local log=build/$1.log name=$1 yield=$2
  shift 2
  mkdir -p build
  (
    until cmake --version >/dev/null 2>&1; do sleep 1; done
    $yield "$BASHPID" >/dev/null 2>&1 || renice -n 19 "$BASHPID" >/dev/null
    while [ $# != 0 ]; do $1; shift; done
  ) >"$log" 2>&1 &
  jobs[$name]=$!
}
# Nothing is in a hurry for the C++ tests. What the Python modules are made of is needed sooner.
last="chrt --idle --pid 0"
soon="renice -n 10"
compiled() {  # compiled <name...>
  local name
  for name in "$@"; do
    wait "${jobs[$name]}" || { cat "build/$name.log"; exit 1; }
    unset "jobs[$name]"
  done
}
build() {
  [ -z "${jobs[core]:-}" ] || compiled core
  make build
}
finish() {
  local status=$?
  for job in "${jobs[@]}"; do kill -- "-$job" 2>/dev/null || true; done
  printf '\n=== times\n'
  printf '%s\n' "${times[@]}" "$(printf '%5d s  in all' "$SECONDS")"
  [ "$status" = 0 ] || printf '\n=== FAILED: %s\n' "$running"
}
trap finish EXIT

phase "system packages" scripts/system_packages.sh build test
python=$venv/bin/python
[ -x "$python" ] || python=$(scripts/find_python.sh)
python_build=build/$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
# One that is there has its part of them, and would ask for packages that are being replaced.
if [ ! -e "$python_build/CMakeCache.txt" ]; then
  layers="dmlcomm_device dmlcomm_proxy dmlcomm_sim"
  compile core "$soon" "scripts/cpp_tests.sh --compile plain $python_build $layers"
fi
compile sanitized "$last" "scripts/cpp_tests.sh --compile address" \
  "scripts/cpp_tests.sh --compile thread" "scripts/fuzz.sh --compile"
phase "environment" make "$venv/.requirements"
phase "check" make check
phase "build" build
compile plain "$last" "scripts/cpp_tests.sh --compile plain $python_build"
phase "Python tests that run alone" "$venv/bin/pytest" -m alone
phase "the other Python tests" "$venv/bin/pytest" -m "not alone" -n "$(nproc)" --dist loadgroup
phase "rest of the compilation" compiled sanitized plain
phase "C++ tests" scripts/cpp_tests.sh --run plain "$python_build"
phase "C++ tests, ASan and UBSan" scripts/cpp_tests.sh --run address
phase "C++ tests, TSan" scripts/cpp_tests.sh --run thread
phase "fuzzing" scripts/fuzz.sh --run "${FUZZ_SECONDS:-15}"
