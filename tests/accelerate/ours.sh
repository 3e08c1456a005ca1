# usage: ours.sh COMPARE EXPECTED PROGRAM ..: runs PROGRAM .. FILE and compares FILE to EXPECTED.
set -e
compare=$1 expected=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$@" "$folder/found"
"$compare" "$expected" "$folder/found"
