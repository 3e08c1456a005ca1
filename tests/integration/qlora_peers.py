"""LoRA and QLoRA of small and larger Llamas beside PyTorch + PEFT (+ bitsandbytes) on a CPU, in one run, with the same weights, adapter, rows of
tokens and settings: losses of 20 steps in float32 arithmetic, and what each takes of memory and time.

usage: qlora_peers.py TESSERA [losses] [small] [1b] [--rounds N] [--kinds LoRA QLoRA] [--dtypes bf16 fp32] [--out FILE.json]
(the command; needs torch, transformers, peft and bitsandbytes; without a name: losses and small)

losses: 20 steps of a small Llama; every loss within 1e-4 of PyTorch's, relative. small, 1b (the shape of Llama-3.2-1B, random weights):
tokens a second (median of the steps after the first) and peak memory (the process's own), each as many times as --rounds says, in turns;
in brackets the share of what the processor can multiply, as Tessera measures it in its run (of the matmuls that a frozen base needs).
Figures of memory: VmHWM of the rank, that is, files that are mapped count while they are in memory. Prints what differs and a table;
ends with 1 if a loss differs, with 77 where a package is missing."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import bitsandbytes
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"qlora_peers.py: skipped: {error}")
    sys.exit(77)

RANK, ALPHA, RATE, TOLERANCE = 16, 32, 1e-3, 1e-4
LLAMA = dict(max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
SHAPES = {
    "losses": dict(vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                   tie_word_embeddings=False, initializer_range=0.08, **LLAMA),
    "small": dict(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                  num_key_value_heads=12, tie_word_embeddings=False, **LLAMA),
    "1b": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=8, head_dim=64, tie_word_embeddings=True, **LLAMA),
}


def make_model(name, folder):
    torch.manual_seed(3)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if name == "losses" else torch.bfloat16)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPES[name])).save_pretrained(folder / "model")
    torch.set_default_dtype(before)


def make_tokens(name, folder, rows, length):
    """Rows of length + 1 tokens, of which the last of one is the first of the next, as 16-bit numbers in a file."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, min(60000, SHAPES[name]["vocab_size"]), (rows * length + 1,), generator=generator)
    (folder / "tokens.bin").write_bytes(tokens.to(torch.uint16).numpy().tobytes())
    return tokens


def write_job(folder, run):
    settings = {
        "model": {"path": str(folder / "model"), "init": "pretrained", "weights": "nf4_double" if run["qlora"] else "as_stored"},
        "adapter": {"type": "lora", "path": str(folder / "adapter")},
        "data": {"train": [str(folder / "tokens.bin")], "validation_fraction": 0, "seq_len": run["length"], "shuffle": False},
        "parallel": {"num_ranks": 1, "threads_per_rank": run["threads"]},
        "precision": {"compute": run["dtype"]},
        "optimizer": {"learning_rate": RATE, "weight_decay": 0, "beta2": 0.999},
        "schedule": {"type": "constant"},
        "train": {"steps": run["steps"], "global_batch": run["batch"], "run_dir": str(folder / "run"), "sample_tokens": 0},
        "checkpoint": {"at_end": False},
        "logging": {"tensorboard": False, "svg": False, "progress": "none"},
    }
    (folder / "job.yaml").write_text(json.dumps(settings))


def ours(tessera, folder, run):
    subprocess.run(["rm", "-rf", str(folder / "run")], check=True)
    write_job(folder, run)
    done = subprocess.run([tessera, "train", str(folder / "job.yaml")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"tessera train: {done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return {"losses": [line["loss"] for line in lines], "seconds": [line["step_seconds"] for line in lines],
            "peak_bytes": max(summary["peak_memory_bytes"]), "mfu": summary["mfu"]}


def load(folder, run):
    dtype = getattr(torch, run["dtype"].replace("bf16", "bfloat16").replace("fp32", "float32"))
    settings = {}
    if run["qlora"]:
        settings["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype)
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype, device_map="cpu", **settings)


def write_adapter(name, folder):
    """An adapter that both begin with: PEFT's own first values, B not zero so that all gradients are there from the first step."""
    torch.manual_seed(4)
    with torch.device("meta"):
        base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPES[name]))
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM", base_model_name_or_path=str(folder / "model"))
    model = peft.get_peft_model(base, config)
    state = {}
    for key, values in peft.get_peft_model_state_dict(model).items():
        bound = values.shape[1] ** -0.5 * (0.1 if "lora_B" in key else 1)
        state[key] = torch.empty(values.shape, dtype=torch.float32).uniform_(-bound, bound)
    (folder / "adapter").mkdir()
    import safetensors.torch
    safetensors.torch.save_file(state, folder / "adapter" / "adapter_model.safetensors")
    config.inference_mode = False
    config.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    config.save_pretrained(folder / "adapter")


def theirs_here(folder, run):
    """In a process of its own: trains, and prints what `ours` gives."""
    torch.set_num_threads(run["threads"])
    model = load(folder, run)
    model = peft.PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True, autocast_adapter_dtype=True)
    model.train()
    model.config.use_cache = False
    tokens = torch.tensor(memoryview((folder / "tokens.bin").read_bytes()).cast("H").tolist())
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    losses, seconds = [], []
    for step in range(run["steps"]):
        began = time.perf_counter()
        starts = [(step * run["batch"] + row) * run["length"] for row in range(run["batch"])]
        rows = torch.stack([tokens[start:start + run["length"] + 1] for start in starts])
        with torch.autocast("cpu", torch.bfloat16, enabled=run["dtype"] == "bf16"):
            logits = model(input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    peak = next(int(line.split()[1]) for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"losses": losses, "seconds": seconds, "peak_bytes": peak * 1024}))


def theirs(folder, run):
    done = subprocess.run([sys.executable, __file__, "--peer", str(folder), json.dumps(run)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"PyTorch: {done.stdout}{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare_losses(kind, mine, others):
    worst = max(abs(a - b) / abs(b) for a, b in zip(mine["losses"], others["losses"], strict=True))
    print(f"{kind}: {len(mine['losses'])} steps, loss {mine['losses'][0]:.6f} to {mine['losses'][-1]:.6f}, largest difference {worst:.2g}", flush=True)
    return worst <= TOLERANCE


def figures(run, results):
    """Medians of the rounds: tokens a second of the steps after the first, and MiB."""
    speed = [run["batch"] * run["length"] / statistics.median(result["seconds"][1:]) for result in results]
    return statistics.median(speed), statistics.median(result["peak_bytes"] for result in results) / 2**20


def compare_costs(tessera, name, folder, kind, run, rounds):
    pairs = [(ours(tessera, folder, run), theirs(folder, run)) for _ in range(rounds)]
    (speed, memory), (their_speed, their_memory) = (figures(run, side) for side in zip(*pairs))
    mfu = statistics.median(mine["mfu"] for mine, _ in pairs)
    print(f"| {name} | {kind} {run['dtype']} | {their_speed:.1f} ({100 * mfu * their_speed / speed:.0f} %) | {their_memory:.0f} | "
          f"{speed:.1f} ({100 * mfu:.0f} %; {speed / their_speed:.2f} x) | {memory:.0f} ({memory / their_memory:.2f} x) |", flush=True)
    return {"shape": name, "kind": kind, "run": run, "tokens_per_second": speed, "mib": memory, "peer_tokens_per_second": their_speed,
            "peer_mib": their_memory, "rounds": [{"ours": a, "peer": b} for a, b in pairs]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tessera")
    parser.add_argument("parts", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=["LoRA", "QLoRA"], default=["LoRA", "QLoRA"])
    parser.add_argument("--dtypes", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--out")
    options = parser.parse_args()
    tessera = str(pathlib.Path(options.tessera).resolve())
    good, rows = True, []
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__,
                "bitsandbytes": bitsandbytes.__version__}
    print(versions, flush=True)
    for name in options.parts or ["losses", "small"]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            make_model(name, folder)
            write_adapter(name, folder)
            length = {"losses": 64, "small": 256, "1b": 512}[name]
            run = {"length": length, "batch": 1 if name == "1b" else 4, "threads": options.threads, "dtype": "bf16",
                   "steps": {"losses": 20, "small": 4, "1b": 3}[name]}
            make_tokens(name, folder, run["steps"] * run["batch"], length)
            for kind in options.kinds:
                run["qlora"] = kind == "QLoRA"
                if name == "losses":
                    run["dtype"] = "fp32"
                    good = compare_losses(kind, ours(tessera, folder, run), theirs(folder, run)) and good
                    continue
                for run["dtype"] in options.dtypes:
                    rows.append(compare_costs(tessera, name, folder, kind, dict(run), options.rounds))
                if options.out:
                    pathlib.Path(options.out).write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        theirs_here(pathlib.Path(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        main()
