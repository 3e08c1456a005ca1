#!/bin/sh
# Gathers in FOLDER, for a machine with a GPU and PyTorch but without network and this project's libraries, what bench/gpu/run.sh
# needs there: the programs of `./dev build --cuda`, stripped, and the shared libraries that a bare system lacks.
#   bench/gpu/carry.sh FOLDER
set -eu
folder=${1:?usage: bench/gpu/carry.sh FOLDER}
cd "$(dirname -- "$0")/../.."
bin=build/cuda/bin
[ -x $bin/tessera-worker ] || { echo "carry: error: no $bin/tessera-worker; run ./dev build --cuda first" >&2; exit 1; }
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
for program in tessera tessera-worker tessera_cuda_kernels_test tessera_cuda_bench; do strip -o "$folder/bin/$program" $bin/$program; done
# What the system of any PyTorch has stays behind, and so do PyTorch's own libraries.
for program in "$folder"/bin/*; do ldd "$program"; done | sort -u | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' |
  grep -vE '^(lib(c|m|dl|rt|util|pthread|resolv|stdc\+\+|gcc_s|gomp)\.so|lib(torch|c10|cu|nccl|nv))' |
  while read -r name path; do cp -L "$path" "$folder/lib/$name"; done
# Micro shapes with exact losses.
cp -r tests/fixtures/llama_tiny "$folder/llama_tiny"
cp tests/fixtures/tokens_head.bin "$folder/"
du -sh "$folder" | sed 's/^/carry: /'
