#!/bin/sh
# Prints the first Python >= 3.11 that can compile extensions and make environments; fails if there is
# none. Each candidate is run, because a name on the PATH may be a shim of a version that is not there.
probe='
import ensurepip, pathlib, sys, sysconfig, venv
headers = pathlib.Path(sysconfig.get_paths()["include"], "Python.h")
assert sys.version_info >= (3, 11) and headers.exists()
'
for candidate in python3.13 python3.12 python3.11 python3; do
  if "$candidate" -c "$probe" 2>/dev/null; then
    echo "$candidate"
    exit 0
  fi
done
exit 1
