#!/bin/sh
# The four pages to begin with on a bare machine: in a minimal Debian or Ubuntu (bare_root.sh) with an installed Tessera, a user without
# root follows them (four_pages.sh) without a network. What is installed there: the packages that docs/install.md names for programs of
# one's own, and the Python that reads the pages. About 3 GB below TMPDIR. Needs root, debootstrap and a network; exit code 77 says that
# one is absent.
# Usage: fresh_pages.sh PREFIX   (SUITE=bookworm; PREFIX: where Tessera is installed, made on a system of that suite, since programs are
# built with its fmt)
set -eu
prefix=$(CDPATH='' cd -- "$1" && pwd)
checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
say() { echo "fresh_pages: $*"; }
. "$checkout/tests/integration/bare_root.sh"
make_root
# shellcheck disable=SC2016  # Markdown's
packages=$(sed -n 's/^`\(g++ [a-z0-9+ -]*\)`.*/\1/p' "$checkout/docs/install.md")
[ -n "$packages" ] || { say "FAILED: docs/install.md names no packages"; exit 1; }
say "apt-get install $packages"
inside apt-get update >/dev/null 2>&1 || true
# shellcheck disable=SC2086  # a list of names
inside env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages >"$root/tmp/log" 2>&1 || {
  tail -n 5 "$root/tmp/log" >&2
  say "FAILED: apt-get could not install what docs/install.md names"
  exit 1
}
inside env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 iproute2 >/dev/null 2>&1
inside useradd --create-home someone
mkdir -p "$root/opt/tessera" "$root/checkout"
cp -r "$prefix/." "$root/opt/tessera"
git -C "$checkout" ls-files -z | tar -C "$checkout" --null -T - -c | tar -C "$root/checkout" -x
# A namespace whose only network is a loopback of its own.
without_network() { unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@"; }
enter=without_network
inside setpriv --reuid=someone --regid=someone --init-groups env HOME=/home/someone sh /checkout/tests/integration/four_pages.sh /opt/tessera
say "$suite: passed"
