#!/usr/bin/env python3
"""What runs with states and parameters on drives reach: of the drive, and of what is said before their first step.

usage: bench/drives.py throughput --folder FOLDER [--rounds 3] [--size 1GB]
       bench/drives.py predict --data FOLDER --folder FOLDER [--steps 6] [--only TEXT] [--rounds 1]

throughput: `tessera offload tune FOLDER` in turns with fio (direct, io_uring, the same blocks and number of reads and writes at a time, files of the
same size); prints the medians of each and the medians of what one is of the other in a round.

predict: jobs of `small` (58 M parameters, or 100 M and more with --wide) on one and two ranks, each with states, with states and parameters, and with
gradients on drives, after the backward and in it, with few tokens and many. Prints what each said a step would take, the median of its steps but the
first, and the median of the same job with nothing on drives, which ran just before. Exit code 1: a step takes 10 % more or less than was said.

Both write OUT.json. Figures are worth nothing while other programs run."""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

from origin import origin

STATES = {"parallel.offload_optimizer": "nvme"}
ALL = STATES | {"parallel.offload_params": "nvme", "offload.host_memory": 512}
GRADIENTS = STATES | {"parallel.offload_gradients": "nvme", "offload.host_memory": 512}
IN_BACKWARD = {"optimizer.in_backward": "true", "optimizer.max_grad_norm": 0}
AFTER = {}
WIDE = {"model.dim": 1024, "model.num_heads": 16, "model.num_kv_heads": 16, "model.ffn_dim": 2752, "model.num_layers": 8}
FEW, MANY = {"data.seq_len": 128, "train.global_batch": 2}, {"data.seq_len": 512, "train.global_batch": 16}
ENOUGH = MANY | {"train.global_batch": 48}
CHECKPOINTED = {"memory.checkpointing": "full"}
FP32 = {"precision.compute": "fp32"}
ONE_MICRO_BATCH_EACH = {"train.micro_batch": 4}
TWO_RANKS = {"parallel.num_ranks": 2, "parallel.threads_per_rank": 1}
SETTINGS = {
    "states, few tokens": [STATES, AFTER, FEW],
    "states, in the backward, few tokens": [STATES, IN_BACKWARD, FEW],
    "all, few tokens": [ALL, AFTER, FEW],
    "all, in the backward, few tokens": [ALL, IN_BACKWARD, FEW],
    "states, many tokens": [STATES, AFTER, MANY],
    "states, in the backward, many tokens": [STATES, IN_BACKWARD, MANY],
    "states, in the backward, enough tokens": [STATES, IN_BACKWARD, ENOUGH],
    "all, many tokens": [ALL, AFTER, MANY],
    "all, in the backward, many tokens": [ALL, IN_BACKWARD, MANY],
    "all, fp32, checkpointed": [ALL, FP32, CHECKPOINTED, MANY],
    "all, in the backward, checkpointed": [ALL, IN_BACKWARD, CHECKPOINTED, MANY],
    "gradients, four micro-batches": [GRADIENTS, ONE_MICRO_BATCH_EACH, MANY],
    "wide, states, few tokens": [WIDE, STATES, AFTER, FEW],
    "wide, all, in the backward, many tokens": [WIDE, ALL, IN_BACKWARD, CHECKPOINTED, MANY],
    "two ranks, states, few tokens": [TWO_RANKS, STATES, AFTER, FEW],
    "two ranks, all, in the backward, many tokens": [TWO_RANKS, ALL, IN_BACKWARD, CHECKPOINTED, MANY],
}


def report(options, rows):
    out = pathlib.Path(options.out or f"build/drives_{options.what}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(origin(f"bench/drives.py {options.what}") | {"rows": rows}, indent=1) + "\n")


def tuned(options):
    """{(block in KiB, depth): (read, write)} in GB/s."""
    text = subprocess.run([options.tessera, "offload", "tune", options.folder, "--size", options.size], check=True, capture_output=True, text=True).stdout
    rows = {}
    for size, unit, depth, read, write in re.findall(r"([\d.]+) ([KM])iB +(\d+) +([\d.]+) +([\d.]+)", text):
        rows[int(float(size) * (1024 if unit == "M" else 1)), int(depth)] = (float(read), float(write))
    return rows


def fio(options, block, depth, way):
    file = pathlib.Path(options.folder) / "drives_fio"
    try:
        text = subprocess.run(["fio", "--name=x", f"--filename={file}", f"--size={options.size[:-1]}", f"--rw={way}", f"--bs={block}k", "--ioengine=io_uring",
                               f"--iodepth={depth}", "--direct=1", "--output-format=json"], check=True, capture_output=True, text=True).stdout
        return json.loads(text)["jobs"][0][way]["bw_bytes"] / 1e9
    finally:
        if way == "read":
            file.unlink(missing_ok=True)


def throughput(options):
    rows = {}
    for _ in range(options.rounds):
        for (block, depth), ours in tuned(options).items():
            if depth != 32:
                continue
            write, read = (fio(options, block, depth, way) for way in ("write", "read"))
            rows.setdefault(block, []).append({"tune": ours, "fio": (read, write)})
    report(options, [{"block_kib": block, "queue_depth": 32, "rounds": rounds} for block, rounds in rows.items()])
    print(f"{'block, 32 at a time':<22}{'read':>8}{'fio':>8}{'of it':>8}{'write':>9}{'fio':>8}{'of it':>8}")
    for block, rounds in rows.items():
        texts = []
        for i in (0, 1):
            own, other = (statistics.median(each[name][i] for each in rounds) for name in ("tune", "fio"))
            ratio = statistics.median(each["tune"][i] / each["fio"][i] for each in rounds)
            texts.append(f"{own:>8.2f}{other:>8.2f}{ratio:>7.2f} x")
        print(f"{f'{block} KiB':<22}{' '.join(texts)}")
    return False


def run(options, keys):
    folder = pathlib.Path(options.folder) / "drives_run"
    shutil.rmtree(folder, ignore_errors=True)
    job = folder.with_suffix(".yaml")
    job.write_text("model: {preset: small}\n")
    base = {"data.train": options.data, "data.validation_fraction": 0, "parallel.placement": "full_shard", "parallel.num_ranks": 1,
            "parallel.threads_per_rank": 2, "precision.compute": "bf16", "train.steps": options.steps, "train.sample_tokens": 0, "train.run_dir": folder,
            "checkpoint.at_end": "false", "checkpoint.every": 0, "logging.tensorboard": "false", "logging.svg": "false", "logging.progress": "plain"}
    result = subprocess.run([options.tessera, "train", job, *(f"--{key}={value}" for key, value in (base | keys).items())], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"drives.py: {keys}: {result.stderr or result.stdout}")
    steps = [json.loads(line)["step_seconds"] for line in (folder / "metrics.jsonl").read_text().splitlines() if "step_seconds" in line]
    shutil.rmtree(folder)
    job.unlink()
    return result.stdout + result.stderr, steps[1:]


def seconds_of(text):
    """'1.2 s', '766 ms', '2 min 03 s'"""
    minutes = re.match(r"(\d+) min (\d+) s", text)
    if minutes:
        return 60 * int(minutes[1]) + int(minutes[2])
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]


def predict(options):
    rows, failed = [], False
    print(f"{'':<46}{'said':>8}{'took':>8}{'of it':>8}{'in memory':>11}{'of that':>9}", flush=True)
    for name, parts in SETTINGS.items():
        if options.only and options.only not in name:
            continue
        keys = {key: value for part in parts for key, value in part.items()}
        off = {key: value for key, value in keys.items() if "offload" not in key}
        rounds = []
        for _ in range(options.rounds):
            _, memory = run(options, off)
            text, drives = run(options, keys)
            said = re.search(r"a step takes about ([^:]*): ", text)
            rounds.append({"said": seconds_of(said[1]), "took": drives, "in_memory": memory, "line": said.string[said.start():].splitlines()[0]})
        said, took, memory = (statistics.median(values) for values in ([each["said"] for each in rounds], [t for each in rounds for t in each["took"]],
                                                                       [t for each in rounds for t in each["in_memory"]]))
        failed = failed or abs(took / said - 1) > 0.1
        rows.append({"name": name, "keys": keys, "rounds": rounds})
        print(f"{name:<46}{said:>8.2f}{took:>8.2f}{took / said:>7.2f} x{memory:>10.2f}{took / memory:>7.2f} x", flush=True)
    report(options, rows)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "predict"])
    parser.add_argument("--folder", required=True, help="on the drive")
    parser.add_argument("--data", help="folder of texts")
    parser.add_argument("--tessera", default="build/release/bin/tessera")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--size", default="1GB")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", help="settings whose name has it")
    parser.add_argument("--out")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.what == "throughput" else 1)
    if options.what == "predict" and not options.data:
        parser.error("--data: expected a folder of texts")
    return 1 if (throughput if options.what == "throughput" else predict)(options) else 0


if __name__ == "__main__":
    sys.exit(main())
