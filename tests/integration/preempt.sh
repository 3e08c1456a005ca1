#!/bin/sh
# A scheduler's signal in the middle of a run: it must save, end with exit code 75, and go on where it was, to the same losses
# as a run that nobody interrupted.
# Usage: preempt.sh   (BUILD=build/release)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
folder=$(mktemp -d)
run=
trap '[ -z "$run" ] || kill -9 "$run" 2>/dev/null || true; rm -rf "$folder"' EXIT

fail() {
  echo "preempt.sh: FAILED: $*"
  tail -n 20 "$folder"/*.log
  exit 1
}

# train NAME [options]: into a run folder of that name, with a log beside it.
train() {
  name=$1
  shift
  "$build/bin/tessera" train tests/integration/tiny_job.yaml --train.steps=300 "--train.run_dir=$folder/$name" "$@" \
    >>"$folder/$name.log" 2>&1
}
losses() { sed -n -E 's/.*"step":([0-9]+),"loss":([^,]*),.*/\1 \2/p' "$folder/$1/metrics.jsonl"; }

# Before its first step there is nothing to save, but the code is the same. Ranks catch the signal (bit 9 of SigCgt) well before.
train early --parallel.num_ranks=2 &
run=$!
waited=0
caught=0
until [ "$caught" = 2 ]; do
  [ "$waited" -lt 6000 ] || fail "no two ranks within 60 s"
  sleep 0.01
  waited=$((waited + 1))
  caught=0
  for child in $(cat "/proc/$run/task/$run/children"); do
    for rank in $(cat "/proc/$child/task/$child/children"); do
      mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$rank/status" 2>/dev/null || true)
      [ "$((0x${mask:-0} & 0x200))" = 0 ] || caught=$((caught + 1))
    done
  done
done
for child in $(cat "/proc/$run/task/$run/children"); do kill -USR1 "$child"; done
code=0
wait "$run" || code=$?
run=
[ "$code" = 75 ] || fail "before the first step: expected exit code 75, got $code"
[ -s "$folder/early/metrics.jsonl" ] || echo "preempt.sh: before the first step: exit code 75"

train whole || fail "the run that nobody interrupted"
for signal in USR1 TERM; do
  train "$signal" &
  run=$!
  waited=0
  until [ -s "$folder/$signal/metrics.jsonl" ]; do
    [ "$waited" -lt 600 ] || fail "no step within 60 s"
    sleep 0.1
    waited=$((waited + 1))
  done
  # `train` is a subshell: the signal is for its child, twice, as `timeout` sends it (to a process, then to its group).
  for child in $(cat "/proc/$run/task/$run/children"); do
    kill "-$signal" "$child"
    sleep 0.05
    kill "-$signal" "$child" 2>/dev/null || true
  done
  code=0
  wait "$run" || code=$?
  run=
  [ "$code" = 75 ] || fail "$signal: expected exit code 75, got $code"
  stopped=$(losses "$signal" | tail -n 1)
  train "$signal" --resume auto || fail "$signal: could not go on"
  [ "$(losses "$signal")" = "$(losses whole)" ] || fail "$signal: other losses than those of the whole run"
  echo "preempt.sh: $signal: saved at step ${stopped%% *}, exit code 75, then went on to the same 300 losses"
done
