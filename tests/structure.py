"""The structure that docs/architecture.md promises: run from the root of a checkout.

- A source or header of a folder includes folders of smaller rows of the table, those that its own row names and what these name; those
  that are without LibTorch include none of it. Tests and benchmarks may include more.
- No source or header has more than 400 lines, no function more than 60, but those that are tables. Tests are not counted.

usage: structure.py; prints each line that breaks a rule, and ends with 1 if there is one."""
import pathlib
import re
import sys

TABLES = {
    "tessera/config/accelerate/deepspeed_keys.cpp",  # each key of DeepSpeed, with what becomes of it
    "tessera/config/fields.cpp",  # each key of a job file
    "tessera/models/llama/spec.cpp",  # presets
    "tessera/text/character_sets.cpp",  # ranges of characters
    "tessera/estimate/known_models.cpp",  # each model whose shape is known by its name
}
MAX_LINES, MAX_FUNCTION_LINES = 400, 60
LIBTORCH = re.compile(r'#include [<"](torch|ATen|c10)/')

found = 0


def broken(path, line, text):
    global found
    found += 1
    print(f"{path}:{line}: {text}")


class Row:
    def __init__(self, number, names, libtorch):
        self.number, self.names, self.libtorch = int(number), [name.strip() for name in names.split(",")], libtorch


rows = {}
for line in pathlib.Path("docs/architecture.md").read_text().splitlines():
    if match := re.fullmatch(r"\| (\d) \| `([a-z/]+)/` \| .* \| ([^|]*) \| ([^|]*) \|", line):
        rows[match[2]] = Row(match[1], match[3], match[4])
for folder, row in rows.items():
    if row.names == ["all above"]:
        row.names = [name for name, other in rows.items() if other.number < row.number]
    row.names = [name for name in row.names if name != "-"]
    for name in row.names:
        if name not in rows or rows[name].number >= row.number:
            broken("docs/architecture.md", 1, f"{folder}: expected a folder of a smaller row, got {name}")


def reach(folder):
    """The folder and all that it may include."""
    names = {folder}
    for name in rows[folder].names:
        names |= reach(name)
    return names


SPEC_SOURCES = re.search(r"tessera_models_spec\s+SOURCES (.*?)\s+DEPS", pathlib.Path("tessera/models/CMakeLists.txt").read_text(), re.S)
SPEC_STEMS = {source.removesuffix(".cpp") for source in SPEC_SOURCES[1].split()} | {"families"}


def folder_of(path):
    """The innermost folder of the table that a path below tessera/ is in; models/spec is what tessera_models_spec lists."""
    path = pathlib.PurePath(path)
    in_models = str(path.with_suffix("")).removeprefix("models/")
    if in_models in SPEC_STEMS or in_models.endswith(("/spec", "/shape")):
        return "models/spec"
    return next((str(parent) for parent in path.parents if str(parent) in rows), None)


def check_includes(path, lines):
    folder = folder_of(path.relative_to("tessera"))
    if folder is None:
        return broken(path, 1, "its folder has no row in docs/architecture.md")
    may_include = reach(folder)
    for number, line in enumerate(lines, 1):
        if rows[folder].libtorch == "no" and LIBTORCH.match(line):
            broken(path, number, f"{folder} is without LibTorch")
        match = re.match(r'#include "tessera/(.*/.*)"', line)
        if match and folder_of(match[1]) not in may_include:
            broken(path, number, f"{folder} may not include {folder_of(match[1]) or match[1]}")


def check_functions(path, lines):
    """Functions as clang-format lays them out: they begin and end in the first column."""
    begin, inside = None, False
    for number, line in enumerate(lines, 1):
        if line.startswith(("namespace", "}  // namespace", "#", "//")) or (not line and not inside):
            begin, inside = None, False
        elif line.startswith("}"):
            if line == "}" and begin and number - begin >= MAX_FUNCTION_LINES:
                broken(path, begin, f"a function of {number - begin + 1} lines, expected at most {MAX_FUNCTION_LINES}")
            begin, inside = None, False
        elif line and not line.startswith(" "):
            begin = begin or number
            inside = inside or line.endswith(("{", "(", ","))
            if line.endswith(";") and not inside:
                begin = None


for path in sorted(pathlib.Path("tessera").rglob("*")):
    is_test = path.stem.endswith(("_test", "_bench")) or path.stem.startswith("testing")
    if path.suffix not in (".h", ".cpp", ".cu") or is_test:
        continue
    lines = path.read_text().splitlines()
    check_includes(path, lines)
    if str(path) not in TABLES:
        if len(lines) > MAX_LINES:
            broken(path, 1, f"{len(lines)} lines, expected at most {MAX_LINES}")
        check_functions(path, lines)
for path in TABLES:
    if not pathlib.Path(path).exists():
        broken(path, 1, "no such table")
sys.exit(1 if found else 0)
