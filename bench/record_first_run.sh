#!/bin/sh
# What a first run prints, shortened for the README: the first and last steps and the summary.
# usage: bench/record_first_run.sh --data.train=FOLDER [tessera train options]   (after ./dev train, or with tessera on the PATH)
set -eu
cd "$(dirname "$0")/.."
tessera=build/release/bin/tessera
[ -x $tessera ] || tessera=tessera
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
$tessera train recipes/tiny_llama.yaml --train.run_dir="$folder/run" "$@" >"$folder/out" 2>&1 || { cat "$folder/out"; exit 1; }
awk '/^step/ {last = $0; if (++n <= 3) print; else if (n == 4) print ".."; next}
  last && !done {print last; done = 1}
  /^  (run|model|loss|first step|median step|speed|MFU|waiting|peak memory) / {print}' "$folder/out"
