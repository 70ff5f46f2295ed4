#!/usr/bin/env bash
# Builds the wheel: one library for every torch from 2.10 on, for Linux from glibc 2.28 on. The wheel lies in
# build-wheel/wheelhouse/. Takes as long as the kernels compile; ccache knows them afterwards.
#   scripts/build_wheel.sh            for this machine
#   scripts/build_wheel.sh aarch64    on x86-64, for ARM: in build-arm/wheelhouse/
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$source/.venv/bin/python
machine=${1:-$(uname -m)}
work=$source/build-wheel
settings=() as=()
if [[ $machine == "$(uname -m)" ]]; then
  export CC=cc CXX=c++ # as the presets call it: ccache then knows what they compiled
elif [[ $machine == aarch64 ]]; then
  "$source/scripts/arm_root.sh" torch
  work=$source/build-arm
  settings=(-C cmake.define.CMAKE_TOOLCHAIN_FILE="$source/cmake/arm64.cmake" -C cmake.define.TSALLIS_CUDA=OFF
    -C cmake.define.TSALLIS_WERROR=AUTO # as the preset `arm` has it: ccache knows what that compiled
    -C cmake.define.Torch_DIR="$work/torch/share/cmake/Torch")
  as=(env _PYTHON_HOST_PLATFORM=linux-aarch64) # Python says so of itself, and the wheel's tag follows
else
  echo "build_wheel: expected $(uname -m) or aarch64, got $machine" >&2
  exit 2
fi
highway=$work/highway
rm -rf "$work/dist" "$work/wheelhouse"

"$source/scripts/highway_source.sh" "$highway"
# In as deep a folder as the presets' trees, for ccache.
"${as[@]}" "$python" -m pip wheel -q "$source" --no-build-isolation --no-deps -w "$work/dist" \
  -C build-dir="$work/build" -C cmake.define.TSALLIS_HIGHWAY_SOURCE="$highway" "${settings[@]}"
# torch brings its own libraries and its OpenMP runtime, of which a process must have one. auditwheel offers the platforms
# of the machine that it runs on.
audit="import platform; platform.machine = lambda: '$machine'; from auditwheel.main import main; raise SystemExit(main())"
PATH=$source/.venv/bin:$PATH "$python" -c "$audit" repair --plat manylinux_2_28_"$machine" --only-plat \
  --exclude libgomp.so.1 --exclude libtorch_cpu.so --exclude libc10.so \
  -w "$work/wheelhouse" "$work"/dist/tsallis-*.whl
ls -l "$work"/wheelhouse
