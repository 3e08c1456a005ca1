#!/bin/sh
# Tokenizers beside the libraries that they are of, on random and hostile strings (CASES of each style: 500 in CTest).
# Needs python3 with the packages tokenizers and sentencepiece; skipped (77) without.
set -eu
python=${PYTHON:-python3}
probe=$(find "${BUILD:-build/release}" -name tessera_text_probe -type f | head -1)
[ -n "$probe" ] || { echo "tokenizer_peers: skipped: no tessera_text_probe in ${BUILD:-build/release}"; exit 77; }
exec "$python" tests/integration/tokenizer_peers.py "$probe" tests/fixtures/tokenizers "${CASES:-500}"
