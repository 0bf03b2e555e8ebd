#!/bin/bash
# Builds a wheel for each minor version of torch, from 2.11 to the newest that the index has, installs
# it into a clean environment and runs the smoke test there. To be run weekly.
#   scripts/torch_versions.sh [--help] [2.15 ...]      without a version: all
# A version that fails does not stop the others; the exit code is then 1. FOLDER (dist) gets the
# wheels, WORK_FOLDER (build/torch) the environments, one version at a time, in a folder that is
# removed at the end. A version takes 4 minutes on two cores where the index is near, and 8 GB, mostly
# those of torch's own libraries.
set -uo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "scripts/$(basename "$0")"
  exit
fi
folder=${FOLDER:-dist}
work=$(realpath -m "${WORK_FOLDER:-build/torch}")/torch-versions
python=$(scripts/find_python.sh) || { echo "$0: no Python >= 3.11 with headers" >&2; exit 1; }
oldest=2.11
site='import sysconfig; print(sysconfig.get_path("purelib"))'

newest_of_each_minor() {  # lines like 2.12.1; the system's Python may have no pip
  rm -rf "$work" && mkdir -p "$work" && "$python" -m venv "$work/asking" || return
  "$work/asking/bin/pip" index versions torch | sed -n 's/^Available versions: //p' |
    tr -d ' ' | tr ',' '\n' | sort -V |
    awk -F. -v oldest="$oldest" '
      BEGIN { split(oldest, least, ".") }
      $1 > least[1] || ($1 == least[1] && $2 >= least[2]) { newest[$1 "." $2] = $0 }
      END { for (minor in newest) print newest[minor] }' | sort -V
}

# try <version of torch>: every command fails the whole. The environment of the build lies over the
# clean one, with its torch; the wheel comes into the clean one, which has no tools.
try() {
  local clean=$work/clean build=$work/build version=$1 wheel begin
  [[ $version == *.*.* ]] || version+=".*"
  rm -rf "$work" && mkdir -p "$work" || return
  "$python" -m venv "$clean" && "$python" -m venv "$build" || return
  "$clean/bin/pip" install -q --no-cache-dir "torch==$version" || return
  echo "import site; site.addsitedir('$("$clean/bin/python" -c "$site")')" \
    >"$("$build/bin/python" -c "$site")/below.pth" || return
  "$build/bin/python" scripts/requirements.py wheel |
    "$build/bin/pip" install -q -r /dev/stdin || return
  begin=$SECONDS
  wheel=$(PATH=$PATH:$build/bin "$build/bin/python" scripts/build_wheel.py "$folder" |
    tail -n 1) || return
  echo "built in $((SECONDS - begin)) s: $(basename "$wheel")"
  begin=$SECONDS
  "$clean/bin/pip" install -q "$wheel" || return
  echo "installed in $((SECONDS - begin)) s"
  "$python" scripts/smoke_test.py "$clean/bin/python"
}

versions=("$@")
((${#versions[@]})) || mapfile -t versions < <(newest_of_each_minor)
((${#versions[@]})) || { echo "$0: the package index names no torch from $oldest on" >&2; exit 1; }
failed=()
for version in "${versions[@]}"; do
  printf '\n=== torch %s\n' "$version"
  try "$version" || failed+=("$version")
done
rm -rf "$work"
((${#failed[@]} == 0)) || { echo "failed: torch ${failed[*]}" >&2; exit 1; }
