# shellcheck shell=sh
# Sourced by scripts that try Tessera on a bare Debian or Ubuntu: a minimal root made by debootstrap. The script defines
# say(); this sets `root` and ends with exit code 77 where something is missing. Mirrors, certificates and proxies are the
# host's. What is mounted and made goes when the script ends.
# SUITE: bookworm (Debian 12), trixie (Debian 13), noble (Ubuntu 24.04).
# KEYRING: the file that signs the suite, where it is not the host's (Ubuntu's on Debian).
suite=${SUITE:-bookworm}
absent() { say "skipped: $*"; exit 77; }

[ "$(id -u)" = 0 ] || absent "needs root (debootstrap, chroot, mount)"
command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap git >/dev/null 2>&1 ||
  absent "no debootstrap, and apt-get could not install it"

root=$(mktemp -d)
chmod 755 "$root"
clean_up() {
  for folder in dev proc; do
    ! mountpoint -q "$root/$folder" || umount -R "$root/$folder" || umount -R -l "$root/$folder"
  done
  rm -rf --one-file-system "$root"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# copy PATH..: of the host's files, those that exist, to the same place in the root.
copy() {
  for path; do
    [ ! -e "$path" ] || { mkdir -p "$root${path%/*}" && cp -aL "$path" "$root${path%/*}/"; }
  done
}

make_root() {
  # The mirror from which this host, if it is of the same suite, takes its packages; else debootstrap's own.
  # shellcheck disable=SC2016  # apt-get expands $(REPO_URI)
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" | head -n 1)
  script=
  set -- --variant=minbase
  case $suite in
    noble)
      script=gutsy   # an older debootstrap does not know the name; all of Ubuntu's since then are one script
      set -- "$@" --components=main,universe --keyring="${KEYRING:=/usr/share/keyrings/ubuntu-archive-keyring.gpg}"
      [ -e "$KEYRING" ] || absent "no $KEYRING; set KEYRING to the file of Ubuntu's package ubuntu-keyring" ;;
  esac
  say "debootstrap of $suite into $root ${mirror:+from $mirror} .."
  debootstrap "$@" "$suite" "$root" "$mirror" "$script" >"$root.log" 2>&1 || {
    tail -n 5 "$root.log" >&2
    rm "$root.log"
    say "debootstrap failed (above)"
    exit 1
  }
  rm "$root.log"
  if [ -n "$mirror" ]; then
    rm -f "$root/etc/apt/sources.list"
    copy /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/auth.conf.d /etc/apt/keyrings /usr/share/keyrings
  fi
  apt-config dump | grep '^Acquire::' >"$root/etc/apt/apt.conf.d/90host" || true
  copy /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf /etc/hosts /etc/pip.conf
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --make-rslave "$root/dev"
}

# inside COMMAND..: runs it in the root with no variable of the host but those that name mirrors, proxies and certificates; by the
# function that `enter` names, if it does.
enter=
inside() {
  set -- PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"
  for variable in $(env | sed -n -E 's/^(PIP_[A-Z_]+|[A-Za-z]+_(proxy|PROXY)|SSL_CERT_(FILE|DIR))=.*/\1/p'); do
    set -- "$variable=$(printenv "$variable")" "$@"
  done
  $enter chroot "$root" /usr/bin/env -i "$@"
}
