# shellcheck shell=sh
# Sourced by the scripts that kill or stop ranks: processes, from /proc, because a minimal Debian has no ps.

# All processes below $1.
descendants() {
  for status in /proc/[0-9]*/status; do
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "$status" 2>/dev/null) || continue
    [ "$parent" = "$1" ] || continue
    child=${status#/proc/}
    child=${child%/status}
    echo "$child"
    descendants "$child"
  done
}

name_of() { sed -n 's/^Name:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null || true; }

# The RANK of a worker.
rank_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^RANK=//p'; }

# A zombie that nobody has waited for yet counts as ended, as far as work goes; a process left behind does not.
alive() {
  state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) || return 1
  [ -n "$state" ] && [ "$state" != Z ]
}
