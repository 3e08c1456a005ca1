#!/bin/sh
# Two machines on one: two namespaces each of network, processes, host name and mounts, joined by a cable (veth). A run over both
# must come through what it can come through, and else end on both with a line that says what is wrong: ten faults.
# Usage: two_machines.sh [FAULT ..]   (BUILD=build/release; without names: all)
set -eu
cd "$(dirname "$0")/../.."
build=$(cd "${BUILD:-build/release}" && pwd)
deadline=10

skip() {
  echo "two_machines.sh: skipped: $*"
  exit 77
}
PATH=$PATH:/usr/sbin:/sbin
for tool in unshare nsenter hostname; do
  command -v $tool >/dev/null || skip "no $tool here; apt-get install util-linux hostname"
done
for tool in ip tc; do
  command -v $tool >/dev/null || skip "no $tool here; apt-get install iproute2"
done
# Everything below is in namespaces of its own, as root there: what is left behind ends with them.
if [ "${TWO_MACHINES:-}" != inside ]; then
  unshare --user --map-root-user --net --pid --fork --mount --mount-proc --uts true 2>/dev/null ||
    skip "this kernel or container does not let us make namespaces"
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  TWO_MACHINES=inside FOLDER=$folder unshare --user --map-root-user --net --pid --fork --kill-child --mount --mount-proc --uts \
    sh "$0" "$@"
  exit
fi

folder=$FOLDER
port=29600
PATH=$build/bin:$PATH
. tests/integration/processes.sh

fail() {
  echo "two_machines.sh: FAILED: $*"
  for log in "$folder"/*.log; do
    [ -e "$log" ] || continue
    echo "--- $log, last lines:"
    tail -n 15 "$log"
  done
  exit 1
}

# start_machine NAME: sets `machine` to a process in it.
start_machine() {
  unshare --net --pid --fork --mount --mount-proc --uts sh -c "hostname machine-$1; exec sleep 3600" </dev/null >/dev/null 2>&1 &
  parent=$!
  machine=
  until [ -n "$machine" ]; do
    sleep 0.1
    machine=$(descendants $parent | head -n 1)
  done
  sleep 0.2
}

# on MACHINE COMMAND ..: runs a command there.
on() {
  process=$1
  shift
  nsenter --target "$process" --net --pid --mount --uts --wd "$@"
}

# Debian's way: a machine's own name is 127.0.1.1; the other's is its address.
name_hosts() { # MACHINE OWN OTHER ADDRESS
  printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 machine-%s\n%s machine-%s\n' "$2" "$4" "$3" >"$folder/hosts_$2"
  on "$1" mount --bind "$folder/hosts_$2" /etc/hosts
}

start_machine a
a=$machine
start_machine b
b=$machine
name_hosts "$a" a b 10.77.0.2
name_hosts "$b" b a 10.77.0.1

# A new cable, without the faults of the last one.
join() {
  on "$a" ip link delete cable 2>/dev/null || true
  ip link add cable_a type veth peer name cable_b || fail "no veth"
  ip link set cable_a netns "$a" name cable
  ip link set cable_b netns "$b" name cable
  number=1
  for process in "$a" "$b"; do
    on "$process" sysctl -q -w net.ipv6.conf.all.disable_ipv6=0 2>/dev/null || true
    on "$process" ip link set lo up
    on "$process" ip address add "10.77.0.$number/24" dev cable
    on "$process" ip address add "fd77::$number/64" dev cable nodad 2>/dev/null || true
    on "$process" ip link set cable up
    number=2
  done
  port=$((port + 1))
}

# begin MACHINE RANK ADDRESS [VARIABLE=VALUE ..] [OPTION ..]: starts its half of a run; its process is in `begun`.
begin() {
  where=$1
  rank=$2
  address=$3
  shift 3
  variables=
  for word; do
    case $word in --*) break ;; esac
    variables="$variables $word"
    shift
  done
  # shellcheck disable=SC2086  # each variable is a word
  on "$where" env $variables tessera launch -n 1 --nnodes=2 "--node-rank=$rank" "--master-addr=$address" "--master-port=$port" \
    tessera train tests/integration/tiny_job.yaml "--parallel.timeout_seconds=$deadline" "--train.run_dir=$folder/run" \
    --checkpoint.at_end=false "$@" >"$folder/$rank.log" 2>&1 &
  begun=$!
}

# ended PROCESS SECONDS: its exit code, in `code`; fails if it takes longer.
ended() {
  waited=0
  while alive "$1"; do
    [ "$waited" -lt $(($2 * 10)) ] || fail "$fault: a half of the run still lives $2 s later"
    sleep 0.1
    waited=$((waited + 1))
  done
  code=0
  wait "$1" || code=$?
}

says() { grep -Eq "$2" "$folder/$1.log" || fail "$fault: rank $1 does not say '$2'"; }

# begin_both ADDRESS [OPTION ..]: sets `first` and `second`.
begin_both() {
  rm -rf "$folder/run" "$folder"/*.log
  begin "$a" 0 "$@"
  first=$begun
  begin "$b" 1 "$@"
  second=$begun
}

await_step() {
  waited=0
  until [ -s "$folder/run/metrics.jsonl" ]; do
    alive "$first" || fail "$fault: the run ended before its first step"
    [ "$waited" -lt 600 ] || fail "$fault: no step within 60 s"
    sleep 0.1
    waited=$((waited + 1))
  done
}

# comes_through ADDRESS [OPTION ..]
comes_through() {
  begin_both "$@"
  ended "$first" 90
  [ "$code" = 0 ] || fail "$fault: machine a: exit code $code"
  ended "$second" 20
  [ "$code" = 0 ] || fail "$fault: machine b: exit code $code"
  [ "$(grep -c '"loss"' "$folder/run/metrics.jsonl")" = 5 ] || fail "$fault: expected five steps"
}

own_name_is_loopback() {
  comes_through 10.77.0.1
  fault="own_name_is_loopback, by name"
  comes_through machine-a
}

link_is_cut() {
  begin_both 10.77.0.1 --train.steps=1000000
  await_step
  on "$a" ip link set cable down
  ended "$first" $((deadline + 20))
  [ "$code" = 1 ] || fail "$fault: machine a: expected exit code 1, got $code"
  says 0 "rank 1 did not come within $deadline s.* \(rank 1 is on machine-b\)"
  says 0 '^tessera launch: rank 1 of another machine did not come: rank 0 '
  ended "$second" $((deadline + 20))
  [ "$code" = 1 ] || fail "$fault: machine b: expected exit code 1, got $code"
  says 1 'rank 0 did not come|rank 0 was lost|rank 0: '
}

shape() { # OPTIONS of netem; without netem in the kernel, false
  for process in "$a" "$b"; do
    on "$process" tc qdisc add dev cable root netem "$@" 2>/dev/null || return 1
  done
}

slow_link() {
  if ! shape delay 20ms rate 50mbit; then
    on "$a" tc qdisc add dev cable root tbf rate 50mbit burst 32kb latency 100ms 2>/dev/null || {
      echo "two_machines.sh: slow_link: left out: no netem and no tbf in this kernel"
      return 0
    }
  fi
  deadline=30
  comes_through 10.77.0.1
  deadline=10
}

packets_are_lost() {
  # Without netem: a queue of two packets, which bursts overflow.
  if ! shape loss 5%; then
    on "$a" tc qdisc add dev cable root tbf rate 20mbit burst 3kb limit 3kb 2>/dev/null || {
      echo "two_machines.sh: packets_are_lost: left out: no netem and no tbf in this kernel"
      return 0
    }
  fi
  deadline=30
  comes_through 10.77.0.1
  deadline=10
}

other_mtu() {
  on "$a" ip link set cable mtu 9000
  on "$b" ip link set cable mtu 1280
  comes_through 10.77.0.1
}

ipv6_only() {
  if ! on "$a" ip -6 address show dev cable 2>/dev/null | grep -q fd77::1; then
    echo "two_machines.sh: ipv6_only: left out: no IPv6 in this kernel"
    return 0
  fi
  for process in "$a" "$b"; do on "$process" ip -4 address flush dev cable; done
  comes_through fd77::1
}

# What machine a sends to b goes to a card that is not there: packets vanish, as behind a firewall that drops.
packets_vanish() {
  on "$a" ip neighbour replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev cable nud permanent
  begin_both 10.77.0.1
  ended "$second" $((deadline + 20))
  [ "$code" = 1 ] || fail "$fault: machine b: expected exit code 1, got $code"
  says 1 "rank 1: no store at 10.77.0.1:$port within $deadline s"
  ended "$first" $((deadline + 20))
  [ "$code" = 1 ] || fail "$fault: machine a: expected exit code 1, got $code"
  says 0 "rank 1 did not come within $deadline s.* \(rank 1 has never reached the store\)"
}

wrong_secret() {
  rm -rf "$folder/run" "$folder"/*.log
  begin "$a" 0 10.77.0.1 TESSERA_RUN_SECRET=0123456789abcdef-a
  first=$begun
  begin "$b" 1 10.77.0.1 TESSERA_RUN_SECRET=0123456789abcdef-b
  second=$begun
  ended "$second" $((deadline + 20))
  [ "$code" = 2 ] || fail "$fault: machine b: expected exit code 2, got $code"
  says 1 "the run at 10.77.0.1:$port has another secret, or another number of ranks; set TESSERA_RUN_SECRET_FILE"
  ended "$first" $((deadline + 20))
  [ "$code" = 1 ] || fail "$fault: machine a: expected exit code 1, got $code"
  says 0 'rank 1 did not come'
  fault="a stranger at the store's port"
  rm -rf "$folder/run" "$folder"/*.log
  begin "$a" 0 10.77.0.1 TESSERA_RUN_SECRET=0123456789abcdef-a --train.steps=40
  first=$begun
  begin "$b" 1 10.77.0.1 TESSERA_RUN_SECRET=0123456789abcdef-a --train.steps=40
  second=$begun
  for _ in 1 2 3 4 5; do
    on "$b" bash -c "exec 3<>/dev/tcp/10.77.0.1/$port && head -c 4096 /dev/urandom >&3; sleep 0.3" 2>/dev/null || sleep 0.3
  done
  ended "$first" 90
  [ "$code" = 0 ] || fail "$fault: machine a: exit code $code"
  ended "$second" 20
  [ "$code" = 0 ] || fail "$fault: machine b: exit code $code"
}

port_is_taken() {
  rm -rf "$folder/run" "$folder"/*.log
  begin "$a" 0 10.77.0.1
  holder=$begun
  sleep 1.5
  mv "$folder/0.log" "$folder/holder.log"
  begin "$a" 0 10.77.0.1
  ended "$begun" 10
  [ "$code" = 2 ] || fail "$fault: expected exit code 2, got $code"
  says 0 "launch: master port $port cannot be used: Address already in use"
  ended "$holder" $((deadline + 20))
}

one_never_comes() {
  rm -rf "$folder/run" "$folder"/*.log
  begin "$a" 0 10.77.0.1
  ended "$begun" $((deadline + 20))
  [ "$code" = 1 ] || fail "$fault: expected exit code 1, got $code"
  says 0 "rank 1 did not come within $deadline s.* \(rank 1 has never reached the store\)"
  says 0 '^tessera launch: rank 1 of another machine did not come: rank 0 '
}

[ $# -gt 0 ] || set -- own_name_is_loopback link_is_cut slow_link packets_are_lost other_mtu ipv6_only packets_vanish wrong_secret \
  port_is_taken one_never_comes
for fault; do
  name=$fault
  join
  began=$(date +%s)
  "$name"
  echo "two_machines.sh: $name: as it should be, after $(($(date +%s) - began)) s"
done
