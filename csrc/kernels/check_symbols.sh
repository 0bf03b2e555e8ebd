#!/bin/sh
# check_symbols.sh NM OBJECT...: fails if an object that is compiled for one instruction set defines a
# symbol that the linker may merge with another object's (weak, or unique): a CPU without that
# instruction set could then be made to run it.
nm=$1
shift
status=0
checked=0
for object in "$@"; do
  case $object in *isa_*) ;; *) continue ;; esac
  checked=$((checked + 1))
  shared=$("$nm" --defined-only "$object" | grep -E ' [VvWwu] ')
  if [ -n "$shared" ]; then
    printf '%s defines symbols that may be merged:\n%s\n' "$object" "$shared" >&2
    status=1
  fi
done
if [ "$checked" -eq 0 ]; then
  echo "no object of an instruction set among: $*" >&2
  status=1
fi
exit $status
