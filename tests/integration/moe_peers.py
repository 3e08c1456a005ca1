"""A mixture of experts (Mixtral's shape) that trains with Tessera and with others on a CPU, in turns: two ranks of one thread each, the same first
weights, tokens and AdamW, no balancing loss, no clipping, nothing dropped. Tokens a second, memory and losses of each.

usage: moe_peers.py TESSERA [tiny] [small] [--rounds N] [--steps N] [--contestants NAME ..] [--experts N] [--dtypes fp32|bf16 ..]
                    [--undisturbed] [--out FILE.json]
(the command; needs torch, transformers and deepspeed; without a name: small, 95 M parameters of which a token meets 43 M with 8 experts; tiny: 11 M)

tessera_sharded, tessera_ep2: placement full_shard, parallel.ep 1 and 2. tessera_dense: a Llama of ours whose feed-forward is as wide as two experts,
so that a token meets as many parameters (but for the router). fsdp2: transformers' MixtralForCausalLM, fully_shard on each layer and on the rest;
of its ways to compute experts (experts_implementation) the fastest of a short run of each (or --implementation). deepspeed_ep2: the same class with
deepspeed.moe.layer.MoE (ep_size 2, k 2, drop_tokens False) in place of its feed-forwards; deepspeed_autoep2: the same class with DeepSpeed's
AutoEP (expert_parallel), which takes transformers' experts apart by itself, in its loop over experts, for its other ways need a GPU. Both with
ZeRO's stage 2 (--zero; 1 and 2 are what DeepSpeed has for mixtures besides AutoEP's 3); in bf16 `bf16.enabled`. fsdp2 in bf16: parameters are
gathered as bf16, gradients reduced in fp32, as precision.compute bf16 of Tessera does.
Tokens a second: of the median step, the first two of a run left out; a median over the rounds; `best`: of the fastest step of all. Memory: VmHWM
of the rank with most, from its start on; `steps`: highest while a peer's steps ran, its loading left out. CPU s a step: processor seconds of both
ranks, a mean, the first two steps left out: worth something on a busy machine, too. MaxVio: how much the fullest expert is above the mean, of
Tessera's steps; waiting: its share of time.
others: share of the machine that other programs took in the worst run: figures of time are worth something below some 5 %.
--undisturbed: each run waits until the others have been idle for a while, and is made again, up to 20 times, where they were not during it.
A peer that cannot run is named with its reason. Ends with 1 if losses in fp32 differ by more than 0.5 % or Tessera fails, with 77 where a package
is missing."""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from peers import LEFT_OUT, counted, largest_difference, machine_seconds, report_head, start_ranks, summarise, tessera_adamw, tessera_figures
from peers import tessera_settings, train_here, write_tokens

os.environ["DS_ACCELERATOR"] = "cpu"
try:
    import deepspeed
    import torch
    import transformers
except ImportError as error:
    print(f"moe_peers.py: skipped: {error}")
    sys.exit(77)

transformers.utils.logging.disable_progress_bar()
RATE, BETAS, EPSILON, DECAY, TOLERANCE, RANKS, TAKEN, QUIET = 3e-4, (0.9, 0.95), 1e-8, 0.1, 5e-3, 2, 2, 0.06
SIZES = {
    "tiny": dict(shape=dict(vocab_size=4096, hidden_size=256, num_hidden_layers=4, num_attention_heads=4), expert=352, length=256, batch=8),
    "small": dict(shape=dict(vocab_size=32000, hidden_size=512, num_hidden_layers=8, num_attention_heads=8), expert=704, length=512, batch=8),
}
OURS = ["tessera_sharded", "tessera_ep2", "tessera_dense"]
PEERS = ["fsdp2", "deepspeed_ep2", "deepspeed_autoep2"]
IMPLEMENTATIONS = ["grouped_mm", "batched_mm", "eager"]
WANTED = {"tessera_dense": 0.75} | {name: 2 for name in PEERS}


def make_files(folder, run):
    """The mixture's first weights, with which all begin, the dense model's, and few different tokens, so that losses fall. Embeddings are wide enough
    for tokens to stay apart, and with them their experts: with transformers' own, attention makes all rows alike and two experts take nearly all."""
    torch.manual_seed(3)
    common = dict(num_key_value_heads=run["shape"]["num_attention_heads"], max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1,
                  eos_token_id=2, tie_word_embeddings=False, **run["shape"])
    mixture = transformers.MixtralForCausalLM(transformers.MixtralConfig(
        intermediate_size=run["expert"], num_local_experts=run["experts"], num_experts_per_tok=TAKEN, router_aux_loss_coef=0.0,
        router_jitter_noise=0.0, sliding_window=None, **common))
    dense = transformers.LlamaForCausalLM(transformers.LlamaConfig(intermediate_size=TAKEN * run["expert"], **common))
    torch.nn.init.normal_(mixture.model.embed_tokens.weight)
    mixture.save_pretrained(folder / "mixture")
    dense.save_pretrained(folder / "dense")
    write_tokens(folder / "tokens.bin", run)
    return [sum(p.numel() for p in model.parameters()) for model in (mixture, dense)]


def cpu_seconds_of_steps(process, metrics, run):
    """Of the ranks, in a step on average, the first ones left out; read whenever a line of metrics came, so to some tenth of a second in all."""
    seen = {}
    while process.poll() is None:
        count = metrics.read_text().count("\n") if metrics.exists() else 0
        if count not in seen:
            seconds = 0
            for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
                try:
                    fields = stat.read_text().rpartition(")")[2].split()
                except OSError:  # it ended meanwhile
                    continue
                seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if int(fields[1]) == process.pid else 0
            seen[count] = seconds
        time.sleep(0.02)
    first, last = min((n for n in seen if n >= LEFT_OUT), default=0), max((n for n in seen if n < run["steps"]), default=0)
    return (seen[last] - seen[first]) / (last - first) if last > first else float("nan")


def ours(tessera, folder, name, run):
    settings = tessera_settings(folder, "dense" if name == "tessera_dense" else "mixture", run, RANKS, 1)
    settings["parallel"]["ep"] = 2 if name == "tessera_ep2" else 1
    settings["precision"] = {"compute": run["dtype"]}
    settings["optimizer"] |= tessera_adamw(RATE, BETAS, EPSILON, DECAY)
    (folder / "job.yaml").write_text(json.dumps(settings))
    with open(folder / "output_0", "w") as output:
        process = subprocess.Popen([tessera, "train", str(folder / "job.yaml")], stdout=output, stderr=subprocess.STDOUT)
        cpu_seconds = cpu_seconds_of_steps(process, folder / "run" / "metrics.jsonl", run)
    if process.wait():
        return {"failed": (folder / "output_0").read_text()[-2000:]}
    result, summary, lines = tessera_figures(folder)
    result["step_cpu_seconds"] = cpu_seconds
    result |= {key: summary[key] for key in ("mfu", "communication_wait_share") if key in summary}
    if "moe/max_violation" in lines[0]:
        result["max_violation"] = statistics.mean(line["moe/max_violation"] for line in lines)
    return result


class Expert(torch.nn.Module):
    """An expert of Mixtral's, its gate and up in one matrix, as transformers has them."""

    def __init__(self, width, inner):
        super().__init__()
        self.gate_up = torch.nn.Linear(width, 2 * inner, bias=False)
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(torch.nn.functional.silu(gate) * up)


class DeepSpeedExperts(torch.nn.Module):
    """deepspeed.moe.layer.MoE with the weights of a block of transformers', which keeps its own experts of them."""

    def __init__(self, config, block, rank):
        super().__init__()
        from deepspeed.moe.layer import MoE
        self.moe = MoE(hidden_size=config.hidden_size, expert=Expert(config.hidden_size, config.intermediate_size),
                       num_experts=config.num_local_experts, ep_size=RANKS, k=TAKEN, drop_tokens=False, use_rts=False, noisy_gate_policy=None,
                       top2_2nd_expert_sampling=False)
        inner = self.moe.deepspeed_moe
        own = config.num_local_experts // RANKS
        with torch.no_grad():
            inner.gate.wg.weight.copy_(block.gate.weight)
            for i, expert in enumerate(inner.experts.deepspeed_experts):
                expert.gate_up.weight.copy_(block.experts.gate_up_proj[rank * own + i])
                expert.down.weight.copy_(block.experts.down_proj[rank * own + i])

    def forward(self, x):
        return self.moe(x)[0]


def settings_of_deepspeed(name, run):
    settings = {"train_micro_batch_size_per_gpu": run["batch"] // RANKS, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0,
                "steps_per_print": 10**9, "zero_optimization": {"stage": run["zero"]},
                "optimizer": {"type": "AdamW", "params": {"lr": RATE, "betas": list(BETAS), "eps": EPSILON, "weight_decay": DECAY}}}
    if run["dtype"] == "bf16":
        settings["bf16"] = {"enabled": True}
    if name == "deepspeed_autoep2":
        settings["expert_parallel"] = {"enabled": True, "autoep_size": RANKS, "preset_model": "mixtral", "use_grouped_mm": False}
    return settings


def load(folder, run, dtype):
    """transformers' Mixtral with the first weights. A float32 copy of what AutoEP and MoE take from it is all that they read."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "mixture", dtype=dtype,
                                                              experts_implementation=run["implementation"] or "eager")
    model.train()
    model.config.use_cache = False
    return model


def engine_of_deepspeed(folder, name, run):
    """What computes logits, and what backward and step are."""
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    dtype = torch.bfloat16 if run["dtype"] == "bf16" else torch.float32
    model = load(folder, run, dtype)
    parameters = model.parameters()
    if name == "deepspeed_ep2":
        for layer in model.model.layers:
            layer.mlp = DeepSpeedExperts(model.config, layer.mlp, torch.distributed.get_rank()).to(dtype)
        parameters = deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer(
            {"params": list(model.parameters()), "name": "all"})
    else:  # it tells transformers where routers' logits are recorded, which nothing reads here, by a call that transformers 5.23 does not have
        from deepspeed.module_inject.auto_ep import AutoEP
        AutoEP._retarget_transformers_output_recorders = lambda *_: None
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=settings_of_deepspeed(name, run))
    kinds = {type(layer.mlp).__name__ for layer in model.model.layers}
    if name == "deepspeed_autoep2" and kinds != {"AutoEPMoELayer"}:
        sys.exit(f"AutoEP replaced no experts: {kinds}")
    return engine, engine.backward, engine.step


def sharded_by_torch(folder, run):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    model = load(folder, run, torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if run["dtype"] == "bf16" else MixedPrecisionPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=True)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return model, lambda loss: loss.backward(), step


def theirs_here(folder, name, run):
    """A rank, in a process of its own."""
    torch.set_num_threads(1)
    model, backward, update = sharded_by_torch(folder, run) if name == "fsdp2" else engine_of_deepspeed(folder, name, run)
    torch.set_num_threads(1)
    train_here(folder / "tokens.bin", run, model, backward, update)


def wait_for_idle_machine(in_a_row=5):
    quiet = 0
    while quiet < in_a_row:
        busy, everything = machine_seconds()
        time.sleep(1)
        busy, everything = (now - before for now, before in zip(machine_seconds(), (busy, everything)))
        quiet = quiet + 1 if busy < QUIET * everything else 0


def run_once(tessera, folder, name, run):
    """What a contestant takes; with --undisturbed, when nobody else computes."""
    for _ in range(20 if run["undisturbed"] else 1):
        if run["undisturbed"]:
            wait_for_idle_machine()
        result = run_at_once(tessera, folder, name, run)
        if not run["undisturbed"] or "failed" in result or result["others"] < QUIET:
            break
        print(f"{name}: once more, others took {result['others']:.0%}", flush=True)
    return result


def run_at_once(tessera, folder, name, run):
    result = counted(lambda: ours(tessera, folder, name, run) if name in OURS else start_ranks(__file__, folder, name, run, RANKS, 1))
    shutil.rmtree(folder / "run", ignore_errors=True)
    return result


def fastest_implementation(folder, run):
    """Of transformers' ways to compute experts, in a few steps of fsdp2. batched_mm copies an expert's weights for every choice of a token: 39 s a
    step of `tiny` where grouped_mm takes 0.6."""
    seconds = {}
    for implementation in IMPLEMENTATIONS:
        copied = run["batch"] // RANKS * run["length"] * TAKEN * 2 * run["expert"] * run["shape"]["hidden_size"] * 4 * RANKS
        if implementation == "batched_mm" and copied > 2**30:
            print(f"fsdp2 {implementation}: left out, it would copy {copied / 2**30:.1f} GiB of weights in each layer", flush=True)
            continue
        result = run_once(None, folder, "fsdp2", run | {"implementation": implementation, "steps": LEFT_OUT + 2})
        if "failed" in result:
            print(f"fsdp2 {implementation}: cannot run: {result['failed'].strip().splitlines()[-1]}", flush=True)
        else:
            seconds[implementation] = result["step_cpu_seconds"]
            print(f"fsdp2 {implementation}: {seconds[implementation]:.2f} CPU s a step", flush=True)
    return min(seconds, key=seconds.get, default="eager"), seconds


def print_table(size, run, rows):
    mixture, dense = run["parameters"]
    print(f"\n{size} {run['dtype']}: {run['experts']} experts, {TAKEN} a token, {mixture:,} parameters (dense: {dense:,}), {run['batch']} x "
          f"{run['length']} tokens a step, ranks: {RANKS}, one thread each; experts of transformers: {run['implementation']}; ZeRO {run['zero']}\n")
    print("| contestant | tokens/s | best | CPU s a step | peak MiB | steps | waiting | MaxVio | others | losses |")
    print("|---" * 10 + "|")
    good = {row["contestant"]: row for row in rows if "losses" in row}
    for name, row in good.items():
        steps, waits, uneven = (format(row[key], kind) if key in row else "" for key, kind in
                                (("steps_mib", ",.0f"), ("communication_wait_share", ".0%"), ("max_violation", ".2f")))
        print(f"| {name} | {row['tokens_per_second']:,.0f} | {row['best_tokens_per_second']:,.0f} | {row['step_cpu_seconds']:.2f} "
              f"| {row['peak_mib']:,.0f} | {steps} | {waits} | {uneven} | {row['others']:.0%} | {row['losses'][0]:.4f} to {row['losses'][-1]:.4f} |")
    for row in rows:
        failed = next((result["failed"] for result in row["rounds"] if "failed" in result), None)
        if failed:
            print(f"{row['contestant']}: cannot run: {failed.strip().splitlines()[-1]}")
    print()
    for name in ("tessera_sharded", "tessera_ep2"):
        for other, wanted in WANTED.items():
            if name in good and other in good:
                speed, best, cpu, memory = (good[name][key] / good[other][key] for key in
                                            ("tokens_per_second", "best_tokens_per_second", "step_cpu_seconds", "peak_mib"))
                print(f"{name} / {other}: {speed:.2f} x the tokens/s (wanted: {wanted}), {best:.2f} x of the best step, "
                      f"{1 / cpu:.2f} x of a CPU second, {memory:.2f} x the memory", flush=True)


def losses_agree(run, rows):
    """Of the mixtures, with those of the first one listed."""
    worst, whose = largest_difference([row for row in rows if row["contestant"] != "tessera_dense"])
    print(f"largest difference of losses from the first one's: {worst:.5%} ({whose})", flush=True)
    return run["dtype"] != "fp32" or worst <= TOLERANCE


def compare(tessera, folder, run, size, options):
    run["implementation"], trials = (options.implementation, {})
    if "fsdp2" in options.contestants and not options.implementation:
        run["implementation"], trials = fastest_implementation(folder, run)
    results = {name: [] for name in options.contestants}
    for _ in range(options.rounds):
        for name, done in results.items():
            if done and "failed" in done[-1]:
                continue
            done.append(run_once(tessera, folder, name, run))
            said = done[-1].get("failed") or f"seconds a step {[round(each, 2) for each in done[-1]['seconds']]}"
            print(f"{size} {run['dtype']} {name}: {said}", flush=True)
    rows = [summarise(run, name, done) for name, done in results.items()]
    print_table(size, run, rows)
    good = losses_agree(run, rows) and not any("failed" in result for name in OURS for result in results.get(name, []))
    return good, [{"size": size, "run": dict(run), "implementations_cpu_seconds": trials, **row} for row in rows]


def compile_extensions():
    """DeepSpeed's AdamW and its sums between ranks of a machine, which are C++ sources: minutes, once."""
    from deepspeed.ops.op_builder.cpu import FusedAdamBuilder, ShareMemCommBuilder
    for builder in (FusedAdamBuilder, ShareMemCommBuilder):
        builder().load(verbose=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tessera")
    parser.add_argument("sizes", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--contestants", nargs="+", choices=OURS + PEERS, default=OURS + PEERS)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--zero", type=int, choices=[0, 1, 2], default=2, help="DeepSpeed's stage")
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, help="of transformers' experts; without it, the fastest is sought")
    parser.add_argument("--undisturbed", action="store_true", help="wait for a machine that does nothing else")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.steps <= LEFT_OUT or options.experts % RANKS or not set(options.sizes) <= set(SIZES):
        parser.error(f"--steps above {LEFT_OUT}, --experts even, and sizes out of {', '.join(SIZES)}")
    tessera = str(pathlib.Path(options.tessera).resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that scratch files are removed
    if any(name.startswith("deepspeed") for name in options.contestants):
        compile_extensions()
    report = report_head(__file__, options.sizes or ["small"], [torch, transformers, deepspeed])
    print(report["versions"], flush=True)
    good = True
    for size in options.sizes or ["small"]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary).resolve()
            run = SIZES[size] | {"steps": options.steps, "experts": options.experts, "zero": options.zero,
                                 "undisturbed": options.undisturbed}
            run["parameters"] = make_files(folder, run)
            for run["dtype"] in options.dtypes:
                well, rows = compare(tessera, folder, run, size, options)
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
