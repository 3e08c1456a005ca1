#!/bin/sh
# Parquet files beside pyarrow, on random tables (TABLES: 300 in CTest). Needs python3 with the package pyarrow; skipped (77) without.
set -eu
python=${PYTHON:-python3}
probe=$(find "${BUILD:-build/release}" -name tessera_records_probe -type f | head -1)
[ -n "$probe" ] || { echo "parquet_peers: skipped: no tessera_records_probe in ${BUILD:-build/release}"; exit 77; }
exec "$python" tests/integration/parquet_peers.py "$probe" "${TABLES:-300}"
