#!/bin/sh
# On a machine with a GPU and PyTorch: tests, the kernels' shares of the memory's speed, training, and the same in PyTorch.
#   bench/gpu/run.sh FOLDER OUT [tests] [kernels] [train] [peers]      # FOLDER: of carry.sh; all parts unless some are named
# Each part leaves its results in OUT and is run again alone; about six minutes on an H200, of which tests take one.
set -eu
usage='usage: bench/gpu/run.sh FOLDER OUT [tests|kernels|train|peers ..]'
folder=$(realpath "${1:?$usage}") out=${2:?$usage}
shift 2
[ $# -gt 0 ] || set -- tests kernels train peers
cd "$(dirname -- "$0")/../.."
mkdir -p "$out"
torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')
export LD_LIBRARY_PATH="$folder/lib:$torch/lib" TESSERA_LIBTORCH="$torch"
failed=0
for part; do
  echo "== $part"
  case $part in
    tests)
      # Instruction sets and the host's threads do not matter here.
      "$folder/bin/tessera_cuda_kernels_test" --gtest_brief=1 \
        '--gtest_filter=-*/avx*:IsaChoice.*:Meta.*:*AnyNumberOfThreads*:*AndNumberOfThreads' || failed=1
      if command -v compute-sanitizer >/dev/null; then
        compute-sanitizer --tool memcheck --error-exitcode 1 "$folder/bin/tessera_cuda_kernels_test" \
          --gtest_brief=1 '--gtest_filter=GpuKernels.*:Fp8Kernel.*' || failed=1
      fi
      python3 bench/gpu/parity.py --bin "$folder/bin" --out "$out" || failed=1 ;;
    kernels) "$folder/bin/tessera_cuda_bench" | tee "$out/kernels.jsonl" ;;
    train) python3 bench/gpu/train.py --bin "$folder/bin" --out "$out" --profile ;;
    peers)
      : >"$out/peers.jsonl"
      for peer in '--model 1b' '--model 8b --checkpointing full --batch 2' '--model 8b --lora --batch 2'; do
        # shellcheck disable=SC2086  # meant to split
        python3 bench/gpu/peers.py $peer | tee -a "$out/peers.jsonl"
      done ;;
    *) echo "$usage" >&2; exit 2 ;;
  esac
done
exit $failed
