"""A Llama that trains with Tessera and with DeepSpeed's ZeRO-3 on a CPU, in turns, with the same weights, tokens, AdamW and bf16 arithmetic on fp32
master weights: states and parameters on a drive, and states in memory. Tokens a second, memory and losses of both.

usage: drives_peers.py TESSERA [small] [large] [--rounds N] [--steps N] [--ranks N] [--threads N] [--contestants NAME ..] [--folder DIR]
                       [--out FILE.json]
(the command; needs torch, transformers, deepspeed, ninja, a compiler and libaio's headers; without a name: small, 58 M parameters; large: 319 M)

tessera_nvme, deepspeed_nvme: offload_optimizer and offload_params on drives. tessera_host, deepspeed_cpu: in memory; on a CPU that is where Tessera
has them without any offload, so no key says so, while DeepSpeed's offload to the host makes it take its own CPU Adam. deepspeed_nvme_states: states
on drives and parameters in memory (only if asked for). DeepSpeed's buffers are as small as the largest parameter lets them be, not its defaults,
which would take gigabytes; none clips, both compute blocks again for `large`. Scratch files go to DIR, which must be on a drive, and are removed.
Tokens a second: of the median step, the first two of a run left out; a median over the rounds. Memory: VmHWM of the rank with most, from its start
on; `alone`: after imports, of Tessera a run of its smallest model; `steps`: highest while DeepSpeed's steps ran, its loading left out. CPU s:
processor seconds of a whole run, start included. others: share of the machine that other programs took in the worst run: figures of time are worth
something below some 5 %. DeepSpeed's extensions are compiled before anything is measured (minutes, once; one that is interrupted leaves a file
`lock` in ~/.cache/torch_extensions, for which the next run waits for ever: remove it).
Ends with 1 if losses differ by more than 0.5 % or a contestant fails, with 77 where a package or room is missing."""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from peers import LEFT_OUT, counted, largest_difference, report_head, start_ranks, status, summarise, tessera_adamw, tessera_figures
from peers import tessera_settings, train_here, write_tokens

os.environ["DS_ACCELERATOR"] = "cpu"
try:
    import deepspeed
    import torch
    import transformers
except ImportError as error:
    print(f"drives_peers.py: skipped: {error}")
    sys.exit(77)

transformers.utils.logging.disable_progress_bar()
RATE, BETAS, EPSILON, DECAY, TOLERANCE = 1e-3, (0.9, 0.95), 1e-8, 0.1, 5e-3
VOCABULARY = 32000
SIZES = {
    "small": dict(shape=dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8), length=512, batch=4,
                  checkpointing=False, host_memory=256, free=4e9),
    "large": dict(shape=dict(hidden_size=1024, intermediate_size=2752, num_hidden_layers=20, num_attention_heads=16), length=256, batch=4,
                  checkpointing=True, host_memory=400, free=16e9),
}
CONTESTANTS = ["tessera_nvme", "deepspeed_nvme", "tessera_host", "deepspeed_cpu"]
MORE = ["deepspeed_nvme_states"]
BESIDE = {"tessera_nvme": "deepspeed_nvme", "tessera_host": "deepspeed_cpu"}


def make_files(folder, run):
    """The first weights, rounded to bf16, which both begin with, and few different tokens, so that losses fall."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=run["shape"]["num_attention_heads"], max_position_embeddings=2048,
                                      rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, **run["shape"])
    model = transformers.LlamaForCausalLM(config)
    count = sum(p.numel() for p in model.parameters())
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    write_tokens(folder / "tokens.bin", run)
    return count


def ours(tessera, folder, name, run):
    settings = tessera_settings(folder, "model", run, run["ranks"], run["threads"])
    settings["precision"] = {"compute": "bf16"}
    settings["optimizer"] |= tessera_adamw(RATE, BETAS, EPSILON, DECAY) | {"in_backward": True}
    settings["memory"] = {"checkpointing": "full" if run["checkpointing"] else "none"}
    if name == "tessera_alone":
        settings["model"] = {"preset": "micro"}
        settings["train"]["steps"] = 1
    if name == "tessera_nvme":
        settings["parallel"] |= {"offload_optimizer": "nvme", "offload_params": "nvme"}
        settings["offload"] = {"paths": [str(folder / "drive")], "host_memory": run["host_memory"]}
    (folder / "job.yaml").write_text(json.dumps(settings))
    done = subprocess.run([tessera, "train", str(folder / "job.yaml")], capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stdout + done.stderr)[-2000:]}
    return tessera_figures(folder)[0]


def settings_of_deepspeed(folder, name, run):
    """ZeRO-3 with the smallest buffers that the largest parameter (embedding, head) fits into."""
    largest = VOCABULARY * run["shape"]["hidden_size"]
    drive = str(folder / "drive")
    zero = {"stage": 3, "sub_group_size": largest, "reduce_bucket_size": largest, "stage3_prefetch_bucket_size": largest // 4,
            "stage3_max_live_parameters": 2 * largest, "stage3_max_reuse_distance": 0, "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"}}
    if name != "deepspeed_cpu":
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": drive, "buffer_count": run["state_buffers"], "pipeline_read": run["pipeline"],
                                     "pipeline_write": run["pipeline"]}
    if name == "deepspeed_nvme":
        zero["offload_param"] = {"device": "nvme", "nvme_path": drive, "buffer_count": run["parameter_buffers"], "buffer_size": largest,
                                 "max_in_cpu": 0}
    return {"train_micro_batch_size_per_gpu": run["batch"] // run["ranks"], "gradient_accumulation_steps": 1, "gradient_clipping": 0.0,
            "bf16": {"enabled": True}, "steps_per_print": 10**9, "zero_optimization": zero,
            "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True},
            "optimizer": {"type": "AdamW", "params": {"lr": RATE, "betas": list(BETAS), "eps": EPSILON, "weight_decay": DECAY}}}


def theirs_here(folder, name, run):
    """A rank, in a process of its own."""
    run["alone"] = status("VmHWM")
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    settings = settings_of_deepspeed(folder, name, run)
    kept = transformers.integrations.HfDeepSpeedConfig(settings)  # from_pretrained then gives out each parameter as it is read
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.bfloat16)
    model.train()
    model.config.use_cache = False
    if run["checkpointing"]:
        model.gradient_checkpointing_enable()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    del kept
    torch.set_num_threads(run["threads"])
    train_here(folder / "tokens.bin", run, engine, engine.backward, engine.step)


def run_once(tessera, folder, name, run):
    (folder / "drive").mkdir()
    peers = (run["ranks"], run["threads"])
    result = counted(lambda: ours(tessera, folder, name, run) if name.startswith("tessera") else start_ranks(__file__, folder, name, run, *peers))
    shutil.rmtree(folder / "drive")
    shutil.rmtree(folder / "run", ignore_errors=True)
    return result


def print_table(size, run, rows):
    print(f"\n{size}: {run['parameters']:,} parameters, {run['batch']} x {run['length']} tokens a step, ranks: {run['ranks']}, threads of each: "
          f"{run['threads']}\n")
    print("| contestant | tokens/s | peak MiB | alone | steps | CPU s | others | losses |\n|---|---|---|---|---|---|---|---|")
    by_name = {row["contestant"]: row for row in rows if "losses" in row}
    for name, row in by_name.items():
        beside = by_name.get(BESIDE.get(name))
        speed, memory = (f" ({row[key] / beside[key]:.2f} x)" if beside else "" for key in ("tokens_per_second", "peak_mib"))
        alone, steps = (f"{row[key]:,.0f}" if key in row else "" for key in ("alone_mib", "steps_mib"))
        print(f"| {name} | {row['tokens_per_second']:,.0f}{speed} | {row['peak_mib']:,.0f}{memory} | {alone} | {steps} | {row['cpu_seconds']:.0f} "
              f"| {100 * row['others']:.0f} % | {row['losses'][0]:.4f} to {row['losses'][-1]:.4f} |", flush=True)


def losses_agree(rows):
    worst, whose = largest_difference(rows)
    print(f"largest difference of losses from the first one's: {worst:.3%} ({whose})", flush=True)
    return worst <= TOLERANCE


def compare(tessera, folder, size, options):
    run = SIZES[size] | {"ranks": options.ranks, "threads": options.threads, "steps": options.steps, "state_buffers": options.state_buffers,
                         "parameter_buffers": options.parameter_buffers, "pipeline": options.pipeline}
    run["parameters"] = make_files(folder, run)
    alone = run_once(tessera, folder, "tessera_alone", run)
    results = {name: [] for name in options.contestants}
    for _ in range(options.rounds):
        for name, done in results.items():
            if done and "failed" in done[-1]:
                continue
            done.append(run_once(tessera, folder, name, run))
            if name.startswith("tessera") and "failed" not in alone:
                done[-1]["alone_bytes"] = alone["peak_bytes"]
            said = done[-1].get("failed") or f"seconds a step {[round(each, 2) for each in done[-1]['seconds']]}"
            print(f"{size} {name}: {said}", flush=True)
    rows = [summarise(run, name, done) for name, done in results.items()]
    print_table(size, run, rows)
    good = losses_agree(rows) and not any("failed" in result for row in rows for result in row["rounds"])
    return good, [{"size": size, "run": run, **row} for row in rows]


def compile_extensions(names):
    from deepspeed.ops.op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder
    needed = [CPUAdamBuilder, ShareMemCommBuilder] + ([AsyncIOBuilder] if any("nvme" in name for name in names) else [])
    for builder in needed:
        if not builder().is_compatible():
            print(f"drives_peers.py: skipped: DeepSpeed's {builder.NAME} does not compile here (libaio's headers?)")
            sys.exit(77)
        builder().load(verbose=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tessera")
    parser.add_argument("sizes", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of each rank")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS + MORE, default=CONTESTANTS)
    parser.add_argument("--state-buffers", type=int, default=4, help="DeepSpeed's offload_optimizer.buffer_count")
    parser.add_argument("--parameter-buffers", type=int, default=5, help="DeepSpeed's offload_param.buffer_count")
    parser.add_argument("--pipeline", action="store_true", help="DeepSpeed's pipeline_read and pipeline_write, for which 8 state buffers are too few")
    parser.add_argument("--folder", help="on a drive, for scratch files; without it, the system's temporary one")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.steps <= LEFT_OUT or not set(options.sizes) <= set(SIZES):
        parser.error(f"--steps above {LEFT_OUT}, and sizes out of {', '.join(SIZES)}")
    tessera = str(pathlib.Path(options.tessera).resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that scratch files are removed
    compile_extensions([name for name in options.contestants if name.startswith("deepspeed")])
    report = report_head(__file__, options.sizes or ["small"], [torch, transformers, deepspeed])
    print(report["versions"], flush=True)
    good = True
    for size in options.sizes or ["small"]:
        with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
            folder = pathlib.Path(temporary).resolve()
            kind = subprocess.run(["stat", "-f", "-c", "%T", temporary], capture_output=True, text=True).stdout.strip()
            if kind in ("tmpfs", "ramfs") or shutil.disk_usage(temporary).free < SIZES[size]["free"]:
                print(f"drives_peers.py: skipped: {SIZES[size]['free'] / 1e9:.0f} GB on a drive are needed; give one by --folder")
                sys.exit(77)
            well, rows = compare(tessera, folder, size, options)
        good = good and well
        report["rows"] += rows
        if options.out:
            pathlib.Path(options.out).write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        theirs_here(pathlib.Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
    else:
        main()
