#!/bin/sh
# The README's two commands on a fresh Debian 12: a minimal root made by debootstrap, a clone of this checkout's last
# commit, and nothing else. About 4 GB below TMPDIR. Mirrors, certificates and proxies are the host's.
# Needs root and debootstrap; exit code 77 says that one is absent.
# Usage: fresh_debian.sh [COMMAND ..]   (SUITE=bookworm; default: './dev train --train.steps=6' './dev test')
set -eu
checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
say() { echo "fresh_debian: $*"; }
absent() { say "skipped: $*"; exit 77; }

[ "$(id -u)" = 0 ] || absent "needs root (debootstrap, chroot, mount)"
command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap git >/dev/null 2>&1 ||
  absent "no debootstrap, and apt-get could not install it"

suite=${SUITE:-bookworm}
[ $# -gt 0 ] || set -- './dev train --train.steps=6' './dev test'
root=$(mktemp -d)
clean_up() {
  for folder in dev proc; do
    ! mountpoint -q "$root/$folder" || umount -R "$root/$folder" || umount -R -l "$root/$folder"
  done
  rm -rf --one-file-system "$root"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# The mirror from which this host, if it is a Debian 12 itself, takes its packages; else debootstrap's own.
# shellcheck disable=SC2016  # apt-get expands $(REPO_URI)
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" | head -n 1)
say "debootstrap of $suite into $root ${mirror:+from $mirror} .."
# shellcheck disable=SC2086  # no mirror, no argument
debootstrap --variant=minbase "$suite" "$root" $mirror >"$root.log" 2>&1 || {
  tail -n 5 "$root.log" >&2
  say "debootstrap failed (above)"
  exit 1
}
rm "$root.log"

# copy PATH..: of the host's files, those that exist, to the same place in the root.
copy() {
  for path; do
    [ ! -e "$path" ] || { mkdir -p "$root${path%/*}" && cp -aL "$path" "$root${path%/*}/"; }
  done
}
if [ -n "$mirror" ]; then
  rm -f "$root/etc/apt/sources.list"
  copy /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/auth.conf.d /etc/apt/keyrings /usr/share/keyrings
fi
apt-config dump | grep '^Acquire::' >"$root/etc/apt/apt.conf.d/90host" || true
copy /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf /etc/hosts /etc/pip.conf
git clone --quiet --no-hardlinks "$checkout" "$root/tessera"

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"

# Runs a command in the root with no variable of the host but those that name mirrors, proxies and certificates.
inside() {
  set -- PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"
  for name in $(env | sed -n -E 's/^(PIP_[A-Z_]+|[A-Za-z]+_(proxy|PROXY)|SSL_CERT_(FILE|DIR))=.*/\1/p'); do
    set -- "$name=$(printenv "$name")" "$@"
  done
  chroot "$root" /usr/bin/env -i "$@"
}
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
