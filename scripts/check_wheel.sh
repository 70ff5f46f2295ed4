#!/usr/bin/env bash
# Installs the wheel that scripts/build_wheel.sh made into fresh environments and uses it there: with the torch of
# .venv, or with the versions that are named, which pip downloads. Says how long installing takes.
#   scripts/check_wheel.sh [VERSION...]
#   scripts/check_wheel.sh aarch64   the wheel for ARM, under emulation, with a torch of PyPI's for it
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$source/.venv/bin/python
work=$source/build-wheel
if [[ ${1:-} == aarch64 ]]; then work=$source/build-arm; fi
wheel=$(ls "$work"/wheelhouse/tsallis-*.whl)
tests=(maps losses gradients attention attention_operators attention_settings operators transforms cache paged nn
  multihead sdpa patterns extremes temperature_fit compat_adasplash transformers_cache vllm_contract)

copy_tests() {
  mkdir -p "$work/elsewhere"
  rm -rf "$work/elsewhere/tests"
  cp -r "$source/python/tests" "$work/elsewhere/tests"
}

check_aarch64() {
  local root=$work/root packages=$work/installed
  rm -rf "$packages"
  "$python" -m pip install -q --no-deps --no-compile --target "$packages" --only-binary=:all: \
    --platform manylinux_2_28_aarch64 "$wheel"
  copy_tests
  cd "$work/elsewhere"
  # Left out are graphs that torch compiles and processes that tests start: those are not emulated.
  local emulated="not compile and not process and not loader and not library"
  PYTHONPATH=$packages:$work/site OMP_NUM_THREADS=2 PYTHONDONTWRITEBYTECODE= \
    PYTHONPYCACHEPREFIX=$work/bytecode qemu-aarch64 -cpu max -L "$root" "$root/usr/bin/python3.11" \
    -m pytest -q -p no:cacheprovider -c /dev/null --rootdir . -W ignore -k "$emulated" \
    tests/test_{maps,losses,gradients,attention,cache,paged,operators,transforms}.py 2>&1 | tail -25
}

check() { # FOLDER: an environment with a torch
  local environment=$1 start
  start=$SECONDS
  "$environment/bin/python" -m pip install -q --no-deps --force-reinstall "$wheel"
  echo "installed in $((SECONDS - start)) s beside torch $("$environment/bin/python" -c 'import torch; print(torch.__version__)')"
  copy_tests
  (
    cd "$work/elsewhere"
    env -u PYTHONPATH -u TSALLIS_LIBRARY "$environment/bin/python" - <<'PY'
import sys, tsallis

assert tsallis.library_path.is_relative_to(sys.prefix), tsallis.library_path
runtimes = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
assert len(runtimes) == 1, runtimes
PY
    env -u PYTHONPATH -u TSALLIS_LIBRARY "$environment/bin/python" -m pytest -q -p no:cacheprovider -n 2 -c /dev/null \
      --rootdir . -W ignore "${tests[@]/#/tests/test_}" 2>&1 | tail -25
  )
}

if [[ ${1:-} == aarch64 ]]; then
  check_aarch64
  echo "the wheel works under emulation: $(basename "$wheel")"
  exit
fi
tests=("${tests[@]/%/.py}")
for version in "${@:-}"; do
  environment=$work/env${version:+-$version}
  if [[ ! -x $environment/bin/python ]]; then
    "$python" -m venv "$environment"
    if [[ -n $version ]]; then
      "$environment/bin/python" -m pip install -q "torch==$version" numpy pytest pytest-xdist hypothesis transformers entmax
    else
      # The torch of .venv without the rest of the world: pip would download it.
      "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
        "$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
    fi
  fi
  check "$environment"
done
echo "the wheel works: $(basename "$wheel")"
