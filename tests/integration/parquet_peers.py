"""Compares tessera_records_probe with pyarrow on random tables: types, nulls, nesting, codecs, encodings, page versions and sizes.

usage: parquet_peers.py PROBE [TABLES [SEED]] | parquet_peers.py --fixtures FOLDER. The second way writes the files of
tests/fixtures/parquet/, each beside its rows as JSON lines. Ends with 1 at a difference and with 77 where `pyarrow` is missing."""
import base64
import datetime
import decimal
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import uuid

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    print("parquet_peers.py: skipped: no package `pyarrow`; pip install pyarrow")
    sys.exit(77)

CODECS = ["NONE", "SNAPPY", "GZIP", "ZSTD"]
TEXTS = ["", "a", "user", "assistant", "Hello, world", "caf\u00e9", "\u4f60\u597d", "\U0001f600", "line\nline", "\u0000", "\"quoted\"", "x" * 300]
INT_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
UINT_BITS = {pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32, pa.uint64(): 64}
PLAIN_TYPES = [
    pa.bool_(), *INT_BITS, *UINT_BITS, pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.string(), pa.large_string(), pa.binary(), pa.binary(5), pa.date32(),
    pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"),
    pa.decimal128(7, 2), pa.decimal128(18, 0), pa.decimal128(38, 10), pa.decimal256(70, 5), pa.uuid(), pa.dictionary(pa.int32(), pa.string())]


TOP = 3  # nesting of a column's type


def random_type(rng, depth):
    kind = rng.random()
    if depth == 0 or kind < 0.55:
        of = rng.choice(PLAIN_TYPES)
        return pa.binary(16) if of == pa.uuid() and depth < TOP else of  # pyarrow cannot nest it
    if kind < 0.75:
        return pa.list_(random_field(rng, "element", depth))
    if kind < 0.95:
        return pa.struct([random_field(rng, name, depth) for name in ("role", "content", "weight")[:rng.randint(1, 3)]])
    return pa.map_(rng.choice([pa.string(), pa.int32()]), random_field(rng, "value", depth))


def random_field(rng, name, depth):
    return pa.field(name, random_type(rng, depth - 1), nullable=rng.random() < 0.7)


def random_value(rng, of, nullable, nulls):
    """A value as pyarrow takes it."""
    if nullable and rng.random() < nulls:
        return None
    if pa.types.is_list(of):
        return [random_value(rng, of.value_type, of.value_field.nullable, nulls) for _ in range(rng.choice([0, 1, 2, 3, 9]))]
    if pa.types.is_struct(of):
        return {field.name: random_value(rng, field.type, field.nullable, nulls) for field in of}
    if pa.types.is_map(of):
        keys = rng.sample(TEXTS, rng.randint(0, 3)) if of.key_type == pa.string() else rng.sample(range(-50, 50), rng.randint(0, 3))
        return [(key, random_value(rng, of.item_type, of.item_field.nullable, nulls)) for key in keys]
    if of == pa.bool_():
        return rng.random() < 0.5
    if of in INT_BITS:
        bits = INT_BITS[of] - 1
        return rng.choice([rng.randrange(-(1 << bits), 1 << bits), rng.randrange(-9, 9), (1 << bits) - 1, -(1 << bits)])
    if of in UINT_BITS:
        return rng.choice([rng.randrange(1 << UINT_BITS[of]), rng.randrange(9), (1 << UINT_BITS[of]) - 1])
    if pa.types.is_floating(of):
        return rng.choice([0.0, -0.5, 1.5, float("nan"), float("inf"), rng.randrange(-999, 999) / 8, 2.0 ** -20])
    if pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_dictionary(of):
        return rng.choice(TEXTS) if rng.random() < 0.7 else "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x400, 0x2000)])) for _ in range(rng.randrange(30)))
    if of == pa.uuid():
        return uuid.UUID(int=rng.getrandbits(128)).bytes
    if pa.types.is_fixed_size_binary(of):
        return rng.randbytes(of.byte_width)
    if pa.types.is_binary(of):
        return rng.randbytes(rng.randrange(9))
    if pa.types.is_date(of):
        return datetime.date(1, 1, 1) + datetime.timedelta(days=rng.randrange(3_650_000))
    if pa.types.is_time(of):
        return datetime.time(rng.randrange(24), rng.randrange(60), rng.randrange(60), rng.choice([0, 1000, 123_000] + ([] if of.unit == "ms" else [123_456])))
    if pa.types.is_timestamp(of):
        years = (1700, 2250) if of.unit == "ns" else (1, 9999)
        zone = datetime.timezone.utc if of.tz else None
        return datetime.datetime(rng.randrange(*years), rng.randint(1, 12), rng.randint(1, 28), rng.randrange(24), rng.randrange(60), rng.randrange(60),
                                 rng.choice([0, 1000, 999_000] + ([] if of.unit == "ms" else [123_456])), tzinfo=zone)
    if pa.types.is_decimal(of):
        digits = rng.randrange(1, of.precision + 1)
        return decimal.Decimal(rng.choice([-1, 1]) * rng.randrange(10 ** digits)).scaleb(-of.scale, decimal.Context(prec=80))
    raise ValueError(of)


def as_json(value, of):
    """What docs/data_files.md says that a value becomes, from what pyarrow reads."""
    if value is None:
        return None
    if pa.types.is_list(of):
        return [as_json(item, of.value_type) for item in value]
    if pa.types.is_struct(of):
        return {field.name: as_json(value[field.name], field.type) for field in of}
    if pa.types.is_map(of):
        return {key if isinstance(key, str) else json.dumps(key): as_json(item, of.item_type) for key, item in value}
    if pa.types.is_floating(of):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.datetime):
        return clock(value.replace(tzinfo=None).isoformat(timespec="microseconds"), of.unit) + ("Z" if of.tz else "")
    if isinstance(value, datetime.time):
        return clock(value.isoformat(timespec="microseconds"), of.unit)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value


def clock(text, unit):
    """Microseconds as the unit has them, and none if they are 0."""
    whole, fraction = text.split(".")
    return whole if int(fraction) == 0 else whole + "." + {"ms": fraction[:3], "us": fraction, "ns": fraction + "000"}[unit]


def encodings_for(schema, rng):
    """A column's encoding by its path, for columns that are no dictionary; those of lists are left at PLAIN."""
    result = {}
    for field in schema:
        of, choices = field.type, []
        if of in (pa.int32(), pa.int64(), pa.uint32(), pa.uint64(), pa.date32()):
            choices = ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
        elif pa.types.is_string(of) or of == pa.binary():
            choices = ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
        elif of == pa.binary(5):
            choices = ["DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"]
        elif of in (pa.float32(), pa.float64()):
            choices = ["BYTE_STREAM_SPLIT"]
        elif of == pa.bool_():
            choices = ["RLE"]
        if choices and rng.random() < 0.8:
            result[field.name] = rng.choice(choices)
    return result


def write_table(rng, path):
    fields = [random_field(rng, f"c{i}", TOP + 1) for i in range(rng.randint(1, 6))]
    rows, nulls = rng.choice([1, 7, 100, 700]), rng.choice([0, 0.1, 0.5, 1])
    repeats = rng.choice([1, 1, 20])  # long runs
    columns = []
    for field in fields:
        values = []
        while len(values) < rows:
            values += [random_value(rng, field.type, field.nullable, nulls)] * repeats
        columns.append(pa.array(values[:rows], field.type))
    table = pa.table(columns, schema=pa.schema(fields))
    encodings = encodings_for(table.schema, rng) if rng.random() < 0.5 else {}
    dictionary = [field.name for field in fields if field.name not in encodings] if rng.random() < 0.6 else False
    options = dict(compression=rng.choice(CODECS), data_page_version=rng.choice(["1.0", "2.0"]), row_group_size=rng.choice([1, 13, 1000]) if rows < 300 else rng.choice([100, 1000]),
                   data_page_size=rng.choice([10, 1000, 1 << 20]), use_dictionary=dictionary, column_encoding=encodings or None, write_statistics=rng.random() < 0.5,
                   write_page_checksum=rng.random() < 0.5, dictionary_pagesize_limit=rng.choice([100, 1 << 20]), write_batch_size=rng.choice([1, 10, 1024]),
                   use_compliant_nested_type=rng.random() < 0.7, store_schema=True)
    if not any("time" in str(field.type) for field in fields) and rng.random() < 0.2:
        options["version"] = "1.0" if not any("uint32" in str(field.type) for field in fields) else "2.6"
    pq.write_table(table, path, **options)
    return options


def rows_by_pyarrow(path):
    table = pq.read_table(path, use_threads=False)
    types = {field.name: (field.type.value_type if pa.types.is_dictionary(field.type) else field.type) for field in table.schema}
    return [{name: as_json(value, types[name]) for name, value in row.items()} for row in table.to_pylist()]


def same(ours, theirs):
    return len(ours) == len(theirs) and all(json.dumps(a) == json.dumps(b) for a, b in zip(ours, theirs))


def compare(probe, tables, seed):
    different = unwritten = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(tables):
            path = pathlib.Path(folder, "table.parquet")
            try:
                options = write_table(random.Random(seed + number), path)
            except pa.ArrowException:  # pyarrow cannot write what it let us make
                unwritten += 1
                continue
            lines = subprocess.run([probe, path], capture_output=True, text=True, check=True, encoding="utf-8").stdout.split("\n")
            *ours, end = [json.loads(line) for line in lines if line]
            theirs = rows_by_pyarrow(path)
            if end != ["end", ""] or not same(ours, theirs):
                different += 1
                print(f"parquet_peers.py: table {seed + number}: {end[1] or 'other rows'}; {pq.read_schema(path).remove_metadata()}; {options}")
                for a, b in zip(ours, theirs):
                    if json.dumps(a) != json.dumps(b):
                        print(f"  {json.dumps(a)[:600]}\n  pyarrow: {json.dumps(b)[:600]}")
                        break
    print(f"parquet_peers.py: {tables} tables, {unwritten} that pyarrow cannot write, {different} different")
    return 1 if different or unwritten > tables // 10 else 0


def write_fixtures(folder):
    folder = pathlib.Path(folder)
    messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    chats = pa.table({"id": pa.array([1, 2, 3, 4], pa.int64()), "messages": pa.array([
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], [], None, [{"role": "user", "content": None}, None]], messages)})
    rng = random.Random(1)
    mixed = [(f"c{i}", of) for i, of in enumerate(PLAIN_TYPES)] + [
        ("lists", pa.list_(pa.list_(pa.int32()))), ("map", pa.map_(pa.string(), pa.int32())), ("struct", pa.struct([("a", pa.list_(pa.string())), ("b", pa.float64())]))]
    mixed = pa.table({name: pa.array([random_value(rng, of, True, 0.2) for _ in range(12)], of) for name, of in mixed})
    deltas = pa.table({"n": pa.array([i * i * (-1) ** i for i in range(300)], pa.int64()), "text": [f"prefix {i // 3}" for i in range(300)],
                       "tail": ["x" * (i % 5) for i in range(300)], "flag": [i % 7 == 0 for i in range(300)], "real": [i / 4 for i in range(300)]})
    encodings = {"n": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "tail": "DELTA_LENGTH_BYTE_ARRAY", "flag": "RLE", "real": "BYTE_STREAM_SPLIT"}
    for codec in CODECS:
        for version in "12":
            pq.write_table(chats, folder / f"chats_{codec.lower()}_v{version}.parquet", compression=codec, data_page_version=version + ".0", row_group_size=3)
    pq.write_table(mixed, folder / "mixed.parquet", row_group_size=5, write_page_checksum=True)
    pq.write_table(deltas, folder / "deltas.parquet", use_dictionary=False, column_encoding=encodings, data_page_size=200, write_batch_size=50)
    pq.write_table(chats, folder / "old_lists.parquet", use_compliant_nested_type=False, version="1.0")
    pq.write_table(pa.table({"when": pa.array([datetime.datetime(2024, 2, 29, 1, 2, 3, 456789), None], pa.timestamp("ns"))}), folder / "int96.parquet", use_deprecated_int96_timestamps=True)
    pq.write_table(chats, folder / "refused_brotli.parquet", compression="BROTLI")
    for path in folder.glob("[!r]*.parquet"):
        path.with_suffix(".jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows_by_pyarrow(path)))


if __name__ == "__main__":
    if sys.argv[1] == "--fixtures":
        write_fixtures(sys.argv[2])
    else:
        sys.exit(compare(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 300, int(sys.argv[3]) if len(sys.argv) > 3 else 0))
