#!/usr/bin/env bash
# Highway's sources from this system's own archive, for a library that needs none where it runs.
#   scripts/highway_source.sh FOLDER   does nothing if it is there
set -euo pipefail
folder=$1
[[ ! -d $folder ]] || exit 0
apt=$folder.apt
rm -rf "$apt"
mkdir -p "$apt/lists" "$apt/parts" "$apt/download"
# Lists of our own, so that nothing of the system changes.
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
  [[ -f $list ]] || continue
  sed -e 's/^deb /deb-src /' -e 's/^Types: deb$/Types: deb-src/' "$list" >"$apt/parts/$(basename "$list")"
done
[[ -f $apt/parts/sources.list ]] && mv "$apt/parts/sources.list" "$apt/parts/main.list"
options=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/parts" -o Dir::State::lists="$apt/lists"
  -o APT::Sandbox::User=root)
apt-get "${options[@]}" update -qq || echo "highway_source: some package lists could not be read" >&2
(cd "$apt/download" && apt-get "${options[@]}" source -qq --download-only highway)
dpkg-source --no-check -x "$apt"/download/highway_*.dsc "$folder" >/dev/null
rm -rf "$apt"
