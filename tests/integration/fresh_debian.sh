#!/bin/sh
# The README's two commands on a fresh Debian or Ubuntu: a minimal root (bare_root.sh), a clone of this checkout's last commit, and
# nothing else. About 4 GB below TMPDIR. Needs root and debootstrap; exit code 77 says that one is absent.
# Usage: fresh_debian.sh [COMMAND ..]   (SUITE=bookworm; default: './dev train --train.steps=6' './dev test')
set -eu
checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
say() { echo "fresh_debian: $*"; }
. "$checkout/tests/integration/bare_root.sh"
[ $# -gt 0 ] || set -- './dev train --train.steps=6' './dev test'
make_root
git clone --quiet --no-hardlinks "$checkout" "$root/tessera"

for command; do
  say "$command .."
  started=$(date +%s)
  # With the seconds that have passed before each line.
  { inside sh -c "cd /tessera && $command" 2>&1 || touch "$root/failed"; } | while IFS= read -r line; do
    echo "$(($(date +%s) - started)) s: $line"
  done
  [ ! -e "$root/failed" ] || exit 1
  say "$command: took $(($(date +%s) - started)) s"
done
