#!/usr/bin/env bash
# Prepares a machine for building: Debian packages and .venv. Every make target that builds calls it, so it
# looks before it acts: with everything in place it takes about 0.2 s and touches no network.
#   scripts/setup.sh         what building and testing need
#   scripts/setup.sh lint    clang-tidy as well
#   scripts/setup.sh clang   the compiler, for ThreadSanitizer and the fuzzers
#   scripts/setup.sh browser Chromium, for the tests of pages in it
#   scripts/setup.sh arm     a compiler for ARM's 64-bit processors and an emulator of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(build-essential cmake ninja-build ccache git libhwy-dev libgtest-dev libgmock-dev
  libbenchmark-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libfmt-dev)
if [[ ${1:-} == lint ]]; then packages+=(clang-tidy); fi
if [[ ${1:-} == browser ]]; then packages+=(chromium); fi
if [[ ${1:-} == arm ]]; then packages+=(g++-aarch64-linux-gnu qemu-user); fi
if [[ ${1:-} == clang ]]; then
  packages+=(clang libomp-dev)
  # The sanitizers' runtimes are a package of their own, named after clang's version, where there is one.
  runtime=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p')
  if [[ -n $runtime && -n $(apt-cache policy "$runtime") ]]; then packages+=("$runtime"); fi
fi
requirements=scripts/requirements.txt

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Python interpreters that may serve, best first: the torch wheel need not exist for the newest.
interpreters() {
  local name home seen=:
  for name in python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
    command -v "$name" >/dev/null || continue
    home=$("$name" -c 'import sys; print(sys.base_prefix, sys.version) if sys.version_info >= (3, 11) else None' \
      2>/dev/null) || continue
    [[ -n $home && $seen != *":$home:"* ]] || continue
    seen+=$home:
    echo "$name"
  done
}

# ---- Debian packages ----
missing=()
if command -v dpkg-query >/dev/null; then
  present=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    grep -qx "installed $package" <<<"$present" || missing+=("$package")
  done
  if [[ ! -x .venv/bin/python ]]; then
    read -r first < <(interpreters) || first=
    if [[ -z $first ]] || ! "$first" -c 'import ensurepip, venv' 2>/dev/null; then
      missing+=(python3 python3-venv)
    fi
  fi
else
  say "no dpkg here: not checking for the equivalents of ${packages[*]}"
fi
if ((${#missing[@]})); then
  if ((EUID != 0)); then
    say "Debian packages are missing; please run:"
    echo "sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # A stale index is no reason to stop: the packages may be in a local archive.
  apt-get update -qq >&2 || say "the package index could not be refreshed"
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
    fail "missing Debian packages that could not be installed (no network?): ${missing[*]}"
fi

# ---- Python packages ----
# Prints the pins that .venv does not satisfy; a local version such as 2.13.0+cpu satisfies 2.13.0.
unsatisfied() {
  "$1/bin/python" - "$requirements" <<'PY'
import importlib.metadata, sys

for line in open(sys.argv[1], encoding="utf-8"):
    pin = line.split("#")[0].strip()
    if not pin:
        continue
    name, version = pin.split("==")
    try:
        found = importlib.metadata.version(name).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        found = None
    if found != version:
        print(pin)
PY
}

# `import tsallis` of .venv's Python finds the sources here, whose operators `make` builds.
find_sources() {
  local file
  file=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tsallis-sources.pth
  if [[ ! -f $file || $(<"$file") != "$PWD/python" ]]; then echo "$PWD/python" >"$file"; fi
}

wanted=$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$requirements" | tr '\n' ' ')
if [[ -x .venv/bin/python ]]; then
  wanted=$(unsatisfied .venv | tr '\n' ' ')
  if [[ -z ${wanted// /} ]]; then
    find_sources
    exit 0
  fi
fi

say "installing into .venv: $wanted"
if [[ -x .venv/bin/python ]] && .venv/bin/python -m pip --version >/dev/null 2>&1; then
  .venv/bin/python -m pip install -q --no-compile --retries 2 --disable-pip-version-check -r "$requirements" >&2 ||
    fail "missing Python packages that could not be installed (no network?): $wanted"
  find_sources
  exit 0
fi
[[ -L .venv ]] && fail ".venv is a link to a broken environment; repair or remove it"
# An environment that is not there, or that an interruption left half made: start afresh.
for python in $(interpreters); do
  if "$python" -m venv --clear .venv >&2 &&
    .venv/bin/python -m pip install -q --no-compile --retries 2 --disable-pip-version-check -r "$requirements" >&2; then
    find_sources
    say "ready: $(.venv/bin/python --version) in .venv"
    exit 0
  fi
  say "$("$python" --version) did not work out"
  rm -rf .venv
done
fail "missing Python packages that could not be installed (no network, or no torch for this Python?): $wanted"
