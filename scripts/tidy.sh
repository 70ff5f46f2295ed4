#!/usr/bin/env bash
# clang-tidy over our sources in a configured tree's compile commands: scripts/tidy.sh TREE [PATTERN]
# Tests stay out: GoogleTest's macros expand to what half of the checks forbid, and each would take as long as
# the source it tests. JOBS=N changes the parallelism.
set -euo pipefail
tree=$1
pattern=${2:-.}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# omp.h is the compiler's: its folder is searched last, so that its intrinsics do not hide clang's own, and
# clang knows no malloc attribute with arguments.
openmp=$(g++ -print-file-name=include)
grep -oE '"file": "[^"]+"' "$tree/compile_commands.json" | cut -d'"' -f4 | grep -F "$PWD/src/" |
  grep -vE '_test\.cc$|/src/.*/testing/' | grep -E "$pattern" | sort -u |
  xargs -r -P "${JOBS:-2}" -n 1 clang-tidy -p "$tree" --quiet --extra-arg=-idirafter"$openmp" \
    --extra-arg='-D__malloc__(...)=__malloc__' \
    2> >(grep -vE '^[0-9]+ warnings? generated' >&2)
