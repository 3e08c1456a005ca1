"""Tokens a second of tessera_tokenizer_bench beside the packages `tokenizers` and (where it is installed) `tiktoken`, on one text, in turn.

usage: peers/tokenizer_speed.py BENCH TOKENIZER_FOLDER TEXT [--runs N] [--threads 1,2] [--out FILE]; TOKENIZER_FOLDER has a tokenizer.json
(peers/tokenizer_vocabulary.py makes two). Prints a table of medians; the file has every run. CPU seconds stand beside, for machines that others
use, too."""
import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def texts_of(path):
    everything, texts, at = pathlib.Path(path).read_bytes(), [], 0
    while at < len(everything):
        end = everything.find(b"\n", at + 10000) + 1 or len(everything)
        if len(everything) - at < 10000:
            end = len(everything)
        texts.append(everything[at:end].decode())
        at = end
    return texts


def timed(encode):
    """Tokens, seconds and CPU seconds of a function that returns a list for each text."""
    before, start = time.process_time(), time.perf_counter()
    encoded = encode()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - before
    return sum(len(each) for each in encoded), seconds, cpu_seconds


def of_tokenizers(folder, text, _):
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    texts = texts_of(text)
    return timed(lambda: tokenizer.encode_batch_fast(texts, add_special_tokens=False))


def byte_of_letter():
    """GPT-2's letters for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def of_tiktoken(folder, text, threads):
    import tiktoken
    state = json.loads(pathlib.Path(folder, "tokenizer.json").read_text())
    letters = byte_of_letter()
    special = {token["content"]: token["id"] for token in state["added_tokens"]}
    ranks = {bytes(letters[letter] for letter in token): rank for token, rank in state["model"]["vocab"].items() if token not in special}
    steps = state["pre_tokenizer"].get("pretokenizers", [])
    expression = next((step["pattern"]["Regex"] for step in steps if step["type"] == "Split"), GPT2)
    encoding = tiktoken.Encoding("measured", pat_str=expression, mergeable_ranks=ranks, special_tokens=special)
    texts = texts_of(text)
    return timed(lambda: encoding.encode_ordinary_batch(texts, num_threads=int(threads)))


def run_once(options, name, threads):
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true" if threads != "1" else "false"}
    command = [options.bench, options.folder, options.text, threads]
    if name != "tessera":
        command = [sys.executable, __file__, "--one", name, options.folder, options.text, threads]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
    return {"who": name, "threads": int(threads), "tokens": int(done[0]), "seconds": float(done[1]), "cpu_seconds": float(done[2])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench"), parser.add_argument("folder"), parser.add_argument("text")
    parser.add_argument("--runs", type=int, default=5), parser.add_argument("--threads", default="1,2"), parser.add_argument("--out")
    options = parser.parse_args()
    names = ["tessera", "tokenizers"] + (["tiktoken"] if importlib.util.find_spec("tiktoken") else [])
    versions = {name: importlib.metadata.version(name) for name in names[1:]}
    runs = [run_once(options, name, threads) for _ in range(options.runs) for threads in options.threads.split(",") for name in names]
    # tiktoken merges whatever pair is a token; where a vocabulary has not all such merges, its ids are others.
    if len({run["tokens"] for run in runs if run["who"] != "tiktoken"}) != 1:
        sys.exit(f"different numbers of tokens: {runs}")
    size = os.path.getsize(options.text)
    print(f"{runs[0]['tokens']} tokens of {size / 1e6:.1f} MB; million tokens a second, medians of {options.runs}; {versions}")
    for threads in options.threads.split(","):
        for name in names:
            mine = [run for run in runs if run["who"] == name and run["threads"] == int(threads)]
            by_clock, by_cpu = (statistics.median(run["tokens"] / run[key] for run in mine) / 1e6 for key in ("seconds", "cpu_seconds"))
            print(f"  {threads} threads  {name:12} {by_clock:7.2f}  by CPU seconds {by_cpu:7.2f}  tokens {mine[0]['tokens']}")
    if options.out:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
        pathlib.Path(options.out).write_text(json.dumps({"machine": machine, "versions": versions, "text_bytes": size, "runs": runs}, indent=1) + "\n")


if len(sys.argv) > 1 and sys.argv[1] == "--one":
    print(*{"tokenizers": of_tokenizers, "tiktoken": of_tiktoken}[sys.argv[2]](*sys.argv[3:]))
else:
    main()
