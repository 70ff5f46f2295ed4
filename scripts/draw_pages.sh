#!/usr/bin/env bash
# Draws the pages of the committed studies again, from their runs: scripts/draw_pages.sh FOLDER
# Each by the command that its results.json names, with another folder for what comes out.
set -euo pipefail
out=$1
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for results in results/*/results.json; do
  name=$(basename "$(dirname "$results")")
  read -r -a command < <(sed -n 's/ --out [^ "]*//; s/^ *"command": "\(.*\)",$/\1/p' "$results")
  ./"${command[@]}" --out "$out/$name" >/dev/null
  echo "$out/$name/report.html"
done
