#!/usr/bin/env bash
# compile_cuda.sh LOG COMMAND...: runs nvcc and keeps what ptxas says in LOG. Its words are shown only if it fails.
set -uo pipefail
log=$1
shift
if "$@" >"$log" 2>&1; then exit 0; fi
cat "$log" >&2
rm -f "$log"
exit 1
