#!/usr/bin/env bash
# check_cuda_sides.sh DEVICE.o EMULATED.o...: a program may hold the CUDA kernels and their emulation. What depends on
# the names of device.h must then have two names, or the linker takes one side's for both: an error, where it happens.
set -euo pipefail
inline_functions() { nm -C --defined-only "$@" | sed -n 's/^[0-9a-f]* [WVu] //p' | grep -F 'tsallis::cuda::' | sort -u; }
device=$1
shift
both=$(comm -12 <(inline_functions "$device") <(inline_functions "$@"))
if [[ -n $both ]]; then
  printf 'the emulation and the device have the same\n%s\n' "$both" >&2
  exit 1
fi
