#!/bin/sh
# docs/fine_tuning.md as a new user follows it: its blocks (tests/docs/blocks.py), one after the other in an empty folder; then the phrases
# that were held out are asked for, of which the model must know four in five that it knew none of before.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
case $build in /*) ;; *) build=$PWD/$build ;; esac
command -v python3 >/dev/null || { echo "fine_tuning.sh: needs python3"; exit 77; }
export PATH="$build/bin:$PATH"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 tests/docs/blocks.py "$build" --keep "$folder" docs/fine_tuning.md
cd "$folder"

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
