#!/usr/bin/env bash
# The tests for ARM's 64-bit processors, under emulation: compiled on this machine, run by qemu. It shows whether results
# are right; times, and the order in which threads see each other's memory, are those of this machine.
#   scripts/check_arm.sh [kernels] [wheel]   parts; without any, both
# `kernels` runs the kernel library's tests on two processors: one that has every instruction, and one without products of
# bytes. `wheel` builds the wheel for aarch64 and uses its operators in a torch for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
parts=${*:-kernels wheel}
for part in $parts; do
  [[ $part == kernels || $part == wheel ]] || { echo "check_arm: expected kernels or wheel, got $part" >&2; exit 2; }
done
scripts/arm_root.sh
start=$SECONDS
took() { echo "check_arm: $1 took $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s"; start=$SECONDS; }

if [[ $parts == *kernels* ]]; then
  [[ -f build-arm/kernels/build.ninja ]] || cmake --preset arm
  cmake --build build-arm/kernels --target all tests
  took "compiling"
  export QEMU_LD_PREFIX=$PWD/build-arm/root
  for processor in max cortex-a72; do
    expected=
    if [[ $processor == cortex-a72 ]]; then expected="ARM Cortex-A72"; fi
    echo "== on $processor"
    QEMU_CPU=$processor TSALLIS_CASES=${TSALLIS_CASES:-40} ${expected:+env TSALLIS_EXPECTED_CPU="$expected"} \
      .venv/bin/python scripts/run_tests.py --timeout 3600 --ctest build-arm/kernels
    took "$processor"
  done
fi
if [[ $parts == *wheel* ]]; then
  scripts/build_wheel.sh aarch64
  took "the wheel"
  scripts/check_wheel.sh aarch64
  took "the operators"
fi
