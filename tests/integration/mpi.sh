#!/bin/sh
# Ranks started by a real Open MPI (Debian: openmpi-bin): mpi.sh [PROGRAM ARGS..]
# Without PROGRAM: tessera_rank_probe from BUILD (build/release), whose answer is checked, then a tiny job of tessera train.
# Exit code 77: no mpirun.
set -eu
cd "$(dirname "$0")/../.."
if ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
  echo "mpi.sh: skipped: no Open MPI (Debian: openmpi-bin)"
  exit 77
fi
as_root=
[ "$(id -u)" != 0 ] || as_root=--allow-run-as-root
run() {
  mpirun $as_root --oversubscribe -n 2 --host localhost:2 --mca oob_tcp_if_include lo --mca btl self,vader "$@"
}
if [ $# -gt 0 ]; then
  run "$@"
  exit
fi
probe=${BUILD:-build/release}/bin/tessera_rank_probe
answer=$(run "$probe" | sort)
port=$(echo "$answer" | sed -n '1s/.*127\.0\.0\.1:\([0-9]*\),.*/\1/p')
expected="rank 0 of 2, local 0 of 2, node 0, master 127.0.0.1:$port, by Open MPI
rank 1 of 2, local 1 of 2, node 0, master 127.0.0.1:$port, by Open MPI"
if [ -z "$port" ] || [ "$answer" != "$expected" ]; then
  printf 'mpi.sh: expected\n%s\ngot\n%s\n' "$expected" "$answer" >&2
  exit 1
fi
. tests/integration/tiny_job.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
train_tiny_job "$folder"
echo "mpi.sh: passed"
