#!/usr/bin/env python3
"""Every recipe and preset of precision in recipes/tiny_llama.yaml: what it does to the loss, and what its emulation takes.

usage: bench/fp8.py losses --data FOLDER [--tessera PROGRAM] [--steps 500] [--rows 16] [--learning-rate 0.002] [--seeds 1 2 3] [--out build/fp8_losses]
       bench/fp8.py speed --data FOLDER [--tessera PROGRAM] [--steps 20] [--rows 16] [--pairs 5] [--out build/fp8_speed]

One rank, one thread, the same data, weights and order of batches in every run. --only: some of the settings.

losses: beside bf16's of the same seed (of weights and of the order of rows), step by step, a mean over the seeds; runs that are done already are not
repeated. Writes OUT.json (every loss, the table) and OUT.svg, and prints the table: of each setting the loss beside bf16's as a mean over the last
100 steps, and that of each seed, in the window of 50 steps where it is furthest off, and as a line fitted to all windows (percent in 100 steps,
with its standard error). Exit code 1: a mean is more than 1 % above bf16's,
or grows by more than 0.1 % in 100 steps and three standard errors. fp32 is among the settings: what it is off says how much runs
differ that no precision spoils. At the recipe's learning rate that is percents: runs part, and a run of each decides nothing. At 0.0003 they do not,
and what is off is the precision's.

speed: processor seconds of a step beside those of float32, runs taking turns; what a run takes before its steps is measured by a run of one
step and left out. Seconds of a processor, not of a clock, so that other programs count for little. Writes OUT.json and prints medians. Exit
code 1: a recipe of `precision.matmul` has less than 0.5 times the speed of float32."""
import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

from origin import origin

BF16 = {"precision.compute": "bf16"}
RECIPES = ["fp8_tensor", "fp8_delayed", "fp8_row", "fp8_row_wgrad16", "fp8_block", "mxfp8"]
PRESETS = ["fp16_amp", "te", "msamp_o1", "msamp_o2", "msamp_o3"]
SETTINGS = {"bf16": BF16, "fp32": {}}
SETTINGS |= {name: BF16 | {"precision.matmul": name, "precision.fp8_pad": "true"} for name in RECIPES}
SETTINGS |= {name: {"precision.preset": name} | ({} if name == "fp16_amp" else {"precision.fp8_pad": "true"}) for name in PRESETS}
WINDOW, LAST = 50, 100


def train(options, settings, steps, run, progress="plain"):
    keys = {"data.train": options.data, "parallel.num_ranks": 1, "parallel.threads_per_rank": 1, "train.steps": steps,
            "train.global_batch": options.rows, "train.run_dir": run, "train.sample_tokens": 0, "checkpoint.every": 0,
            "checkpoint.at_end": "false", "checkpoint.keep_last": 0, "checkpoint.overwrite": "false", "schedule.warmup_steps": min(5, steps - 1),
            "logging.progress": progress, "logging.tensorboard": "false"}
    if options.learning_rate:
        keys["optimizer.learning_rate"] = options.learning_rate
    if progress == "plain":
        keys["logging.every"] = 100
    keys |= settings
    subprocess.run([options.tessera, "train", "recipes/tiny_llama.yaml", *(f"--{key}={value}" for key, value in keys.items())], check=True,
                   stdout=subprocess.DEVNULL if progress == "none" else None)


def losses_of(options, name, seed, folder):
    """The losses of a run, by step."""
    run = folder / f"{name}_{seed}"
    if not (run / "summary.json").exists():
        train(options, SETTINGS[name] | {"model.seed": seed, "data.seed": seed}, options.steps, run)
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def windows(values):
    return [statistics.fmean(values[i:i + WINDOW]) for i in range(0, len(values) - WINDOW + 1, WINDOW)]


def line_through(values):
    """Slope and its standard error, by window."""
    n, mean = len(values), statistics.fmean(values)
    xs = [i - (n - 1) / 2 for i in range(n)]
    square = sum(x * x for x in xs)
    slope = sum(x * (v - mean) for x, v in zip(xs, values)) / square
    rest = sum((v - mean - slope * x) ** 2 for x, v in zip(xs, values))
    return slope, math.sqrt(rest / max(1, n - 2) / square)


def compared(losses, beside):
    """Percent above `beside`, of each seed's steps."""
    of_seeds = [[100 * (a / b - 1) for a, b in zip(*both)] for both in zip(losses, beside)]
    off = [statistics.fmean(step) for step in zip(*of_seeds)]
    by_window = windows(off)
    slope, error = line_through(by_window)
    per_hundred = 100 / WINDOW
    return {"last": statistics.fmean(off[-LAST:]), "last_of_seeds": [statistics.fmean(own[-LAST:]) for own in of_seeds],
            "worst": max(by_window, key=abs), "slope": slope * per_hundred, "slope_error": error * per_hundred, "windows": by_window,
            "last_loss": statistics.fmean(statistics.fmean(own[-LAST:]) for own in losses)}


def picture(table, steps):
    """Percent above bf16's loss over the steps, a line for each setting."""
    left, right, top, bottom = 60, 700, 50, 400
    all_percents = [percent for row in table.values() for percent in row["windows"]]
    low, high = min(-1.2, *all_percents), max(1.2, *all_percents)
    x = lambda window: left + (window + 0.5) * WINDOW / steps * (right - left)
    y = lambda percent: bottom - (percent - low) / (high - low) * (bottom - top)
    colours = ["#2a78d6", "#1baf7a", "#d9822b", "#b04ac2", "#d64550", "#7a8b1f", "#0f9fb3", "#8a5a3b", "#5566aa", "#c2577f", "#4f9d3a", "#888888"]
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 450" role="img">', "<title>Loss in 8 bits beside bf16's</title>",
           "<style>text{font:13px sans-serif;fill:#555}.title{font-size:16px}path{fill:none;stroke:#8884}path.line{stroke-width:2}"
           "path.bound{stroke:#8888;stroke-dasharray:5 4}</style>",
           '<rect width="860" height="450" fill="#fff"/>',
           f'<text class="title" x="24" y="28">Loss above that of bf16, in percent: means of {WINDOW} steps</text>']
    for percent in (half / 2 for half in range(math.ceil(2 * low), math.floor(2 * high) + 1)):
        kind = ' class="bound"' if abs(percent) == 1 else ""
        out.append(f'<path{kind} d="M{left} {y(percent):.0f}H{right}"/><text x="{left - 8}" y="{y(percent) + 4:.0f}" text-anchor="end">{percent:g}</text>')
    for step in range(0, steps + 1, 100):
        out.append(f'<text x="{left + step / steps * (right - left):.0f}" y="{bottom + 22}" text-anchor="middle">{step}</text>')
    out.append(f'<text x="{(left + right) / 2:.0f}" y="{bottom + 42}" text-anchor="middle">step</text>')
    for i, (name, row) in enumerate(table.items()):
        points = "L".join(f"{x(j):.1f} {y(v):.1f}" for j, v in enumerate(row["windows"]))
        out.append(f'<path class="line" style="stroke:{colours[i]}" d="M{points}"/>')
        out.append(f'<text x="{right + 16}" y="{top + 24 * i + 4}" style="fill:{colours[i]}">{name}</text>')
    return "\n".join(out + ["</svg>", ""])


def report(out, options, contents):
    what = f"bench/fp8.py {options.what} --data LIBTORCH/include --steps {options.steps} --rows {options.rows}"
    if options.learning_rate:
        what += f" --learning-rate {options.learning_rate}"
    if options.what == "losses":
        what += f" --seeds {' '.join(map(str, options.seeds))}"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(origin(what) | contents, separators=(",", ":")) + "\n")


def compare_losses(options, out):
    names = [name for name in SETTINGS if not options.only or name in ("bf16", *options.only)]
    losses = {name: [losses_of(options, name, seed, out) for seed in options.seeds] for name in names}
    table = {name: compared(own, losses["bf16"]) for name, own in losses.items() if name != "bf16"}
    report(out, options, {"table": table, "losses": {name: [[round(value, 5) for value in seed] for seed in own] for name, own in losses.items()}})
    out.with_suffix(".svg").write_text(picture(table, options.steps))
    bf16 = statistics.fmean(statistics.fmean(own[-LAST:]) for own in losses["bf16"])
    print(f"bf16: {bf16:.4f} in the last {LAST} steps, seeds {options.seeds}")
    print(f"{'':<16}{'loss':>8}{'last ' + str(LAST):>12}{'worst window':>14}{'in 100 steps':>22}  of seeds")
    failed = False
    for name, row in table.items():
        grows = row["slope"] > max(0.1, 3 * row["slope_error"])
        failed = failed or row["last"] > 1 or grows
        print(f"{name:<16}{row['last_loss']:>8.4f}{row['last']:>+10.2f} %{row['worst']:>+12.2f} %{row['slope']:>+12.3f} +- {row['slope_error']:.3f} %"
              f"  {' '.join(f'{percent:+.2f}' for percent in row['last_of_seeds'])}{'  GROWS' if grows else ''}")
    return failed


def processor_seconds(options, settings, steps, folder):
    before = os.times()
    shutil.rmtree(folder, ignore_errors=True)
    train(options, settings, steps, folder, progress="none")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def compare_speed(options, out):
    names = ["bf16", *RECIPES, *PRESETS]
    settings = SETTINGS | {f"{name}_fp32": {"precision.matmul": name, "precision.fp8_pad": "true"} for name in RECIPES}
    names = [f"{name}_fp32" for name in RECIPES] + names
    pairs = {name: [] for name in options.only or names}
    for _ in range(options.pairs):
        for name in pairs:
            step = {}
            for own in ("fp32", name):
                long, short = (processor_seconds(options, settings[own], steps, out) for steps in (options.steps + 1, 1))
                step[own] = (long - short) / options.steps
            pairs[name].append((step["fp32"], step[name]))
    shutil.rmtree(out, ignore_errors=True)
    report(out, options, {"processor_seconds_of_a_step": {"fp32_and": pairs}})
    print(f"{'':<22}{'fp32':>9}{'this':>9}{'speed':>8}  processor seconds of a step, medians of {options.pairs} pairs")
    failed = False
    for name, own in pairs.items():
        speed = statistics.median(base / this for base, this in own)
        failed = failed or (name.endswith("_fp32") and speed < 0.5)
        print(f"{name:<22}{statistics.median(base for base, _ in own):>9.3f}{statistics.median(this for _, this in own):>9.3f}{speed:>8.2f}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["losses", "speed"])
    parser.add_argument("--data", required=True, help="folder of C++ sources, such as LibTorch's include")
    parser.add_argument("--tessera", default="build/release/bin/tessera")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rows", type=int, help="of 256 tokens, in a step")
    parser.add_argument("--learning-rate", type=float, help="another than the recipe's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], metavar="SETTING", help="such as fp8_row; of speed fp8_row_fp32, too: with float32 beside it")
    parser.add_argument("--out")
    options = parser.parse_args()
    losses = options.what == "losses"
    options.steps = options.steps or (500 if losses else 20)
    options.rows = options.rows or 16
    out = pathlib.Path(options.out or f"build/fp8_{options.what}")
    return 1 if (compare_losses if losses else compare_speed)(options, out) else 0


if __name__ == "__main__":
    sys.exit(main())
