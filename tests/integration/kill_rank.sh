#!/bin/sh
# Kills one of two ranks in the middle of a run: the run must end within 5 s with a non-zero exit code and a message
# that names rank, signal and step, and leave no process behind. So for ranks that share the data, and for the stages of
# a pipeline, of which the message names stage, micro-batch and action, too.
# Usage: kill_rank.sh   (BUILD=build/release)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
folder=$(mktemp -d)
launcher=

. tests/integration/processes.sh

clean_up() {
  for process in $launcher ${family:-}; do
    if alive "$process"; then kill -9 "$process" 2>/dev/null || true; fi
  done
  rm -rf "$folder"
}
trap clean_up EXIT

fail() {
  echo "kill_rank.sh: FAILED: $*"
  echo "--- output of the run, last lines:"
  tail -n 20 "$output"
  exit 1
}

# kill_one NAME EXPECTED [OPTION ..]: EXPECTED is a pattern that the line about the killed rank holds, unless the kill
# came between two steps, which is rare: once more then, up to three times.
kill_one() {
  name=$1
  expected=$2
  shift 2
  for attempt in 1 2 3; do
    kill_once "$name$attempt" "$@"
    if echo "$cause" | grep -Eq "$expected"; then return; fi
  done
  fail "no $expected in: $cause"
}

kill_once() {
  run_dir=$folder/$1
  output=$folder/$1.output
  shift
  "$build/bin/tessera" train tests/integration/tiny_job.yaml --train.steps=1000000 \
    "--train.run_dir=$run_dir" "$@" >"$output" 2>&1 &
  launcher=$!

  waited=0
  until [ -s "$run_dir/metrics.jsonl" ]; do
    alive "$launcher" || fail "the run ended before its first step"
    [ "$waited" -lt 600 ] || fail "no step within 60 s"
    sleep 0.1
    waited=$((waited + 1))
  done

  family=$(descendants "$launcher")
  victim=
  workers=0
  for process in $family; do
    if [ "$(name_of "$process")" = tessera-worker ]; then
      victim=$process
      workers=$((workers + 1))
    fi
  done
  [ "$workers" -eq 2 ] || fail "expected 2 processes tessera-worker below $launcher, found $workers"
  rank=$(rank_of "$victim")
  [ -n "$rank" ] || fail "RANK is not in the environment of worker $victim"

  kill -9 "$victim"
  waited=0
  while alive "$launcher"; do
    [ "$waited" -lt 50 ] || fail "the run still lives 5 s after rank $rank was killed"
    sleep 0.1
    waited=$((waited + 1))
  done
  code=0
  wait "$launcher" || code=$?

  [ "$code" -ne 0 ] || fail "the run ended with exit code 0"
  cause=$(grep -Ei "rank[^0-9]{0,3}$rank([^0-9].*)?(SIGKILL|signal 9)" "$output" | head -n 1)
  [ -n "$cause" ] || fail "no line names rank $rank and SIGKILL"
  echo "$cause" | grep -Eqi "step[^0-9a-z]{0,10}[0-9]" || fail "no step in: $cause"
  for process in $family; do
    while alive "$process"; do
      [ "$waited" -lt 50 ] || fail "process $process ($(name_of "$process")) is left behind"
      sleep 0.1
      waited=$((waited + 1))
    done
  done
  echo "kill_rank.sh: rank $rank killed; the run ended after about $((waited / 10)).$((waited % 10)) s with exit code $code:"
  echo "$cause"
}

kill_one data "at step"
kill_one experts "at step" --model.path=tests/fixtures/experts_micro --parallel.ep=2
kill_one pipeline "at step [0-9]+, stage [01], (forward|backward) of micro-batch [0-3] \\([01][FB][0-3]\\)" --parallel.pp=2
