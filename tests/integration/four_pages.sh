#!/bin/sh
# The four pages to begin with, followed by their commands alone, with the programs of an installed prefix and what each page
# says that its reader has (texts, conversations, a model, an Accelerate file). Prints every command and what it printed.
# usage: four_pages.sh PREFIX   (./dev install PREFIX, or what a package brought)
set -eu
prefix=$(CDPATH='' cd -- "$1" && pwd)
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sh tests/docs/scratch.sh "$prefix" "$folder/given"
for page in first_job from_accelerate cluster; do
  echo "== docs/$page.md"
  cp -r "$folder/given" "$folder/$page"
  python3 tests/docs/blocks.py "$prefix" --show "$folder/$page" "docs/$page.md"
done

echo "== docs/own_module.md"
cp -r examples/out_of_tree "$folder/own"
cp examples/own_model.cpp "$folder/own/main.cpp"
cmake -G Ninja -S "$folder/own" -B "$folder/own/build" -DCMAKE_PREFIX_PATH="$prefix" >"$folder/log" || { cat "$folder/log"; exit 1; }
cmake --build "$folder/own/build" >"$folder/log" || { cat "$folder/log"; exit 1; }
cd "$folder/own"
for ranks in 1 2; do
  echo "$ tessera launch -n $ranks build/out_of_tree"
  OMP_NUM_THREADS=1 "$prefix/bin/tessera" launch -n $ranks build/out_of_tree
done
echo "four_pages.sh: passed"
