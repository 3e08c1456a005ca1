#!/bin/sh
# docs/fine_tuning.md as a new user follows it: its blocks marked "sh run", one after the other in an empty folder; then the phrases
# that were held out are asked for, of which the model must know four in five that it knew none of before.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
case $build in /*) ;; *) build=$PWD/$build ;; esac
export TESSERA="$PWD" PATH="$build/bin:$PATH"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk '/^```sh run$/ {inside = 1; next} /^```$/ {inside = 0} inside' docs/fine_tuning.md >"$folder/blocks.sh"
[ "$(grep -c '^tessera' "$folder/blocks.sh")" -ge 6 ] || { echo "fine_tuning.sh: docs/fine_tuning.md has lost its blocks" >&2; exit 1; }
cd "$folder"
sh -eux blocks.sh >log 2>&1 || { cat log >&2; exit 1; }
grep -v "^step " log | tail -n 60

# right MODEL: how many of the held-out phrases it translates.
questions() { sed 's/.*"user", "content": "\([^"]*\)".*/\1/' held_out.jsonl; }
answers() { sed 's/.*"assistant", "content": "\([^"]*\)".*/\1/' held_out.jsonl; }
right() {
  questions | sed 's,$,\n/reset,' | tessera chat "$1" --temperature 0 --max-new-tokens 12 2>/dev/null >said
  answers | paste -d '|' - said | awk -F '|' '$1 == $2 {n++} END {print n + 0}'
}
all=$(wc -l <held_out.jsonl) before=$(right base) after=$(right runs/chat) exported=$(right tiku)
echo "fine_tuning.sh: of $all phrases held out, right before: $before, after: $after, exported: $exported"
if [ "$before" -ne 0 ] || [ "$((after * 5))" -lt "$((all * 4))" ] || [ "$exported" -ne "$after" ]; then
  echo "fine_tuning.sh: expected none before, four in five after, and as many exported" >&2
  exit 1
fi
for model in runs/lora runs/qlora merged; do
  after=$(right "$model")
  echo "fine_tuning.sh: right of $model: $after"
  if [ "$((after * 5))" -lt "$((all * 4))" ]; then
    echo "fine_tuning.sh: expected four in five of $model" >&2
    exit 1
  fi
done
echo "fine_tuning.sh: passed"
