# shellcheck shell=sh
# Sourced by the scripts of launchers, after they have defined `run PROGRAM ARGS..`, which starts two ranks.

# train_tiny_job FOLDER: trains tiny_job.yaml on the two ranks that `run` starts, and checks what stands in FOLDER/run.
train_tiny_job() {
  if ! run "${BUILD:-build/release}/bin/tessera" train tests/integration/tiny_job.yaml --train.run_dir="$1/run" \
    >"$1/output" 2>&1; then
    echo "tessera train failed:" >&2
    cat "$1/output" >&2
    return 1
  fi
  if ! grep -q '"world_size": 2,' "$1/run/summary.json" || [ "$(grep -c '"loss"' "$1/run/metrics.jsonl")" != 5 ]; then
    echo "tessera train: expected 5 steps on 2 ranks, got" >&2
    cat "$1/output" >&2
    return 1
  fi
}
