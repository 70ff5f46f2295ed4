#!/usr/bin/env bash
# Builds the wheel as a user would and uses it in a fresh environment with the same torch. Takes as long as a
# build; everything it makes lies in build-wheel/.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$source/.venv/bin/python
work=$source/build-wheel
rm -rf "$work/dist" "$work/env" "$work/elsewhere"
mkdir -p "$work/elsewhere"
# The compiler as the presets call it and as deep a folder: ccache then knows what they compiled.
CC=cc CXX=c++ "$python" -m pip wheel -q "$source" --no-build-isolation --no-deps -w "$work/dist" \
  -C build-dir="$work"
"$python" -m venv "$work/env"
# The torch of .venv without the rest of the world: pip would download it.
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
  "$("$work/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
"$work/env/bin/python" -m pip install -q --no-deps "$work"/dist/tsallis-*.whl
cd "$work/elsewhere"
"$work/env/bin/python" - <<'PY'
import sys, tsallis, torch

assert tsallis.library_path.is_relative_to(sys.prefix), tsallis.library_path
q = torch.randn(1, 2, 30, 8, requires_grad=True)
tsallis.attention(q, q, q, causal=True).sum().backward()
assert q.grad.isfinite().all()
PY
"$work/env/bin/python" -m tsallis info
"$work/env/bin/tsallis" list >/dev/null
"$work/env/bin/tsallis" bench attention --quick --cases softmax --quiet --out "$work/elsewhere"
echo "the wheel works: $(ls "$work"/dist)"
