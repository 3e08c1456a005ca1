#!/bin/sh
# The packages of ./dev package where their users are: in a minimal Debian or Ubuntu (bare_root.sh), each is installed, then a user
# without root trains with it whose HOME is read-only, without a network, with instructions up to AVX2 alone; removed, it leaves
# nothing. About 8 GB below TMPDIR. Needs root and debootstrap; exit code 77 says that one is absent.
# Usage: fresh_packages.sh [PACKAGE ..]   (SUITE=bookworm; default: those in build/release)
set -eu
checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
say() { echo "fresh_packages: $*"; }
. "$checkout/tests/integration/bare_root.sh"
if [ $# = 0 ]; then
  set -- "$checkout"/build/release/tessera-*-linux-*.deb "$checkout"/build/release/tessera-*-linux-*.tar.gz \
    "$checkout"/build/release/tessera-*.whl
fi
for package; do
  [ -e "$package" ] || absent "no $package; run ./dev package"
done
make_root
mkdir "$root/texts"
cp "$checkout"/docs/*.md "$root/texts"
inside useradd --create-home someone
mkdir -m 1777 "$root/tried"
chmod 555 "$root/home/someone"
failed() { say "FAILED: $*" >&2; exit 1; }

now() { date +%s%N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN {printf "%.1f", (to - from) / 1e9}'; }

# What the user does, with $1/bin on the PATH.
cat >"$root/use.sh" <<'END'
cd /tried
exec setpriv --reuid=someone --regid=someone --init-groups env HOME=/home/someone TESSERA_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 \
  PATH="$1/bin:/tried/venv/bin:/usr/bin:/bin" sh -ec '
    [ ! -w "$HOME" ]
    tessera test -n 2
    tessera train tiny_llama --data.train=/texts "--data.extensions=[.md]" --train.steps=6'
END
# A namespace whose only network is a loopback of its own.
without_network() { unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@"; }
# try PREFIX PACKAGE
try() {
  rm -rf "$root/tried/runs"
  enter=without_network
  inside sh /use.sh "$1" >"$root/tmp/log" 2>&1 || {
    cat "$root/tmp/log" >&2
    failed "$2: a user's first run (above)"
  }
  enter=
  grep -q 'all is well' "$root/tmp/log" || failed "$2: expected 'all is well' of tessera test"
  grep -Eq 'step +6/6 .*loss [0-9]' "$root/tmp/log" || failed "$2: expected six steps"
}
# As the run reports it: some time after launch.
first_step() { sed -n 's/^ *first step *//p' "$root/tmp/log"; }

# Every file of the root but what package managers note down, caches and logs.
files() {
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tried -o -path ./tmp -o -path ./var/lib/dpkg -o -path ./var/lib/apt \
    -o -path ./var/cache -o -path ./var/log -o -path ./packages -o -name __pycache__ \) -prune -o -print | sort)
}
# Between those of $root/tmp/before and after.
left_nothing() {
  diff "$root/tmp/before" "$root/tmp/after" >"$root/tmp/left" || {
    cat "$root/tmp/left" >&2
    failed "$1: removed, it left the above"
  }
}
inside apt-get update >/dev/null 2>&1 || true
mkdir "$root/packages"

for package; do
  file=${package##*/}
  cp "$package" "$root/packages/"
  size=$(wc -c <"$package" | awk '{printf "%.1f", $1 / 1e6}')
  case $file in
    *.deb)
      inside apt-get install -y --no-install-recommends --download-only "/packages/$file" >/dev/null 2>&1
      files >"$root/tmp/before"
      inside apt-mark showmanual >"$root/tmp/manual"
      started=$(now)
      inside apt-get install -y --no-install-recommends "/packages/$file" >"$root/tmp/log" 2>&1 || {
        cat "$root/tmp/log" >&2
        failed "$file: could not be installed (above)"
      }
      took=$(since "$started")
      try /usr "$file"
      other=$(inside dpkg -L tessera | while IFS= read -r path; do
        [ -d "$root$path" ] || stat -c '%U:%G %n' "$root$path"
      done | grep -v '^root:root ' | head -n 3)
      [ -z "$other" ] || failed "$file: files that are not root's: $other"
      count=$(inside dpkg -L tessera | wc -l)
      inside apt-get purge -y --autoremove tessera >/dev/null 2>&1
      files >"$root/tmp/after"
      left_nothing "$file" ;;
    *-small-*.tar.gz | *.whl)
      inside apt-get install -y --no-install-recommends python3-venv >/dev/null 2>&1
      inside python3 -m venv /tried/venv
      case $file in
        *.whl) inside sh -c "/tried/venv/bin/pip -q download --dest /packages/pip /packages/$file" >/dev/null 2>&1 ;;
        *) inside sh -c "/tried/venv/bin/pip -q download --dest /packages/pip 'torch==2.11.*'" >/dev/null 2>&1 ;;
      esac || failed "$file: pip could not download torch"
      find "$root/tried/venv" -name __pycache__ -prune -o ! -type d -print | sort >"$root/tmp/before"
      started=$(now)
      case $file in
        *.whl)
          inside /tried/venv/bin/pip -q install --no-index --find-links /packages/pip "/packages/$file" 2>/dev/null
          took=$(since "$started")
          try /tried/venv "$file"
          count=$(inside /tried/venv/bin/pip show -f tessera | grep -c '^  ')
          inside sh -c "/tried/venv/bin/pip -q uninstall -y tessera && /tried/venv/bin/pip -q freeze | xargs /tried/venv/bin/pip -q uninstall -y"
          # No file; of folders, pip leaves empty ones.
          find "$root/tried/venv" -name __pycache__ -prune -o ! -type d -print | sort >"$root/tmp/after"
          left_nothing "$file" ;;
        *)
          inside /tried/venv/bin/pip -q install --no-index --find-links /packages/pip 'torch==2.11.*' 2>/dev/null
          mkdir "$root/tried/small"
          tar -xzf "$package" -C "$root/tried/small" --strip-components=1
          took=$(since "$started")
          try /tried/small "$file"
          count=$(find "$root/tried/small" -type f | wc -l) ;;
      esac
      rm -rf "$root/tried/venv" "$root/tried/small" ;;
    *.tar.gz)
      started=$(now)
      mkdir "$root/tried/large"
      tar -xzf "$package" -C "$root/tried/large" --strip-components=1
      took=$(since "$started")
      try /tried/large "$file"
      count=$(find "$root/tried/large" -type f | wc -l)
      rm -rf "$root/tried/large" ;;
  esac
  case $file in
    *.tar.gz)
      other=$(tar -tvzf "$package" --numeric-owner | awk '$2 != "0/0"' | head -n 3)
      [ -z "$other" ] || failed "$file: files that are not root's: $other" ;;
  esac
  rm "$root/packages/$file"
  say "$suite: $file: $size MB, $count files; installed in $took s, first step $(first_step)"
done
say "passed"
