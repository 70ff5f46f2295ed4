#!/usr/bin/env bash
# Installs a build tree into a scratch prefix and builds cmake/consumer against it.
set -euo pipefail
tree=$1
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scratch=$tree/install-check
rm -rf "$scratch"
cmake --install "$tree" --prefix "$scratch/prefix" >/dev/null
cmake -S "$source/cmake/consumer" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/build"
"$scratch/build/consumer"
