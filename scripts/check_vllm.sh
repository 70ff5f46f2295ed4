#!/usr/bin/env bash
# Installs vLLM for CPUs (scripts/requirements-vllm.txt, by hash) and the wheel of scripts/build_wheel.sh into an
# environment of their own, build-vllm/env, and runs python/tests_vllm there. Arguments go to pytest.
#   scripts/check_vllm.sh [ARGUMENT...]
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$source/build-vllm
environment=$work/env
requirements=$source/scripts/requirements-vllm.txt
wheel=$(ls "$source"/build-wheel/wheelhouse/tsallis-*.whl)
mkdir -p "$work"

# An interpreter of the version that the hashes are of.
find_python() {
  local name
  for name in python3.11 "$source/.venv/bin/python" python3; do
    if "$name" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "check_vllm: expected Python 3.11, for which $requirements has hashes, got none" >&2
  return 1
}

if ! cmp -s "$requirements" "$work/installed.txt"; then
  python=$(find_python)
  rm -rf "$environment" "$work/installed.txt"
  "$python" -m venv "$environment"
  "$environment/bin/python" -m pip install -q --no-deps --require-hashes -r "$requirements"
  cp "$requirements" "$work/installed.txt"
fi
"$environment/bin/python" -m pip install -q --no-deps --force-reinstall "$wheel"

model=$(cd "$source" && PYTHONPATH=python .venv/bin/python - <<'PY'
import sys
from pathlib import Path

from tsallis_convert.models import SMOLLM2, folder_of

out, sys.stdout = sys.stdout, sys.stderr
print(folder_of(SMOLLM2, Path("data/models")).absolute(), file=out)
PY
)
cd "$work"
env -u PYTHONPATH -u TSALLIS_LIBRARY TSALLIS_TEST_MODEL="$model" "$environment/bin/python" -m pytest -q \
  -p no:cacheprovider -c /dev/null --rootdir "$source/python/tests_vllm" "$source/python/tests_vllm" "$@"
echo "vLLM serves with the wheel: $(basename "$wheel")"
