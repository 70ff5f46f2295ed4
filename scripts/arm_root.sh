#!/usr/bin/env bash
# Prepares for ARM's 64-bit processors on a machine of another kind: a compiler and an emulator from Debian, and in
# build-arm/root Debian's packages for arm64, unpacked. The system's own list of architectures stays as it is.
#   scripts/arm_root.sh         for the kernel library
#   scripts/arm_root.sh torch   for the operators as well: PyPI's wheels of torch and what it and the tests import
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$PWD/build-arm
root=$work/root
packages=(libgtest-dev libgmock-dev libgomp1 libstdc++6 python3-minimal libpython3-stdlib)

say() { printf 'arm_root: %s\n' "$*" >&2; }
scripts/setup.sh arm

unpack_debian() {
  say "unpacking Debian's packages for arm64: $wanted"
  local apt=$work/apt list options package
  rm -rf "$root" "$apt"
  mkdir -p "$root" "$apt"/{lists,archives/partial,parts}
  : >"$apt/status"
  for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    # Archives that are for other architectures alone have nothing for this one.
    [[ -f $list ]] && ! grep -qE '^Architectures:|\[[^]]*arch=' "$list" && cp "$list" "$apt/parts/"
  done
  [[ -f $apt/parts/sources.list ]] && mv "$apt/parts/sources.list" "$apt/parts/main.list"
  # A status file without packages, so that all that the wanted ones need is fetched.
  options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::Etc::sourcelist=/dev/null
    -o Dir::Etc::sourceparts="$apt/parts" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status"
    -o Dir::Cache::archives="$apt/archives" -o Dir::Cache::pkgcache="" -o Dir::Cache::srcpkgcache=""
    -o APT::Sandbox::User=root -o Debug::NoLocking=1)
  apt-get "${options[@]}" update -qq >&2 || say "some package lists could not be read"
  apt-get "${options[@]}" install -y -qq --no-install-recommends --download-only "${packages[@]}" >&2
  for package in "$apt"/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
  rm -rf "$apt"
  echo "$wanted" >"$root/packages"
}

# In build-arm/site a Python's packages, in build-arm/torch what CMake takes for a torch: .venv's headers, which are the
# same on every machine, and libraries for ARM. Newer versions of torch for ARM on PyPI need CUDA's libraries.
prepare_torch() {
  local wanted="torch==2.10.0 numpy entmax filelock fsspec hypothesis iniconfig jinja2 markupsafe mpmath networkx packaging
    pluggy pygments pytest setuptools sortedcontainers sympy typing-extensions"
  [[ -f $work/site/packages && $(<"$work/site/packages") == "$wanted" ]] && return
  say "fetching Python's packages for aarch64"
  rm -rf "$work/site" "$work/torch"
  local platforms=() platform headers
  for platform in manylinux_2_28 manylinux_2_27 manylinux2014 manylinux_2_17; do
    platforms+=(--platform "${platform}_aarch64")
  done
  # Dependencies are named above: pip would look for those of this machine.
  # shellcheck disable=SC2086
  .venv/bin/python -m pip install -q --no-deps --no-compile --target "$work/site" "${platforms[@]}" \
    --python-version 3.11 --only-binary=:all: $wanted
  headers=$(.venv/bin/python -c "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('torch').origin))")
  mkdir -p "$work/torch"
  ln -s "$headers/include" "$headers/share" "$work/torch/"
  ln -s "$work/site/torch/lib" "$work/torch/lib"
  echo "$wanted" >"$work/site/packages"
}

wanted="${packages[*]}"
if [[ ! -f $root/packages || $(<"$root/packages") != "$wanted" ]]; then unpack_debian; fi
scripts/highway_source.sh "$work/highway"
if [[ ${1:-} == torch ]]; then prepare_torch; fi
