#!/usr/bin/env bash
# release_test.sh: scripts/release refuses a tree whose files name different versions, and takes one whose files agree.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
git -C "$root" rev-parse --git-dir >/dev/null 2>&1 || { printf 'release_test: skipped: not a clone\n'; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --depth 1 "file://$root" "$work/tree"
cd "$work/tree"
cp "$root/scripts/release" "$root/scripts/lib.sh" scripts
git config user.name test
git config user.email test@localhost

# expect STATUS TEXT: of `scripts/release --check 7.8.9`, after everything was committed.
expect() {
  local status=0 said
  git add --all
  git commit --quiet --allow-empty --message step
  said=$(scripts/release --check 7.8.9 2>&1) || status=$?
  [[ $status == "$1" && $said == *"$2"* ]] ||
    { printf 'release_test: status %s, "%s"; expected %s, "%s"\n' "$status" "$said" "$1" "$2" >&2; exit 1; }
}

expect 1 'project(stfs VERSION) says'
sed -i 's/^project(stfs VERSION [0-9.]*/project(stfs VERSION 7.8.9/' CMakeLists.txt
printf '## Unreleased\n\n- A change.\n\n## 0.1.0 - 2020-01-01\n' >CHANGELOG.md
expect 1 'lines under "Unreleased"'
printf '## Unreleased\n\n## 0.1.0 - 2020-01-01\n' >CHANGELOG.md
expect 1 'the newest heading says 0.1.0, not 7.8.9'
printf '## Unreleased\n\n## 7.8.9 - 2020-01-02\n\n- A change.\n\n## 0.1.0 - 2020-01-01\n' >CHANGELOG.md
expect 1 'tests/golden/7.8.9.tsv: missing'
touch tests/golden/7.8.9.tsv
expect 0 'everything here names 7.8.9'
touch left_over
if said=$(scripts/release --check 7.8.9 2>&1); then exit 1; fi
[[ $said == *'not clean'* ]] || { printf 'release_test: "%s" of a tree that is not clean\n' "$said" >&2; exit 1; }
for words in '' '--check' '--check seven' '7.8.9 7.8.9'; do
  # shellcheck disable=SC2086  # words
  status=0; scripts/release $words >/dev/null 2>&1 || status=$?
  [[ $status == 2 ]] || { printf 'release_test: "%s": status %s\n' "$words" "$status" >&2; exit 1; }
done
