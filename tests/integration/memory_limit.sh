#!/bin/sh
# A model whose fp32 states (16 bytes for each of 58 million parameters: 930 MB) exceed what one process may hold trains on
# four ranks, each under the same limit, and not on one.
# Usage: memory_limit.sh   (BUILD=build/release)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { echo "memory_limit: $*" >&2; exit 1; }

cat >"$folder/job.yaml" <<END
model: {preset: small}
data: {train: [docs], format: text, seq_len: 32, validation_fraction: 0}
parallel: {placement: full_shard, threads_per_rank: 1}
memory: {checkpointing: full}
train: {steps: 2, global_batch: 4, micro_batch: 1, run_dir: $folder/run, sample_tokens: 0}
logging: {tensorboard: false, svg: false, progress: plain}
END

ulimit -d 900000   # kB of private memory, for each process from here on
if "$build/bin/tessera" train "$folder/job.yaml" --parallel.num_ranks=1 >"$folder/one" 2>&1; then
  fail "one rank was expected to run out of memory, and trained"
fi
grep -q 'tessera: out of host memory: .*; set precision' "$folder/one" || { cat "$folder/one" >&2; fail "one rank ended for another reason (above)"; }
(
  ulimit -d 400000
  "$build/bin/tessera" train "$folder/job.yaml" --model.preset=tiny --parallel.num_ranks=1 --data.seq_len=512 --train.global_batch=64 \
    --train.micro_batch=64 --memory.checkpointing=none >"$folder/step" 2>&1 && exit 0 || [ $? = 2 ]
) || { cat "$folder/step" >&2; fail "a step that runs out of memory was expected to end with 2 (above)"; }
grep -q 'step 1: out of host memory: .*; set train.micro_batch to 32 (now 64)' "$folder/step" ||
  { cat "$folder/step" >&2; fail "a step was expected to run out of memory (above)"; }
"$build/bin/tessera" train "$folder/job.yaml" --parallel.num_ranks=4 >"$folder/four" 2>&1 ||
  { cat "$folder/four" >&2; fail "four ranks did not train under the limit (above)"; }
grep -E 'loss|peak memory' "$folder/four" | tail -2
