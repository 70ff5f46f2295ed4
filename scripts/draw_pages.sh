#!/usr/bin/env bash
# Draws the pages of the committed studies again, from their runs: scripts/draw_pages.sh FOLDER
set -euo pipefail
out=$1
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for runs in results/runs/*/*/; do
  scale=$(basename "$runs")
  study=$(basename "$(dirname "$runs")")
  # max-retrieval has several scales, and its folder of results is named after all but the papers'.
  name=$study
  case $scale in small | paper) ;; *) name=$study-$scale ;; esac
  ./tsallis reproduce "$study" --scale "$scale" --finished --quiet --runs results/runs --out "$out/$name" >/dev/null
  echo "$out/$name/report.html"
done
