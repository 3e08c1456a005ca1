#!/bin/sh
# A Python script that uses the real Accelerate, under `tessera launch --config_file`: accelerate_script.sh
# (PYTHON=python3 of the Accelerate to use)
# Exit code 77: no Accelerate.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
export PYTHON
if ! "$PYTHON" -c 'import accelerate' 2>/dev/null; then
  echo "accelerate_script.sh: skipped: $PYTHON has no Accelerate; set PYTHON"
  exit 77
fi
tessera=${BUILD:-build/release}/bin/tessera
script=tests/integration/accelerate_script.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HOME="$folder/home" # no default configuration

# check WHAT EXPECTED ARGS..: what rank 0 of `tessera launch ARGS..` prints.
check() {
  what=$1 expected=$2
  shift 2
  answer=$("$tessera" launch --quiet "$@" 2>"$folder/error") || {
    echo "accelerate_script.sh: $what: failed" >&2
    cat "$folder/error" >&2
    exit 1
  }
  if [ "$answer" != "[0]: $expected" ]; then
    printf 'accelerate_script.sh: %s: expected\n[0]: %s\ngot\n%s\n' "$what" "$expected" "$answer" >&2
    exit 1
  fi
  echo "$what: $answer"
}

cat >"$folder/cpu.yaml" <<'END'
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
mixed_precision: 'no'
num_machines: 1
num_processes: 2
use_cpu: true
END
# Accelerate trains with FSDP on GPUs only: on CPUs it takes this for a copy on each rank, and rank 0 must not send it.
cat >"$folder/fsdp.yaml" <<'END'
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: NO_WRAP
  fsdp_cpu_ram_efficient_loading: false
  fsdp_sync_module_states: false
mixed_precision: 'no'
num_machines: 1
num_processes: 2
END

ddp='MULTI_CPU processes=2 device=cpu mixed_precision=no sum=3 step=equal'
check 'a file' "$ddp fsdp=false version=-" --config_file "$folder/cpu.yaml" $script
check 'a module, the command line beats the file' \
  'MULTI_CPU processes=4 device=cpu mixed_precision=bf16 sum=10 step=equal fsdp=false version=-' \
  --config-file "$folder/cpu.yaml" --num-processes 4 --mixed_precision=bf16 -m tests.integration.accelerate_script
check 'FSDP on CPUs' "$ddp fsdp=true version=2" --config_file "$folder/fsdp.yaml" --cpu $script

mkdir -p "$HF_HOME/accelerate"
cp "$folder/cpu.yaml" "$HF_HOME/accelerate/default_config.yaml"
check 'the default file' "$ddp fsdp=false version=-" $script
echo "accelerate_script.sh: passed"
