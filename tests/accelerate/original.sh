# usage: original.sh COMPARE EXPECTED RANKS SCRIPT: runs the script with Python's Accelerate and compares what it writes to EXPECTED.
# Exits with 77 where Accelerate is not there; PYTHON names another interpreter than python3.
set -e
compare=$1 expected=$2 ranks=$3 script=$4
python=${PYTHON:-python3}
if ! "$python" -c 'import accelerate' 2>/dev/null; then
  echo "skipped: $python has no accelerate"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ACCELERATE_USE_CPU=true
if [ "$ranks" = 1 ]; then
  "$python" "$script" "$folder/found"
else
  "$python" -m torch.distributed.run --standalone --nproc_per_node "$ranks" "$script" "$folder/found"
fi
"$compare" "$expected" "$folder/found"
