# usage: resumed.sh COMPARE EXPECTED RANKS TESSERA PROGRAM: two processes write a checkpoint, RANKS read it and go on; compares what they write to
# EXPECTED.
set -e
compare=$1 expected=$2 ranks=$3 tessera=$4 program=$5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$tessera" launch -n 2 "$program" save "$folder/checkpoint"
"$tessera" launch -n "$ranks" "$program" load "$folder/checkpoint" "$folder/found"
"$compare" "$expected" "$folder/found"
