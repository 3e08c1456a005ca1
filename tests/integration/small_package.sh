#!/bin/sh
# Without a LibTorch of its own, an installed Tessera trains with the user's PyTorch: the components that ./dev package puts
# into the small .tar.gz and the wheel, staged in a fresh folder. Each way to have no usable PyTorch is one line.
# Usage: small_package.sh   (BUILD=build/release)
# Exit code 77: a build with a sanitizer or with CUDA, whose programs are not packed.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
setting() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
[ -z "$(setting TESSERA_SANITIZER)" ] || { echo "small_package.sh: skipped: a build with a sanitizer"; exit 77; }
case $(setting TESSERA_INSTALLED_LIBTORCH) in
  /*) echo "small_package.sh: skipped: a build whose LibTorch stays where it is (CUDA)"; exit 77 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix="$folder/user's prefix"
libtorch=$(setting TESSERA_LIBTORCH)
version=$(cat "$build/needs_libtorch")

for component in programs finds_libtorch; do
  cmake --install "$build" --prefix "$prefix" --strip --component $component >>"$folder/install"
done

failed=0
# expect NAME EXIT_CODE REGEX COMMAND..: without this shell's variables, and with a PATH that has no PyTorch.
expect() {
  name=$1 code=$2 regex=$3
  shift 3
  got=0
  env -i PATH="$folder/bin" HOME="$folder" "$@" >"$folder/output" 2>&1 || got=$?
  if [ "$got" = "$code" ] && grep -Eq "$regex" "$folder/output"; then
    echo "small_package.sh: $name: as expected"
  else
    cat "$folder/output"
    echo "small_package.sh: FAILED: $name: expected exit code $code and a line like $regex, got $got and the above" >&2
    failed=1
  fi
}
mkdir "$folder/bin"
expect "no PyTorch" 2 "^tessera: expected PyTorch $version, .* found none; pip install" "$prefix/bin/tessera" test -n 1
expect "no LibTorch there" 2 '^tessera: TESSERA_LIBTORCH=/nowhere: expected a LibTorch' \
  TESSERA_LIBTORCH=/nowhere "$prefix/bin/tessera" test -n 1
expect "TESSERA_LIBTORCH" 0 'all is well' TESSERA_LIBTORCH="$libtorch" "$prefix/bin/tessera" test -n 1

# A PyTorch of another version, half of one, and the right one, as packages of python3 (here a script that says where).
mkdir -p "$folder/old/torch/lib" "$folder/half/torch/lib"
echo "__version__ = '2.6.0+cpu'" >"$folder/old/torch/version.py"
echo "__version__ = '$version.0'" >"$folder/half/torch/version.py"
: >"$folder/old/torch/lib/libtorch_cpu.so"
ln -s "$libtorch/lib/libtorch_cpu.so" "$folder/half/torch/lib/libtorch_cpu.so"
python() {
  printf '#!/bin/sh\necho; echo "torch in %s"\n' "$1" >"$folder/bin/python3"
  chmod +x "$folder/bin/python3"
}
ln -s /bin/sh "$folder/bin/sh"
python "$folder/old/torch"
expect "an older PyTorch" 2 "expected PyTorch $version, .* got 2\.6 in $folder/old/torch" "$prefix/bin/tessera" test -n 1
python "$folder/half/torch"
expect "half a PyTorch" 2 "half/torch: this PyTorch $version lacks something" "$prefix/bin/tessera" test -n 1

# Found by a stranger: each had been a hang, a signal or the loader's own words.
printf '#!/bin/sh\nyes\n' >"$folder/bin/python3"
ln -s "$(command -v yes)" "$folder/bin/yes"
expect "a python3 that prints for ever" 2 'found none \(python3 failed when' "$prefix/bin/tessera" test -n 1
printf '#!/bin/sh\n( while :; do :; done ) &\nexit 0\n' >"$folder/bin/python3"
expect "a python3 that leaves something behind" 2 'found none' "$prefix/bin/tessera" test -n 1
printf '#!/bin/sh\necho hello; echo; echo "torch in %s"; echo bye\n' "$libtorch" >"$folder/bin/python3"
expect "a python3 that greets" 0 'all is well' "$prefix/bin/tessera" test -n 1
mkdir -p "$folder/truncated/lib" "$folder/links"
cp "$folder/half/torch/version.py" "$folder/truncated"
head -c 100000000 "$libtorch/lib/libtorch_cpu.so" >"$folder/truncated/lib/libtorch_cpu.so"
expect "a truncated LibTorch" 2 'libtorch_cpu.so: expected a shared library, got half' \
  TESSERA_LIBTORCH="$folder/truncated" "$prefix/bin/tessera" test -n 1
rm "$folder/truncated/lib/libtorch_cpu.so"
ln -s "$libtorch" "$folder/links/a:b"
expect "a link with a colon" 0 'all is well' TESSERA_LIBTORCH="$folder/links/a:b" "$prefix/bin/tessera" test -n 1
mkdir -p "$folder/c;d"
ln -s "$libtorch/lib" "$folder/c;d/lib"
cp "$folder/half/torch/version.py" "$folder/c;d"
expect "a folder with a semicolon" 2 "takes ':', ';' and '.' for its own" TESSERA_LIBTORCH="$folder/c;d" "$prefix/bin/tessera" test -n 1
mv "$prefix/bin/tessera-worker" "$folder/worker"
expect "no worker" 2 'tessera-worker: cannot be started: No such file' TESSERA_LIBTORCH="$libtorch" "$prefix/bin/tessera" test -n 1
mv "$folder/worker" "$prefix/bin/tessera-worker"
cp "$prefix/lib/tessera/needs_libtorch" "$folder/needs"
: >"$prefix/lib/tessera/needs_libtorch"
expect "half an installation" 2 'needs_libtorch: expected a version' TESSERA_LIBTORCH="$libtorch" "$prefix/bin/tessera" test -n 1
cp "$folder/needs" "$prefix/lib/tessera/needs_libtorch"
python "$libtorch"
mkdir "$folder/texts"
cp docs/*.md "$folder/texts"
cd "$folder"
expect "a recipe by its name" 0 'step +6/6' "$prefix/bin/tessera" train tiny_llama --data.train="$folder/texts" \
  '--data.extensions=[.md]' --train.steps=6 --train.run_dir="$folder/run" --checkpoint.at_end=false
expect "an estimate of a recipe by its name" 0 'One of 2 ranks in a step' "$prefix/bin/tessera" estimate-memory --job tiny_llama
cd - >/dev/null

if command -v python3 >/dev/null && command -v objdump >/dev/null; then
  wheel=$(python3 cmake/make_wheel.py "$prefix" 0.1.0 "$version" "$folder")
  again=$(mkdir "$folder/again" && python3 cmake/make_wheel.py "$prefix" 0.1.0 "$version" "$folder/again")
  cmp "$wheel" "$again" || { echo "small_package.sh: FAILED: two wheels of one prefix differ" >&2; failed=1; }
  size=$(wc -c <"$wheel")
  [ "$size" -le 20000000 ] || { echo "small_package.sh: FAILED: the wheel has $size bytes" >&2; failed=1; }
  python3 -m zipfile -l "$wheel" >"$folder/listed"
  if ! grep -q 'data/scripts/tessera-worker' "$folder/listed" || grep -q 'libtorch_cpu' "$folder/listed"; then
    cat "$folder/listed"
    echo "small_package.sh: FAILED: expected the programs and no LibTorch in the wheel, got the above" >&2
    failed=1
  fi
fi
[ "$failed" = 0 ] && echo "small_package.sh: passed"
