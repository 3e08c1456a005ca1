# same_losses.sh TESSERA PROGRAM: does an example print on two and three ranks the losses that it prints on one, within 1 %?
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
losses() { sed -n 's/.*step \([0-9]*\): loss \([0-9.]*\).*/\1 \2/p'; }

"$2" | tee "$folder/printed"
losses < "$folder/printed" > "$folder/one"
for ranks in 2 3; do
  "$1" launch -n $ranks "$2" > "$folder/printed"
  losses < "$folder/printed" | paste -d' ' "$folder/one" - | awk -v ranks=$ranks '
    { difference = $2 > $4 ? $2 - $4 : $4 - $2
      if ($1 != $3 || difference > 0.01 * $2 + 0.0002) {
        print ranks " ranks: step " $1 ": expected loss " $2 ", got " $4
        bad = 1
      } }
    END { exit bad || NR < 5 }'
done
