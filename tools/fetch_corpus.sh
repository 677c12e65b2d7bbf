#!/usr/bin/env bash
# Fetches the texts that the pocket model is trained on and writes them as plain text, one file a source.
# Usage: tools/fetch_corpus.sh OUT
#
# models/pocket/corpus.tsv names the Debian packages, their versions and their SHA-256 sums. Nothing is installed and
# root is not needed. In OUT: SOURCE.train.jsonl and SOURCE.heldout.jsonl (one document a line), manifest.json with
# versions, licences and sizes, the packages' copyright files in licences/, and the packages in packages/, which a
# second run takes from there. docs/training.md, "Data", says more.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
list="$root/models/pocket/corpus.tsv"
fail() {
  echo "fetch_corpus: $*" >&2
  exit 1
}

(($# == 1)) || { echo "Usage: tools/fetch_corpus.sh OUT" >&2; exit 2; }
for command in apt-get apt-cache dpkg-deb python3 sha256sum; do
  command -v "$command" >/dev/null || fail "$command is not installed; the packages are Debian's and this tool needs it."
done
mkdir -p "$1/packages"
out="$(cd "$1" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

fetch() {  # PACKAGE VERSION TARGET
  local log="$work/$1.log"
  mkdir "$work/$1"
  if ! (cd "$work/$1" && apt-get -q download "$1=$2") >"$log" 2>&1; then
    local there
    there="$(apt-cache madison "$1" | awk '{ print $3 }' | sort -u | paste -sd ' ')"
    tail -n 3 "$log" >&2
    fail "$1 $2 is not to be had. There is: ${there:-nothing}. Run apt-get update; if the version has gone from the" \
      "mirror, put another one and its sum in models/pocket/corpus.tsv."
  fi
  mv "$work/$1"/*.deb "$3"
}

while IFS=$'\t' read -r source package version sha256 _; do
  [[ -z "$source" || "$source" == \#* ]] && continue
  target="$out/packages/${package}_${version//:/%3a}.deb"
  [[ -e "$target" ]] || fetch "$package" "$version" "$target"
  found="$(sha256sum "$target")"
  found="${found%% *}"
  if [[ "$found" != "$sha256" ]]; then
    rm "$target"
    fail "$package $version has the sum $found, not the one in models/pocket/corpus.tsv. Look at what changed before" \
      "putting this one there."
  fi
  echo "fetch_corpus: $package $version" >&2
  mkdir "$work/$package.files"
  dpkg-deb -x "$target" "$work/$package.files"
done <"$list"

python3 "$root/tools/fetch_corpus.py" "$list" "$work" "$out"
