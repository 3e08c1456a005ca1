#!/bin/sh
# Ranks started by the real torchrun: torchrun.sh [PROGRAM ARGS..]   (PYTHON=python3 of the PyTorch to use)
# Without PROGRAM: tessera_rank_probe from BUILD (build/release), whose answer is checked, then a tiny job of tessera train.
# Exit code 77: no torchrun.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
if ! "$python" -c 'import torch.distributed.run' 2>/dev/null; then
  echo "torchrun.sh: skipped: $python has no PyTorch; set PYTHON"
  exit 77
fi
run() {
  "$python" -m torch.distributed.run --nnodes=1 --nproc_per_node=2 --no-python \
    --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:0 --local_addr=127.0.0.1 "$@"
}
if [ $# -gt 0 ]; then
  run "$@"
  exit
fi
probe=${BUILD:-build/release}/bin/tessera_rank_probe
answer=$(run "$probe" | sed 's/master .*:[0-9]*/master/' | sort)
expected='rank 0 of 2, local 0 of 2, node 0, master, by torchrun
rank 1 of 2, local 1 of 2, node 0, master, by torchrun'
if [ "$answer" != "$expected" ]; then
  printf 'torchrun.sh: expected\n%s\ngot\n%s\n' "$expected" "$answer" >&2
  exit 1
fi
. tests/integration/tiny_job.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
train_tiny_job "$folder"
echo "torchrun.sh: passed"
