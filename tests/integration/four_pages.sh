#!/bin/sh
# The four pages to begin with, followed by their commands alone in an empty HOME, with the programs of an installed prefix and what each
# page says that its reader has. Prints every command and what it printed.
# Usage: four_pages.sh [PREFIX]   (BUILD=build/release; PREFIX: where that build is installed already)
# Exit code 77: no python3 (blocks.py reads the pages), or a build with a sanitizer, or one whose LibTorch stays outside.
set -eu
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || { echo "four_pages.sh: skipped: no python3, which reads the pages"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ $# = 0 ]; then
  build=${BUILD:-build/release} prefix=$folder/prefix
  setting() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
  [ -z "$(setting TESSERA_SANITIZER)" ] || { echo "four_pages.sh: skipped: a build with a sanitizer"; exit 77; }
  case $(setting TESSERA_INSTALLED_LIBTORCH) in
    /*) echo "four_pages.sh: skipped: a build whose LibTorch stays where it is (CUDA)"; exit 77 ;;
  esac
  cmake --install "$build" --prefix "$prefix" >"$folder/log" || { cat "$folder/log"; exit 1; }
else
  prefix=$(CDPATH='' cd -- "$1" && pwd)
fi
sh tests/docs/scratch.sh "$prefix" "$folder/given"

# Whoever builds Tessera has ninja, and not always make, which the pages ask for.
generator=
command -v make >/dev/null || generator=CMAKE_GENERATOR=Ninja

# follow PAGE WHAT..: the page, by a reader who has these files.
follow() {
  page=$1 reader=$folder/${1%.md}
  shift
  echo "== docs/$page"
  mkdir -p "$reader/home"
  for what; do
    mkdir -p "$(dirname "$reader/$what")"
    cp -r "$folder/given/$what" "$reader/$what"
  done
  env -i PATH=/usr/local/bin:/usr/bin:/bin $generator python3 tests/docs/blocks.py "$prefix" --show "$reader" "docs/$page"
}
# `hub` is the cache of a Hub that has org/model; `recipes` are those that are installed, with a smaller shape and few steps.
follow first_job.md books notes.txt chats.jsonl hub recipes
ln -s "$prefix/share/doc/tessera/examples" "$folder/given/installed_examples"
rm "$folder/given/examples"
mv "$folder/given/installed_examples" "$folder/given/examples"
follow from_accelerate.md fsdp.yaml fsdp_run model_folder output chats.jsonl hub recipes examples
follow own_module.md examples
follow cluster.md JOB.yaml notes.txt
echo "four_pages.sh: passed"
