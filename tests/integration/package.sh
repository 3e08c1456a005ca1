#!/bin/sh
# The .tar.gz and the .deb that CPack makes of a build, unpacked in a fresh folder, stand the checks of install.sh.
# Some minutes and 3 GB below TMPDIR.
# Usage: package.sh   (BUILD=build/release)
# Exit code 77: no dpkg-shlibdeps (Debian: dpkg-dev), or install.sh skips such a build.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
command -v dpkg-shlibdeps >/dev/null || { echo "package.sh: skipped: no dpkg-shlibdeps (Debian: dpkg-dev)"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cpack --config "$build/CPackConfig.cmake" -B "$folder" >"$folder/log" 2>&1 || {
  cat "$folder/log" >&2
  echo "package.sh: FAILED: cpack (above)" >&2
  exit 1
}
mkdir "$folder/tar"
tar -xzf "$folder"/*.tar.gz -C "$folder/tar"
echo "package.sh: the .tar.gz .."
sh tests/integration/install.sh "$folder"/tar/*
rm -rf "$folder/tar"

dpkg-deb --extract "$folder"/*.deb "$folder/deb"
echo "package.sh: the .deb .."
sh tests/integration/install.sh "$folder/deb/usr"
depends=$(dpkg-deb --field "$folder"/*.deb Depends)
case $depends in
  *libyaml-cpp* | *libfmt* | *libcurl*) wrong="what it brings itself or can do without" ;;
  *libc6*) wrong= ;;
  *) wrong="not libc6" ;;
esac
[ -z "$wrong" ] || { echo "package.sh: FAILED: the .deb depends on $wrong: $depends" >&2; exit 1; }
echo "package.sh: passed"
