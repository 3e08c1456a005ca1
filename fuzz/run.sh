#!/bin/sh
# Builds the fuzz targets and lets each read EXECUTIONS inputs (default: 20000; 1000000 by hand), drawn by SEED (default: another
# one each time; CI gives one, so that it finds in a change what the change brought).
# What makes one fail is left in build/fuzz/findings/. Exit code 77: no clang here, nothing was done.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
executions=${1:-20000}
seed=${2:-0}   # 0: of the clock
findings=build/fuzz/findings

echo 'int main(){}' | clang++-14 -fsanitize=address,undefined -x c++ - -o /dev/null 2>/dev/null || {
  echo "fuzz: skipped: no clang++-14 with its runtimes; apt-get install clang-14 libclang-rt-14-dev"
  exit 77
}
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz >build/fuzz/build.log 2>&1 || { cat build/fuzz/build.log; exit 1; }

for folder in fuzz/corpus/*/; do
  name=$(basename "$folder")
  found=build/fuzz/found/$name   # inputs that reach something new; the committed ones stay as they are
  mkdir -p "$found" "$findings"
  log=build/fuzz/$name.log
  # 1 GiB and 10 s for one input of at most 64 KiB: whoever takes more takes too much.
  build/fuzz/bin/fuzz_"$name" -runs="$executions" -seed="$seed" -max_len=65536 -rss_limit_mb=1024 -malloc_limit_mb=256 -timeout=10 -print_funcs=0 \
    -artifact_prefix="$findings/$name-" "$found" "$folder" >"$log" 2>&1 || {
    tail -40 "$log"
    echo "fuzz: error: $name: a finding (above); its input is in $findings/"
    exit 1
  }
  echo "fuzz: $name: $(tail -1 "$log")"
done
