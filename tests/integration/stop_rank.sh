#!/bin/sh
# Stops one rank (SIGSTOP) in the middle of a run, with 2, 3 and 4 ranks, every placement and a pipeline: the run must
# end, within 10 s of the deadline, with exit code 1 and a message that names the stopped rank and its step; every line
# about a rank that did not come must name that rank first; and no process may be left behind, the stopped one least.
# Usage: stop_rank.sh   (BUILD=build/release)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
folder=$(mktemp -d)
launcher=
deadline=3

. tests/integration/processes.sh

clean_up() {
  for process in $launcher ${family:-}; do
    if alive "$process"; then kill -9 "$process" 2>/dev/null || true; fi
  done
  rm -rf "$folder"
}
trap clean_up EXIT

fail() {
  echo "stop_rank.sh: FAILED: $*"
  echo "--- output of the run, last lines:"
  tail -n 20 "$output"
  exit 1
}

# stop_one RANKS VICTIM [OPTION ..]
stop_one() {
  ranks=$1
  victim=$2
  shift 2
  what="rank $victim of $ranks${*:+, $*}"
  run_dir=$folder/run
  output=$folder/output
  logs=$folder/logs
  rm -rf "$run_dir" "$logs"
  # Under `tessera launch`, so that each rank's own words are in a file.
  "$build/bin/tessera" launch --nproc-per-node="$ranks" --log-dir "$logs" "$build/bin/tessera" \
    train tests/integration/tiny_job.yaml --train.steps=1000000 --train.global_batch=12 \
    "--parallel.num_ranks=$ranks" "--parallel.timeout_seconds=$deadline" "--train.run_dir=$run_dir" "$@" \
    >"$output" 2>&1 &
  launcher=$!
  waited=0
  until [ -s "$run_dir/metrics.jsonl" ]; do
    alive "$launcher" || fail "$what: the run ended before its first step"
    [ "$waited" -lt 600 ] || fail "$what: no step within 60 s"
    sleep 0.1
    waited=$((waited + 1))
  done

  family=$(descendants "$launcher")
  process=
  for worker in $family; do
    if [ "$(name_of "$worker")" = tessera-worker ] && [ "$(rank_of "$worker")" = "$victim" ]; then process=$worker; fi
  done
  [ -n "$process" ] || fail "$what: no process tessera-worker with RANK=$victim below $launcher"
  kill -STOP "$process"
  waited=0
  while alive "$launcher"; do
    [ "$waited" -lt $((10 * (deadline + 10))) ] || fail "$what: the run still lives $((deadline + 10)) s later"
    sleep 0.1
    waited=$((waited + 1))
  done
  code=0
  wait "$launcher" || code=$?

  [ "$code" -eq 1 ] || fail "$what: expected exit code 1, got $code"
  cause=$(grep '^tessera launch: rank' "$output" || true)
  echo "$cause" | grep -Eq "^tessera launch: rank $victim \(pid $process\) was stopped .* at step [0-9]" ||
    fail "$what: not named in: $cause"
  for log in "$logs"/rank_*.log; do
    [ "$log" != "$logs/rank_$victim.log" ] || continue
    told=$(grep 'failed after\|did not come' "$log" || true)
    [ -n "$told" ] || continue # a rank that we ended before its own deadline
    echo "$told" | grep -Eq "rank $victim (did not come|was lost)|rank $victim: " || fail "$what: not named first in $told"
  done
  cat "$logs"/rank_*.log | grep -q "rank $victim did not come within" || fail "$what: no rank says that it did not come"
  for process in $family; do
    if alive "$process"; then fail "$what: process $process ($(name_of "$process")) is left behind"; fi
  done
  echo "stop_rank.sh: $what: ended after about $((waited / 10)) s:"
  echo "$cause"
}

stop_one 2 1
stop_one 3 0 --parallel.placement=shard_optimizer
stop_one 3 2 --parallel.placement=full_shard
stop_one 4 3 --parallel.placement=full_shard --parallel.dp_replicate=2 --parallel.dp_shard=2
stop_one 2 0 --parallel.pp=2
stop_one 4 1 --parallel.pp=2 --parallel.placement=shard_gradients
