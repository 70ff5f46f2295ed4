#!/usr/bin/env bash
# Proves that the kernel library stands without torch: nothing in it includes torch, no compile or link command
# of a tree configured with TSALLIS_TORCH=OFF mentions it, no object refers to it, and the tests load without it.
set -euo pipefail
tree=$1
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0
refuse() {
  echo "torch found in $1:" >&2
  head -n 5 >&2
  status=1
}

# The folders of the kernel library are the ones that this tree compiles.
folders=$(grep -oE '"file": "[^"]*/src/[a-z]+/' "$tree/compile_commands.json" | grep -oE 'src/[a-z]+/$' | sort -u)
[[ -n $folders ]] || { echo "no sources in $tree/compile_commands.json" >&2; exit 1; }
# shellcheck disable=SC2086
found=$(grep -rnE '#[[:space:]]*include[[:space:]]*[<"](torch|ATen|c10|caffe2)[/.]' include $folders || true)
[[ -z $found ]] || refuse "the sources" <<<"$found"

found=$(grep -nE 'torch/(include|lib)|libtorch|libc10' "$tree/build.ninja" "$tree/compile_commands.json" || true)
[[ -z $found ]] || refuse "the build commands" <<<"$found"

found=$(nm -C "$tree/lib/libtsallis.a" 2>/dev/null | grep -E '\b(at|c10|torch|caffe2)::' || true)
[[ -z $found ]] || refuse "the library's symbols" <<<"$found"

# Names only: load addresses are hexadecimal and may well contain "c10".
found=$(ldd "$tree/bin/tsallis_tests" | sed 's/(0x[0-9a-f]*)//' | grep -E 'libtorch|libc10' || true)
[[ -z $found ]] || refuse "the tests' libraries" <<<"$found"
exit $status
