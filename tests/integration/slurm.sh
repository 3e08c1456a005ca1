#!/bin/sh
# Ranks started by a real Slurm on this machine (Debian: slurmctld slurmd slurm-client munge): slurm.sh [PROGRAM ARGS..]
# Starts munged, slurmctld and slurmd on loopback with files in a temporary folder, runs 2 tasks, stops them again.
# Without PROGRAM: tessera_rank_probe from BUILD (build/release), whose answers in a step of two tasks, in a step of one
# and in a batch script are checked, then a tiny job of tessera train. Exit code 77: no Slurm, or not root (slurmd must be).
set -eu
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd srun sbatch; do
  if ! command -v $program >/dev/null; then
    echo "slurm.sh: skipped: no $program (Debian: slurmctld slurmd slurm-client munge)"
    exit 77
  fi
done
if [ "$(id -u)" != 0 ]; then
  echo "slurm.sh: skipped: slurmd needs root"
  exit 77
fi

dir=$(mktemp -d)
pids=
stop() {
  status=$?
  trap - EXIT INT TERM
  [ "$status" = 0 ] || tail -n 20 "$dir"/*.log >&2 || true
  for pid in $pids; do kill "$pid" 2>/dev/null || true; done
  for pid in $pids; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$dir"
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A socket, a key and ports of our own: a Slurm or munge of the machine stays as it is.
port() { echo $((40000 + ($$ + $1) % 20000)); }
chmod 755 "$dir"
mkdir -m 700 "$dir/munge"
dd if=/dev/urandom of="$dir/munge/key" bs=128 count=1 2>/dev/null
chmod 400 "$dir/munge/key"
munged --foreground --force --socket="$dir/munge.socket" --key-file="$dir/munge/key" --pid-file="$dir/munge/pid" \
  --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" >"$dir/munged.log" 2>&1 &
pids="$! $pids"

host=$(hostname -s)
mkdir "$dir/state" "$dir/spool"
cat >"$dir/slurm.conf" <<END
ClusterName=tessera
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$(port 0)
SlurmdPort=$(port 1)
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:4 MaxTime=INFINITE State=UP
END
export SLURM_CONF="$dir/slurm.conf"

wait_for() {  # seconds, what, command..
  limit=$1 what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    limit=$((limit - 1))
    if [ "$limit" -le 0 ]; then
      echo "slurm.sh: $what did not start" >&2
      exit 1
    fi
    sleep 1
  done
}
wait_for 10 munged test -S "$dir/munge.socket"
slurmctld -D -c >"$dir/slurmctld.log" 2>&1 &
pids="$! $pids"
wait_for 30 slurmctld scontrol ping
slurmd -D -c -N "$host" >"$dir/slurmd.log" 2>&1 &
pids="$! $pids"
node_is_idle() { sinfo --noheader --format=%t | grep -q '^idle$'; }
wait_for 60 slurmd node_is_idle

run() { srun --ntasks=2 --overcommit "$@"; }
if [ $# -gt 0 ]; then
  run "$@"
  exit
fi
probe=${BUILD:-build/release}/bin/tessera_rank_probe
check() {  # what, expected, answer
  if [ "$2" != "$3" ]; then
    printf 'slurm.sh: %s: expected\n%s\ngot\n%s\n' "$1" "$2" "$3" >&2
    exit 1
  fi
}
answer=$(run "$probe" | sort)
port=$(echo "$answer" | sed -n '1s/.*127\.0\.0\.1:\([0-9]*\),.*/\1/p')
check 'a step of two tasks' "rank 0 of 2, local 0 of 2, node 0, master 127.0.0.1:$port, by Slurm
rank 1 of 2, local 1 of 2, node 0, master 127.0.0.1:$port, by Slurm" "$answer"
check 'a step of one task' 'no ranks: started as an ordinary program' "$(srun --ntasks=1 "$probe")"
sbatch --wait --quiet --ntasks=2 --overcommit --output="$dir/batch.out" --wrap="$probe" >/dev/null
check 'a batch script' 'no ranks: started as an ordinary program' "$(cat "$dir/batch.out")"
. tests/integration/tiny_job.sh
train_tiny_job "$dir"
echo "slurm.sh: passed"
