# usage: printed.sh COMPARE EXPECTED TOLERANCE PROGRAM ..: runs the program in a folder of its own and compares the losses and epochs that it
# prints to EXPECTED. COMPARE and PROGRAM are absolute.
set -e
compare=$1 expected=$2 tolerance=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$@" > printed
sed -n 's/^\[0\]: //; /^\(loss\|epoch\|Average\)/p' printed > found
"$compare" "$expected" found "$tolerance"
