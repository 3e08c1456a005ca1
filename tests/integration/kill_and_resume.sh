#!/bin/sh
# Kills a small training run after calls that save checkpoints, again and again, with retention at work. Each time it
# goes on (checkpoint.resume=auto); in the end its losses are those of a run that nobody disturbed.
# Usage: kill_and_resume.sh   (BUILD=build/release)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
shim=$PWD/$build/tests/faults/libtessera_fault_shim.so
case $build in /*) shim=$build/tests/faults/libtessera_fault_shim.so ;; esac
[ -e "$shim" ] || { echo "kill_and_resume.sh: skipped: no $shim"; exit 77; }
folder=$(cd "$(mktemp -d)" && pwd -P)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "kill_and_resume.sh: FAILED: $*"
  tail -n 20 "$folder/output"
  exit 1
}

# train RUN_DIR [OPTION..]
train() {
  run_dir=$1
  shift
  "$build/bin/tessera" train tests/integration/tiny_job.yaml --train.steps=12 "--train.run_dir=$run_dir" \
    --parallel.num_ranks=1 --checkpoint.every=2 --checkpoint.keep_last=2 "$@" >"$folder/output" 2>&1
}

# The losses of all steps; of a step that was done twice the last.
losses() {
  sed -n 's/.*"loss": *\([^,}]*\).*"step": *\([0-9]*\).*/\2 \1/p; s/.*"step": *\([0-9]*\).*"loss": *\([^,}]*\).*/\1 \2/p' \
    "$1/metrics.jsonl" | awk '{loss[$1] = $2} END {for (step in loss) print step, loss[step]}' | sort -n
}

train "$folder/whole" || fail "the undisturbed run"
losses "$folder/whole" >"$folder/expected"
[ "$(wc -l <"$folder/expected")" -eq 12 ] || fail "expected 12 losses"

kills=0
for call in 3 11 19 23 26 29 34 38 47 58; do
  if TESSERA_FAULT_FOLDER=$folder/run/checkpoints TESSERA_FAULT_RANK=0 TESSERA_FAULTS=kill@$call LD_PRELOAD=$shim \
    train "$folder/run" --checkpoint.resume=auto; then break; fi
  kills=$((kills + 1))
done
train "$folder/run" --checkpoint.resume=auto || fail "the run does not go on after $kills kills"
[ "$kills" -ge 8 ] || fail "killed only $kills times"
losses "$folder/run" >"$folder/found"
cmp -s "$folder/expected" "$folder/found" || { diff "$folder/expected" "$folder/found" || true; fail "other losses"; }
leftovers=$(find "$folder/run/checkpoints" -name '*.partial' -o -name '*.deleting')
[ -z "$leftovers" ] || fail "left behind: $leftovers"
echo "kill_and_resume.sh: killed $kills times, resumed each time; 12 losses are those of the undisturbed run"
