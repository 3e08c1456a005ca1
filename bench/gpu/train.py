#!/usr/bin/env python3
"""Trains with `tessera` on this machine's GPU and gives medians of steps, losses and what a step's time goes to.

    python3 bench/gpu/train.py --bin FOLDER --out FOLDER [JOB ..]
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy

# What all jobs have; a job's own settings go before.
COMMON = {
    "data.format": "tokens", "data.token_dtype": "uint32", "data.validation_fraction": 0, "data.shuffle": "false",
    "schedule.type": "constant", "parallel.num_ranks": 1, "parallel.backend": "nccl",
    "checkpoint.at_end": "false", "train.sample_tokens": 0, "logging.tensorboard": "false", "logging.svg": "false",
    "logging.progress": "plain",
}
BF16 = {"precision.compute": "bf16", "precision.parameters": "bf16", "precision.optimizer_states": "bf16",
        "precision.reduce": "bf16"}
SEQUENCES_1024 = BF16 | {"data.seq_len": 1024}
BIG = BF16 | {"model.preset": "llama-3-8b", "data.seq_len": 4096, "train.micro_batch": 2}


def qwen(vocab_size, **shape):
    """config.json of a Qwen2.5."""
    return {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "vocab_size": vocab_size,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 32768, **shape}


MODELS = {
    "qwen2.5-0.5b": qwen(151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                         num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2.5-1.5b": qwen(151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                         num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2.5-7b": qwen(152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
                       num_key_value_heads=4, tie_word_embeddings=False),
}
FIXTURE = {"model.preset": "tiny", "data.seq_len": 256, "train.global_batch": 8, "train.steps": 20,
           "optimizer.decay_norms_and_biases": "true"}
JOBS = {
    "tiny_fp32": FIXTURE | {"fixture": "single_1thread_fp32"},
    "tiny_bf16": FIXTURE | {"precision.compute": "bf16", "fixture": "single_1thread_bf16"},
    "1b": BF16 | {"model.preset": "llama-3.2-1b", "data.seq_len": 4096, "train.global_batch": 16, "train.micro_batch": 4},
    "1b_fp8_tensor": BF16 | {"model.preset": "llama-3.2-1b", "data.seq_len": 4096, "train.global_batch": 16,
                             "train.micro_batch": 4, "precision.matmul": "fp8_tensor"},
    "8b_full": BIG | {"train.global_batch": 8, "memory.checkpointing": "full"},
    "8b_feed_forward": BIG | {"train.global_batch": 8, "memory.checkpointing": "feed_forward"},
    "8b_selective": BIG | {"train.global_batch": 8, "memory.checkpointing": "selective"},
    "8b_full_one": BIG | {"train.global_batch": 2, "memory.checkpointing": "full"},
    "8b_fp8_row": BIG | {"train.global_batch": 8, "memory.checkpointing": "selective", "precision.matmul": "fp8_row"},
    "8b_lora": BIG | {"train.global_batch": 8, "adapter.type": "lora", "adapter.rank": 16, "adapter.alpha": 16,
                      "adapter.targets": "[all-linear]"},
    "8b_131072": BIG | {"train.global_batch": 1, "train.micro_batch": 1, "data.seq_len": 131072, "train.steps": 1,
                        "memory.checkpointing": "full"},
    # llmq's: 524,288 tokens a step.
    "qwen_0.5b": SEQUENCES_1024 | {"model": "qwen2.5-0.5b", "train.global_batch": 512, "train.micro_batch": 32},
    "qwen_1.5b": SEQUENCES_1024 | {"model": "qwen2.5-1.5b", "train.global_batch": 512, "train.micro_batch": 32},
    "qwen_7b": SEQUENCES_1024 | {"model": "qwen2.5-7b", "train.global_batch": 512, "train.micro_batch": 4},
}

def token_file(folder, vocabulary):
    path = folder / f"tokens_{vocabulary}.bin"
    if not path.exists():
        numpy.random.default_rng(1).integers(0, vocabulary, 1 << 22, dtype=numpy.uint32).tofile(path)
    return path


def kernels_of(trace):
    """Microseconds on the GPU by kernel, the span from the first to the last, and how much of it no kernel ran."""
    events = [e for e in json.load(open(trace))["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    by_name = collections.Counter()
    calls = collections.Counter()
    for event in events:
        by_name[event["name"]] += event["dur"]
        calls[event["name"]] += 1
    events.sort(key=lambda e: e["ts"])
    idle, end = 0, events[0]["ts"]
    for event in events:
        idle += max(0, event["ts"] - end)
        end = max(end, event["ts"] + event["dur"])
    return [(n, by_name[n], calls[n]) for n in sorted(by_name, key=by_name.get, reverse=True)], end - events[0]["ts"], idle


def run(name, job, arguments):
    folder = arguments.out / name
    folder.mkdir(parents=True, exist_ok=True)
    settings = COMMON | {"train.steps": arguments.steps} | job
    profiled = arguments.profile and "train.steps" not in job
    fixture = settings.pop("fixture", None)
    if fixture:
        settings |= {"data.train": f"[{arguments.bin}/../tokens_head.bin]", "data.token_dtype": "uint16"}
    else:
        settings["data.train"] = f"[{token_file(arguments.out, 100000)}]"
    settings["train.run_dir"] = str(folder)
    if "model" in settings:
        (folder / "config.json").write_text(json.dumps(MODELS[settings.pop("model")]))
        settings["model.path"] = str(folder)
    if profiled:
        settings["logging.profile_step"] = arguments.steps - 1
    (folder / "job.yaml").write_text("{}\n")
    start = time.time()
    with open(folder / "log", "w") as log:
        done = subprocess.run([f"{arguments.bin}/tessera", "train", folder / "job.yaml", *(f"--{k}={v}" for k, v in settings.items())],
                              stdout=log, stderr=subprocess.STDOUT, timeout=arguments.timeout)
    seconds = time.time() - start
    if done.returncode != 0:
        print(f"== {name}: exit {done.returncode}\n" + (folder / "log").read_text()[-1500:], flush=True)
        return {"exit": done.returncode}
    steps = [json.loads(line) for line in open(folder / "metrics.jsonl") if '"loss"' in line]
    losses = [step["loss"] for step in steps]
    result = {"seconds": seconds, "losses": losses, "step_seconds": [step["step_seconds"] for step in steps]}
    warm = [s["tokens_per_second"] for s in steps[2:-1 if profiled else None]] or [steps[-1]["tokens_per_second"]]
    result["tokens_per_second"] = statistics.median(warm)
    if fixture:
        exact = json.load(open(arguments.bin / "../llama_tiny/parity.json"))["tiny"][fixture]["loss"]
        result["worst"] = max(abs(a - b) for a, b in zip(losses, exact))
    print(f"== {name}: {result['tokens_per_second']:.0f} tokens/s, {seconds:.1f} s, first step {steps[0]['step_seconds']:.2f} s, "
          f"losses {losses[0]:.5f} .. {losses[-1]:.5f}, off {result.get('worst')}", flush=True)
    summary = json.load(open(folder / "summary.json"))
    result["summary"] = {k: summary[k] for k in ("mfu", "mfu_with_masked", "matmul_peak_note", "peak_memory_bytes",
                                                 "seconds_to_first_step", "median_step_seconds", "memory")}
    for line in (folder / "log").read_text().splitlines():
        if any(word in line for word in ("MFU ", "peak memory", "at once", "first step", "activations ", "warning")):
            print("  " + line.strip(), flush=True)
    trace = folder / "profile_0.json"
    if trace.exists():
        kernels, span, idle = kernels_of(trace)
        print(f"   {span / 1e3:.1f} ms, {idle / 1e3:.1f} ms of them no kernel, {sum(k[2] for k in kernels)} launches")
        for kernel, microseconds, calls in kernels[:arguments.rows]:
            print(f"   {microseconds / 1e3:9.2f} ms {calls:6} x {kernel[:150]}")
        result["kernels"] = kernels[:60]
        trace.unlink()
    sys.stdout.flush()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--timeout", type=int, default=120)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in arguments.jobs:
        try:
            results[name] = run(name, JOBS[name], arguments)
        except Exception as error:  # the others are to be measured all the same
            print(f"== {name}: {error!r}", flush=True)
    json.dump(results, open(arguments.out / "train.json", "w"))


if __name__ == "__main__":
    main()
