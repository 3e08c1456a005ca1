# usage: printed.sh COMPARE EXPECTED TOLERANCE PROGRAM .. [-- PROGRAM ..]: runs the programs in one folder of their own and compares what they
# print of losses, epochs, operators (the profiler's table) and memory, and what they log, to EXPECTED, as by_feature.py writes it.
# COMPARE and PROGRAM are absolute.
set -e
compare=$1 expected=$2 tolerance=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
while [ $# -gt 0 ]; do
  words=
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    words="$words '$1'"
    shift
  done
  [ $# = 0 ] || shift
  eval "$words" >> printed
done
sed -n 's/^\[0\]: //
  /^\(loss\|epoch\|Average\)/p
  s/\(.*Memory.*\): *-\{0,1\}[0-9][0-9]*$/\1: number/p
  s/^ *\(Name  .*# of Calls\) *$/columns \1/p
  s/^ *\(aten::[a-z_]*\)  .*  \([0-9]*\) *$/operator \1 \2/p
  /^Self CPU time total/p' printed > lines
# The table's rows, of which those that are expected, by name: their order there is that of times.
LC_ALL=C awk -v expected="$expected" '
  BEGIN { while ((getline < expected) > 0) if ($1 == "operator") is_expected[$2] = 1 }
  $1 == "operator" { if ($2 in is_expected) print | "sort"; next }
  /^Self CPU time total/ { fflush(); close("sort"); next }
  { print }' lines > found
# Figures of the table of numbers, which are to be those in the files of MLflow, and the parameters there.
table=$(find . -name metrics.csv)
if [ -n "$table" ]; then
  awk -F, 'NR == 1 { for (i = 2; i <= NF; ++i) name[i] = $i; next } { for (i = 2; i <= NF; ++i) print "logged", name[i], $1, $i }' "$table" |
    LC_ALL=C sort > logged
  find . -path '*/metrics/*' -type f | while read -r file; do
    awk -v name="${file##*/}" '{ print "logged", name, $3, $2 }' "$file"
  done | LC_ALL=C sort > logged_too
  "$compare" logged logged_too
  find . -path '*/params/*' -type f | while read -r file; do
    echo "parameter ${file##*/} $(cat "$file")"
  done | LC_ALL=C sort > parameters
  cat logged parameters >> found
fi
"$compare" "$expected" found "$tolerance"
