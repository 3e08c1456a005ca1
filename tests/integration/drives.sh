#!/bin/sh
# A model whose optimizer states (12 bytes for each of 318 million parameters, 3.8 GB) are three times what one process may hold
# trains with states and parameters on drives, is killed, goes on, and ends with the losses of a run that nobody disturbed. Without
# drives it does not start under that limit.
# Usage: drives.sh   (BUILD=build/release; TMPDIR: 16 GB on a drive)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
folder=$(cd "$(mktemp -d)" && pwd -P)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "drives.sh: FAILED: $*"
  tail -n 20 "$folder/output"
  exit 1
}
case $(stat -f -c %T "$folder") in
  tmpfs | ramfs) echo "drives.sh: skipped: $folder lies in memory; set TMPDIR to a folder on a drive"; exit 77 ;;
esac
[ "$(df -k --output=avail "$folder" | tail -1)" -gt 16000000 ] || { echo "drives.sh: skipped: 16 GB are not free in $folder"; exit 77; }

cat >"$folder/job.yaml" <<END
model: {preset: small, dim: 1024, num_heads: 16, num_kv_heads: 16, ffn_dim: 2752, num_layers: 20}
data: {train: [docs], format: text, seq_len: 32, validation_fraction: 0}
precision: {compute: bf16}
parallel: {placement: full_shard, num_ranks: 1, threads_per_rank: 1}
optimizer: {in_backward: true, max_grad_norm: 0}
memory: {checkpointing: full}
train: {steps: 3, global_batch: 1, sample_tokens: 0}
checkpoint: {every: 2, at_end: false}
logging: {tensorboard: false, svg: false, progress: plain}
END
states=3816   # MB
# shellcheck disable=SC3045  # dash has it
ulimit -d $((states * 1000 / 3))   # kB of private memory, for each process from here on

# train NAME [OPTION..]
train() {
  name=$1
  shift
  "$build/bin/tessera" train "$folder/job.yaml" "--train.run_dir=$folder/$name" "$@" >"$folder/output" 2>&1
}
on_drives="--parallel.offload_optimizer=nvme --parallel.offload_params=nvme --offload.host_memory=400"
losses() { grep -o '"loss": *[^,}]*' "$folder/$1/metrics.jsonl"; }

if train without; then fail "it was expected to run out of memory without drives"; fi
grep -q 'out of host memory' "$folder/output" || fail "it ended for another reason without drives"

# shellcheck disable=SC2086  # options
train whole $on_drives || fail "it did not train"
grep -E 'offload:|peak memory|loss' "$folder/output"
rm -rf "$folder/whole/checkpoints"

: >"$folder/output"
# shellcheck disable=SC2086
"$build/bin/tessera" train "$folder/job.yaml" "--train.run_dir=$folder/killed" $on_drives >"$folder/output" 2>&1 &
launcher=$!
waited=0
until grep -q 'saved step 2' "$folder/output"; do
  kill -0 $launcher 2>/dev/null || fail "it ended before it was killed"
  sleep 0.2
  waited=$((waited + 1))
  [ $waited -lt 4500 ] || fail "no save in 15 minutes"
done
rank=$(ps -o pid=,comm= --ppid $launcher | awk '$2 == "tessera-worker" {print $1}')
[ -n "$rank" ] || fail "no process tessera-worker below $launcher"
kill -9 "$rank"   # in its third step
if wait $launcher; then fail "it was to be killed in step 3, and ended well"; fi
[ -z "$(find "$folder/killed/offload" -type f)" ] || fail "scratch files are left behind"
# shellcheck disable=SC2086
train killed $on_drives --checkpoint.resume=auto || fail "it did not go on"
losses whole | sort >"$folder/expected"
losses killed | sort -u >"$folder/found"
cmp -s "$folder/expected" "$folder/found" || { diff "$folder/expected" "$folder/found" || true; fail "other losses"; }
echo "drives.sh: states of $states MB trained in $((states / 3)) MB, killed and resumed with the same losses"
