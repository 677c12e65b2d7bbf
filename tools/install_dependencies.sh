#!/usr/bin/env bash
# Installs the Debian packages of docs/dependencies.md that are missing. Quick and silent when none is.
# Usage: tools/install_dependencies.sh [GROUP...]     groups: build (default), check, fuzz, bench
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
list="$root/docs/dependencies.md"
(($# > 0)) || set -- build

# Rows look like: | group | `package` | reason |   or, where any provider of a command will do, `package=command`.
wanted=()
for group in "$@"; do
  mapfile -t rows < <(awk -F'|' -v group="$group" '
    { gsub(/ /, "", $2) } $2 == group { gsub(/[ `]/, "", $3); print $3 }' "$list")
  if ((${#rows[@]} == 0)); then
    echo "install_dependencies: docs/dependencies.md has no rows of group '$group'" >&2
    exit 2
  fi
  wanted+=("${rows[@]}")
done

packages=()
for entry in "${wanted[@]}"; do
  command="${entry#*=}"
  [[ "$entry" == *=* ]] && command -v "$command" >/dev/null && continue
  packages+=("${entry%%=*}")
done
((${#packages[@]} > 0)) || exit 0

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_dependencies: this system has no apt-get, so nothing was installed." >&2
  echo "  Tidepool is built on Debian 12; elsewhere, provide what these packages hold: ${packages[*]}" >&2
  exit 0
fi

# dpkg-query fails when a package is unknown to it, which only says that the package is missing.
installed="$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)"
missing=()
for package in "${packages[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done
((${#missing[@]} > 0)) || exit 0

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "install_dependencies: these packages are missing, and there is neither root nor sudo to install them:" >&2
    echo "  ${missing[*]}" >&2
    echo "Ask an administrator to run: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0)
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
  tail -n 30 "$log" >&2
  echo "install_dependencies: apt-get could not install: ${missing[*]}" >&2
  exit 1
fi
