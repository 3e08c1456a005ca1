"""Runs what the documentation shows: every block of the pages, of leading comments and of --help.

A page's blocks are fenced, and the words behind the fence say what is done with one:

    ```sh run                the commands end with 0; one after the other in a folder of the page's own (scratch.sh fills it)
    ```sh exits 2            they end with that code
    ```text output           stands in what the block before printed: a number matches any, with any unit; `..` any text, a line `..` any lines
    ```yaml job              `tessera train --print-config` takes it
    ```yaml writes FILE      becomes that file of the page's folder
    ```cpp compiled          becomes a function of one source that the target tessera_docs_blocks compiles (--cpp); a comment
                             `<!-- given: PARAMETERS -->` before it names its parameters, given.h has types and includes
    ```cpp from FILE         each line stands in that file, in this order; `..` leaves out lines
    ```LANGUAGE not run: REASON
    ```sh run by PATH: REASON    that script runs it with --keep or --show; so it does with an output that follows

A block of an indent, or with other words, is an error. `<!-- blocks: run by PATH, REASON -->` on a page: that script runs its blocks with
--keep. Commands in the leading comments of examples and recipes, and those of --help, are the lines that begin with a program's name; what is
done with them is said by the tables below.

usage: blocks.py BUILD                      all pages, comments and helps; how many blocks, and what became of them
       blocks.py BUILD --keep FOLDER PAGE   one page's, in FOLDER, empty but for what it makes itself
       blocks.py BUILD --show FOLDER PAGE   the same, with each command and what it prints
       blocks.py --cpp FILE                 writes the source of the blocks that are compiled
Run from the root of a checkout."""
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(map(str, pathlib.Path("docs").glob("*.md"))), "fuzz/README.md", "bench/README.md",
         *sorted(map(str, pathlib.Path("tests").glob("*/README.md")))]
SOURCES = [*sorted(map(str, pathlib.Path("examples").rglob("*.cpp"))), *sorted(map(str, pathlib.Path("recipes").glob("*.yaml")))]
FENCE = re.compile(r"(```+)(.*)")
SECONDS = 120  # of one block
UNIT = r"(?:\s+(?:us|ms|s|B|KiB|MiB|GiB)\b)?"  # 2.7 s of one machine are 712 ms of another

# Commands of leading comments and of --help that are not run here: a pattern of the command, and why.
NOT_RUN = [
    (r"-n 8 --nnodes=2|node-rank", "takes two machines; tests/integration/two_machines.sh runs such"),
    (r"^(\S*/)?(digits|own_model|tensor_parallel|pipeline|causal_lm|nlp_example|accelerated_loop)\b|launch.*(digits|own_model|own_module|"
     r"tensor_parallel|pipeline|causal_lm|nlp_example|accelerated_loop)", "takes long; the tests example_* and tessera_program_test run it"),
    (r"^(checkpointing|ddp_comm_hook|profiler|tracking)\b|fsdp_with_peak_mem_tracking", "takes long; the tests example_* run it"),
    (r"out_of_tree|CMAKE_PREFIX_PATH", "compiles; tests/integration/install.sh runs it"),
    (r"^tessera config$|^tessera config --config_file", "asks at a terminal; tessera_program_test answers"),
    (r"\btrain\.py|eight_gpus", "is a script of Python; tests/integration/accelerate_script.sh runs one"),
    (r"^tessera push", "needs the network; tessera_program_test pushes to a server of its own"),
    (r"fpath", "writes into a folder of zsh"),
    (r"^tessera train tiny_llama", "takes an installed program; tests/integration/small_package.sh runs it"),
    (r"^tessera test", "takes long; tessera_program_test runs it"),
]


class Block:
    def __init__(self, page, line, language, words, text, given):
        self.page, self.line, self.language, self.words, self.text, self.given = page, line, language, words, text, given
        self.name = f"{page}:{line}"


class Broken(Exception):
    pass


def blocks_of(page):
    """The fenced blocks of a page, and who else runs them, if anybody."""
    blocks, inside, given, runner = [], None, "", None
    lines = pathlib.Path(page).read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if inside:
            if line == inside[0]:
                blocks.append(Block(page, inside[1], *inside[2], "\n".join(inside[3]), given))
                inside, given = None, ""
            else:
                inside[3].append(line)
        elif match := FENCE.fullmatch(line):
            language, _, words = match[2].partition(" ")
            inside = (match[1], number, (language, words), [])
        elif match := re.fullmatch(r"<!-- given: (.*) -->", line):
            given = match[1]
        elif match := re.fullmatch(r"<!-- blocks: run by (\S+), (.*) -->", line):
            runner = (match[1], match[2])
        elif line.startswith("    ") and lines[number - 2] == "" and not in_list(lines, number - 2):
            raise Broken(f"{page}:{number}: expected a fenced block that says what is done with it, got an indented one")
    if inside:
        raise Broken(f"{page}:{inside[1]}: expected an end of the block")
    return blocks, runner


def in_list(lines, index):
    """Whether the paragraph before a blank line is of a list."""
    while index > 0 and lines[index] == "":
        index -= 1
    while index > 0 and lines[index].startswith("  "):
        index -= 1
    return bool(re.match(r"\s*(-|\d+\.) ", lines[index]))


def kind_of(block):
    words = block.words
    if match := re.fullmatch(r"not run: (.+)", words):
        return "marked", match[1]
    if match := re.fullmatch(r"run by (\S+): (.+)", words):
        if not pathlib.Path(match[1]).exists():
            raise Broken(f"{block.name}: expected a script that runs it, got {match[1]}")
        return "by", match[1] + ": " + match[2]
    kinds = {"run": "run", "output": "output", "job": "job", "compiled": "compiled"}
    if words in kinds:
        return kinds[words], None
    if match := re.fullmatch(r"(exits|writes|from) (\S+)", words):
        return match[1], match[2]
    raise Broken(f"{block.name}: expected words that say what is done with the block, got '```{block.language} {words}'")


def pattern_of(shown):
    """A regular expression for what was shown."""
    parts = []
    for line in shown.strip("\n").split("\n"):
        if line.strip() == "..":
            parts.append(r"(?:.*\n)*?")
            continue
        line = re.sub(r"\s+", " ", line.rstrip())
        words = re.split(rf"(\.\.|\d[\d.,:]*(?:e[-+]?\d+)?{UNIT}|[ ])", line)
        parts.append("".join(".*" if word == ".." else rf"[-+]?[\d.,:]+(?:e[-+]?\d+)?{UNIT}" if re.match(r"\d", word) else r"\s+" if word == " " else
                             re.escape(word) for word in words) + r"[ \t]*\n")
    return re.compile("^" + "".join(parts), re.M)


class Folder:
    """Where a page's commands run, one after the other; directory and variables stay from one to the next."""

    def __init__(self, path, build, show=False):
        self.path, self.build, self.show = path, build, show
        self.state = pathlib.Path(tempfile.mkdtemp())
        self.printed, self.count = "", 0

    def run(self, command):
        script = (f'trap \'export -p >"{self.state}/variables"; pwd >"{self.state}/directory"\' EXIT\n'
                  f'if [ -f "{self.state}/variables" ]; then . "{self.state}/variables"; cd "$(cat "{self.state}/directory")"; fi\n'
                  f'set -eu\n{command}\n')
        environment = {"PATH": f"{self.build}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": f"{self.path}/home", "HF_HOME": f"{self.path}/hub",
                       "HF_HUB_OFFLINE": "1", "TESSERA": str(pathlib.Path.cwd()), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        if "CMAKE_GENERATOR" in os.environ:
            environment["CMAKE_GENERATOR"] = os.environ["CMAKE_GENERATOR"]
        with subprocess.Popen(["bash", "-c", script], cwd=self.path, env=environment, stdin=subprocess.DEVNULL, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as running:
            try:
                printed, _ = running.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                raise
        self.printed = printed if printed.endswith("\n") else printed + "\n"
        return running.returncode

    def must_end_with(self, command, code):
        try:
            got = self.run(command)
        except subprocess.TimeoutExpired:
            raise Broken(f"expected an end within {SECONDS} s of\n{command}") from None
        if self.show:
            print(f"$ {command.strip()}\n{self.printed}", flush=True)
        if got != code:
            raise Broken(f"expected exit code {code}, got {got} of\n{command}\nwhich printed\n{self.printed[-3000:]}")

    def do(self, block):
        kind, value = kind_of(block)
        if kind in ("run", "exits", "by"):
            self.must_end_with(block.text, int(value or 0) if kind == "exits" else 0)
        elif kind == "output":
            if not pattern_of(block.text).search(self.printed):
                raise Broken(f"expected\n{block.text}\nin what the block before printed:\n{self.printed[-6000:]}")
        elif kind == "writes":
            (self.path / value).write_text(block.text + "\n")
        elif kind == "job":
            self.count += 1
            file = f"block_{self.count}.yaml"
            (self.path / file).write_text(block.text + "\n")
            self.must_end_with(f"tessera train {file} --print-config" + ("" if "train: [" in block.text else " --data.train=[notes.txt]"), 0)
        elif kind == "from":
            check_excerpt(block.text, value)


def check_excerpt(text, file):
    """Each line in the file, one after the other; the indentation does not matter."""
    lines = [line.strip() for line in pathlib.Path(file).read_text().split("\n")]
    at, near = 0, False
    for line in (line.strip() for line in text.split("\n")):
        if line == "..":
            near = False
        elif line:
            while at < len(lines) and lines[at] == "":
                at += 1
            place = lines.index(line, at) if line in lines[at:] else None
            if place is None or (near and place != at):
                raise Broken(f"expected lines of {file}, got '{line}'")
            at, near = place + 1, True


def commands_of_source(file):
    """Those that its leading comment shows, with their continuations."""
    mark = "#" if file.endswith(".yaml") else "//"
    found = []
    for number, line in enumerate(pathlib.Path(file).read_text().split("\n"), 1):
        if not line.startswith(mark):
            break
        if match := re.match(mark + r"\s{2,}(\S.*)", line):
            found.append((f"{file}:{number}", re.sub(r"\s{2,}# .*", "", match[1])))
    return found


def commands_of_help(tessera):
    """The examples of each subcommand's --help."""
    def of(words):
        text = subprocess.run([tessera, *words, "--help"], text=True, stdout=subprocess.PIPE, check=True).stdout
        found, shown = [], re.search(r"^Examples?:\n((?:  .*\n)+)", text + "\n", re.M)
        for line in re.sub(r"\\\n\s*", "", shown[1] if shown else "").split("\n"):
            if line.strip():
                found.append((f"tessera {' '.join([*words, '--help'])}", re.split(r"\s{3,}", line.strip())[0]))
        listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.M)
        for name in re.findall(r"^  (\S+)", listed[1] if listed else "", re.M):
            found += of([*words, name])
        return found
    return list(dict.fromkeys(of([])))


def do_commands(folder, commands, counts):
    """Those of one comment or of --help, each by itself; those that are not run are counted by reason."""
    failures = []
    for place, command in commands:
        reason = next((reason for pattern, reason in NOT_RUN if re.search(pattern, command)), None)
        counts["marked" if reason else "run"] += 1
        if reason:
            counts[f"not run: {reason}"] += 1
            continue
        try:
            folder.must_end_with(command, 0)
        except Broken as broken:
            failures.append(f"{place}: {broken}")
    return failures


def do_page(page, folder, elsewhere):
    """Its blocks in order; the first that fails ends the page, since what follows stands on it."""
    counts = collections.Counter()
    left_out = ""  # by whom and why the last command is run elsewhere
    try:
        blocks, runner = blocks_of(page)
        for block in blocks:
            kind, value = kind_of(block)
            if kind in ("run", "exits", "by"):
                left_out = value if kind == "by" and not elsewhere else ""
            if left_out and kind in ("by", "output"):
                counts["elsewhere"] += 1
                counts[f"run by {left_out}"] += 1
                continue
            counts["run" if kind == "by" else kind] += 1
            if kind == "marked":
                counts[f"not run: {value}"] += 1
            elif runner and not elsewhere and kind not in ("compiled", "from"):
                if not pathlib.Path(runner[0]).exists():
                    raise Broken(f"{page}: expected a script that runs its blocks, got {runner[0]}")
                counts[kind] -= 1
                counts["elsewhere"] += 1
                counts[f"run by {runner[0]}: {runner[1]}"] += 1
            elif kind != "compiled":
                try:
                    folder.do(block)
                except Broken as broken:
                    raise Broken(f"{block.name}: {broken}") from None
    except Broken as broken:
        return counts, [str(broken)]
    return counts, []


def write_cpp(file):
    """One function for each block that is compiled."""
    text = '#include "tests/docs/given.h"\n'
    number = 0
    for page in PAGES:
        for block in blocks_of(page)[0] if pathlib.Path(page).exists() else []:
            if kind_of(block)[0] == "compiled":
                number += 1
                text += f'\n#line {block.line + 1} "{pathlib.Path(page).resolve()}"\nvoid block_{number}({block.given}) {{\n{block.text}\n}}\n'
    pathlib.Path(file).write_text(text)


def main(arguments):
    if arguments[:1] == ["--cpp"]:
        return write_cpp(arguments[1])
    build = pathlib.Path(arguments[0]).resolve()
    if arguments[1:2] in (["--keep"], ["--show"]):
        folder = Folder(pathlib.Path(arguments[2]), build, show=arguments[1] == "--show")
        counts, failures = do_page(arguments[3], folder, elsewhere=True)
        print(f"blocks.py: {arguments[3]}: {sum(counts[kind] for kind in ('run', 'exits', 'output', 'writes'))} blocks run")
        return fail(failures)
    template = pathlib.Path(tempfile.mkdtemp(prefix="tessera_docs_"))
    only = arguments[1:]
    try:
        subprocess.run(["sh", "tests/docs/scratch.sh", build, template / "made"], check=True)

        def folder(name):
            path = template / re.sub(r"\W+", "_", name)
            shutil.copytree(template / "made", path, symlinks=True)
            return Folder(path, build)

        def page_of(page):
            return page, *do_page(page, folder(page), elsewhere=False)

        def commands(name, listed):
            counts = collections.Counter()
            return name, counts, do_commands(folder(name), listed, counts)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(page_of, page) for page in PAGES if pathlib.Path(page).exists() and (not only or page in only)]
            if not only or "comments" in only:
                jobs.append(pool.submit(commands, "comments", [command for file in SOURCES for command in commands_of_source(file)]))
            if not only or "--help" in only:
                jobs.append(pool.submit(commands, "--help", commands_of_help(build / "bin/tessera")))
            results = [job.result() for job in jobs]
    finally:
        shutil.rmtree(template)
    return report(results)


def report(results):
    total, failures = collections.Counter(), []
    print("page: run or checked, compiled, marked, run by another test")
    for name, counts, broken in results:
        total += counts
        failures += broken
        done = sum(counts[kind] for kind in ("run", "exits", "output", "job", "writes", "from"))
        print(f"  {name}: {done}, {counts['compiled']}, {counts['marked']}, {counts['elsewhere']}")
    done = sum(total[kind] for kind in ("run", "exits", "output", "job", "writes", "from"))
    print(f"blocks.py: {done + total['compiled'] + total['marked'] + total['elsewhere']} blocks: {done} run or checked, {total['compiled']} compiled, "
          f"{total['elsewhere']} run by another test, {total['marked']} marked")
    for reason, count in sorted(total.items()):
        if ": " in reason:
            print(f"  {count} {reason}")
    return fail(failures)


def fail(failures):
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


sys.exit(main(sys.argv[1:]))
