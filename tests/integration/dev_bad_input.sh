#!/bin/sh
# What may be wrong with the machine of one who runs ./dev: each is one line that says what to do, before anything is compiled, and
# the next try works. In a copy of the sources, with a `cmake` that configures and compiles nothing.
# Usage: dev_bad_input.sh   (BUILD=build/release: whose LibTorch is taken)
# Exit code 77: a package that ./dev would install first is missing.
set -eu
cd "$(dirname "$0")/../.."
libtorch=$(sed -n 's/^TESSERA_LIBTORCH:[A-Z]*=//p' "${BUILD:-build/release}/CMakeCache.txt")
for command in g++ cmake ninja python3; do
  command -v $command >/dev/null || { echo "dev_bad_input.sh: skipped: no $command"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/checkout" "$folder/bin"
cp -r dev CMakeLists.txt CMakePresets.json CHANGELOG.md LICENSE cmake tessera tests bench examples recipes docs "$folder/checkout"
cmake=$(command -v cmake)
cat >"$folder/bin/cmake" <<END
#!/bin/sh
[ "\$1" = --build ] || exec "$cmake" "\$@"
END
chmod +x "$folder/bin/cmake"

failed=0
# expect NAME EXIT_CODE REGEX [VARIABLE=VALUE ..]: of ./dev build.
expect() {
  name=$1 code=$2 regex=$3
  shift 3
  got=0
  (cd "$folder/checkout" && env PATH="$folder/bin:$PATH" "$@" ./dev build) >"$folder/output" 2>&1 || got=$?
  if [ $got = "$code" ] && grep -Eq "$regex" "$folder/output" && [ "$(grep -c error "$folder/output")" -le 1 ]; then
    echo "dev_bad_input.sh: $name: as expected"
  else
    cat "$folder/output"
    echo "dev_bad_input.sh: FAILED: $name: expected exit code $code and a line like $regex, got $got and the above" >&2
    failed=1
  fi
}
well() { expect "$1, then all is well" 0 'building everything' TESSERA_LIBTORCH="$libtorch"; }

cp "$folder/bin/cmake" "$folder/cmake"
printf '#!/bin/sh\necho cmake version 3.18.4\n' >"$folder/bin/cmake"
expect "an old CMake" 1 '^dev: error: .*expected CMake 3\.25 or newer, got 3\.18\.4; ' TESSERA_LIBTORCH="$libtorch"
mv "$folder/cmake" "$folder/bin/cmake"
well "an old CMake"

rm -rf "$folder/checkout/build"
printf '#!/bin/sh\nexec g++ -w -U__GNUC__ -D__GNUC__=11 "$@"\n' >"$folder/bin/old-g++"
chmod +x "$folder/bin/old-g++"
expect "an old g++" 1 '^dev: error: .*old-g\+\+: expected g\+\+ 12, clang 14 or newer, got GNU 11\.' TESSERA_LIBTORCH="$libtorch" CXX="$folder/bin/old-g++"
rm -rf "$folder/checkout/build"
well "an old g++"

# like NAME: a LibTorch with the real one's headers; what stands in for its library comes from the caller.
like() { mkdir -p "$folder/$1/lib"; ln -s "$libtorch/include" "$folder/$1/include"; }
like half
head -c 100000000 "$libtorch/lib/libtorch_cpu.so" >"$folder/half/lib/libtorch_cpu.so"
expect "half a LibTorch" 1 '^dev: error: .*half/lib/libtorch_cpu.so: expected a shared library, got half' TESSERA_LIBTORCH="$folder/half"
rm -r "$folder/half"
like without_gloo
echo 'int something;' | g++ -x c++ -shared -fPIC - -o "$folder/without_gloo/lib/libtorch_cpu.so"
expect "a LibTorch without Gloo" 1 '^dev: error: .*expected one with distributed and Gloo' TESSERA_LIBTORCH="$folder/without_gloo"
mkdir -p "$folder/older/lib" "$folder/older/include/ATen" "$folder/older/include/torch/headeronly"
: >"$folder/older/lib/libtorch_cpu.so"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 6\n' >"$folder/older/include/torch/headeronly/version.h"
expect "an older LibTorch" 1 '^dev: error: LibTorch in .*older: expected 2\.11 or newer' TESSERA_LIBTORCH="$folder/older"
expect "no LibTorch" 1 '^dev: error: TESSERA_LIBTORCH=/nowhere: no include/ATen in it; ' TESSERA_LIBTORCH=/nowhere
well "another LibTorch"

# A python3 without PyTorch, whose pip has no network; then one whose mirror has a broken file.
python=$(command -v python3)
cat >"$folder/bin/python3" <<END
#!/bin/sh
[ "\$1" = -m ] || exit 1
exec "$python" "\$@"
END
chmod +x "$folder/bin/python3"
if python3 -m pip --version >/dev/null 2>&1 && [ "$(uname -m)" = x86_64 ]; then
  expect "no network" 1 '^dev: error: pip could not fetch torch==[^ ]* \(ERROR: .*; check the network' PIP_NO_INDEX=1 PIP_FIND_LINKS=
  mkdir "$folder/mirror"
  sed -n "s/^[a-z_]*_wheel='\(.*\)'/\1/p" dev | while read -r wheel; do
    "$python" - "$folder/mirror/$wheel" <<'END'
import sys, zipfile
name, version = sys.argv[1].rsplit("/", 1)[1].split("-")[:2]
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr(f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    wheel.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\n")
END
  done
  expect "a wrong download" 1 '^dev: error: torch-.*: expected SHA-256 [0-9a-f]*, got [0-9a-f]*; what was fetched is not used' \
    PIP_NO_INDEX=1 PIP_FIND_LINKS="$folder/mirror"
  left=$(find "$folder/checkout/.deps" -mindepth 1 ! -name '*.log')
  [ -z "$left" ] || {
    echo "$left"
    echo "dev_bad_input.sh: FAILED: what was fetched was left behind" >&2
    failed=1
  }
  well "a wrong download"
fi
[ "$failed" = 0 ] && echo "dev_bad_input.sh: passed"
