#!/bin/bash
# Makes sure that the system's packages are there: installs what is missing as root, else names it.
#   scripts/system_packages.sh [build] [test] [bench]
set -euo pipefail
here=$(dirname "$0")
missing=()

need() {  # need "<packages>" <probe command...>
  local packages=$1
  shift
  "$@" >/dev/null 2>&1 </dev/null || missing+=($packages)
}
has_gtest() { g++ -x c++ -fsyntax-only - <<<'#include <gtest/gtest.h>'; }
has_ucx() { g++ -x c++ -fsyntax-only - <<<'#include <ucp/api/ucp.h>'; }
has_simgrid() { /usr/bin/python3 -c 'import simgrid' || python3 -c 'import simgrid'; }
has_fuzzer() {
  clang++ -fsanitize=fuzzer,address -x c++ -o /dev/null - <<<'#include <vector>
    extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }'
}

for group in "${@:-build}"; do
  case $group in
    build)
      need "g++ make" eval "command -v g++ && command -v make"
      need "python3-dev python3-venv" "$here/find_python.sh" ;;
    test)
      need "libgtest-dev" has_gtest
      need "clang libclang-rt-dev" has_fuzzer
      need "libucx-dev" has_ucx
      need "python3-simgrid" has_simgrid ;;
    bench) need "openmpi-bin libopenmpi-dev" command -v mpirun ;;
    *) echo "unknown group $group; legal are build, test, bench" >&2; exit 2 ;;
  esac
done

((${#missing[@]})) || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Missing system packages. Install them (names as in Debian and Ubuntu) and run this again:" >&2
  echo "  sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
apt-get update -qq
# Older releases carry the compiler runtime inside clang itself.
apt-cache show libclang-rt-dev >/dev/null 2>&1 || missing=("${missing[@]/libclang-rt-dev/}")
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ${missing[*]}
