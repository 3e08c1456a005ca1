#!/bin/sh
# What is installed works by itself: `cmake --install` into a prefix that is then moved. There the command trains without a
# variable of this shell, loads LibTorch from its own folder, and a project of two files builds with find_package(Tessera).
# Usage: install.sh [PREFIX]   (BUILD=build/release; PREFIX: where that build is installed already)
# Exit code 77: the build has a sanitizer, or uses a LibTorch outside the prefix.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
setting() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
if [ -n "$(setting TESSERA_SANITIZER)" ]; then
  echo "install.sh: skipped: a build with a sanitizer, which a user's program has not"
  exit 77
fi
case $(setting TESSERA_INSTALLED_LIBTORCH) in
  /*) echo "install.sh: skipped: a build whose LibTorch stays where it is (CUDA, or TESSERA_BUNDLE_LIBTORCH=OFF)"
      exit 77 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=${1:-$folder/moved}

# step NAME COMMAND..: runs it without this shell's variables; its output is $folder/NAME, shown if it fails.
step() {
  name=$1
  shift
  env -i PATH=/usr/bin:/bin HOME="$folder" "$@" >"$folder/$name" 2>&1 || {
    tail -n 40 "$folder/$name" >&2
    echo "install.sh: FAILED: $name (above)" >&2
    exit 1
  }
}
# expect NAME REGEX: a line of $folder/NAME matches.
expect() {
  grep -Eq "$2" "$folder/$1" || {
    cat "$folder/$1" >&2
    echo "install.sh: FAILED: $1: expected a line like $2, got the above" >&2
    exit 1
  }
}

if [ $# = 0 ]; then
  step install cmake --install "$build" --prefix "$folder/first"
  mv "$folder/first" "$prefix"
fi

version=$(sed -n 's/.*TESSERA_VERSION "\(.*\)"/\1/p' "$prefix/include/tessera/version.h")
step version "$prefix/bin/tessera" --version
expect version "^$version\$"
step rpath readelf -d "$prefix/bin/tessera-worker"
# shellcheck disable=SC2016  # the loader expands $ORIGIN
expect rpath 'Library rpath: \[\$ORIGIN/\.\./[^:]*/tessera:\$ORIGIN/\.\./[^:]*/tessera/libtorch/lib\]'
step libraries ldd "$prefix/bin/tessera-worker"
expect libraries "libtorch_cpu.so => $prefix/"
if grep -E "not found|=> ($PWD|$(setting TESSERA_LIBTORCH))/" "$folder/libraries" >&2; then
  echo "install.sh: FAILED: tessera-worker does not load these from the prefix" >&2
  exit 1
fi

# shellcheck disable=SC2016  # $1 is the inner shell's
step bash_completion bash -c '. "$1/share/bash-completion/completions/tessera" && complete -p tessera' _ "$prefix"
expect bash_completion 'complete .*-F _tessera tessera'
step zsh_completion head -n 1 "$prefix"/share/zsh/*/_tessera
expect zsh_completion '^#compdef tessera$'
step man_page cat "$prefix/share/man/man1/tessera-checkpoint-verify.1"
expect man_page '^\.TH TESSERA-CHECKPOINT-VERIFY 1 '
if command -v man >/dev/null && command -v groff >/dev/null; then
  for page in "$prefix"/share/man/man1/*.1; do
    step warnings env LC_ALL=C.UTF-8 MANROFFSEQ='' man --warnings=w -E UTF-8 -l -Tutf8 -Z "$page"
    if grep -a 'warning' "$folder/warnings" >&2; then
      echo "install.sh: FAILED: groff finds fault with $page" >&2
      exit 1
    fi
  done
fi

# Every header that an installed one includes is installed.
(cd "$prefix/include" && find tessera -name '*.h' -exec sed -n 's|^#include "\(tessera/.*\)"$|\1|p' {} + | sort -u) >"$folder/included"
while read -r header; do
  [ -e "$prefix/include/$header" ] || {
    echo "install.sh: FAILED: $header is included by an installed header, and is not installed" >&2
    exit 1
  }
done <"$folder/included"

step train "$prefix/bin/tessera" train tests/integration/tiny_job.yaml --train.steps=3 --train.run_dir="$folder/run"
expect run/metrics.jsonl '"step": ?3,'

cp -r "$prefix/share/doc/tessera/examples/out_of_tree" "$folder/project"
step configure cmake -G Ninja -S "$folder/project" -B "$folder/project/build" -DCMAKE_PREFIX_PATH="$prefix"
step build cmake --build "$folder/project/build"
step one_rank "$folder/project/build/out_of_tree"
expect one_rank "^Tessera $version, 1 ranks: loss 0\.00"
step two_ranks "$prefix/bin/tessera" launch -n 2 "$folder/project/build/out_of_tree"
expect two_ranks "Tessera $version, 2 ranks: loss 0\.00"

# Another LibTorch than Tessera's is refused in a sentence, before a linker's error would.
if cmake -G Ninja -S "$folder/project" -B "$folder/other" -DCMAKE_PREFIX_PATH="$prefix" -DTESSERA_LIBTORCH="$folder" \
  >"$folder/other_libtorch" 2>&1; then
  echo "install.sh: FAILED: find_package(Tessera) took $folder for a LibTorch" >&2
  exit 1
fi
expect other_libtorch "TESSERA_LIBTORCH=$folder: expected LibTorch"
echo "install.sh: passed"
