"""What products of 8 bits do to the loss of a small Llama, with Tessera and with torchao's emulation on a CPU: the same first weights, bytes of
text, AdamW and clipping, one rank of one thread.

usage: fp8_peers.py TESSERA DATA [--recipes NAME ..] [--steps N] [--seeds N ..] [--jobs N] [--out FILE.json]
(the command, and a folder of C++ headers, such as LibTorch's include; needs torch, transformers and torchao)

Each recipe is compared with the same program's bf16: percent above its loss, as means over 50 steps. What both are off by is the recipe's; what
one is off by more is a fault of it, as far as seeds (of weights and of where the text begins) agree. Parameters are float32, products and what
is kept between them bf16 or 8 bits, gradients float32 where they are updated, in both. Ends with 77 where a package is missing."""
import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from peers import report_head, start_ranks, tessera_adamw, tessera_figures, tessera_settings, train_here

try:
    import torch
    import torchao
    import transformers
except ImportError as error:
    print(f"fp8_peers.py: skipped: {error}")
    sys.exit(77)

RATE, BETAS, EPSILON, DECAY, NORM, WINDOW = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0, 50
SHAPE = dict(vocab_size=256, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
             max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
RECIPES = {"fp8_tensor": "tensorwise", "fp8_row": "rowwise", "fp8_row_wgrad16": "rowwise_with_gw_hp"}  # ours, torchao's


def make_files(folder, data, run):
    torch.manual_seed(run["seed"])
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).save_pretrained(folder / "llama")
    text = b"".join(path.read_bytes() for path in sorted(data.rglob("*.h")))
    count = run["steps"] * run["batch"] * run["length"] + 1
    text = text[(run["seed"] - 1) * count:][:count]
    if len(text) < count:
        sys.exit(f"fp8_peers.py: {data}: expected {run['seed'] * count} bytes of headers; got fewer")
    (folder / "tokens.bin").write_bytes(b"".join(bytes((byte, 0)) for byte in text))


def theirs_here(folder, name, run):
    """A process of its own: bf16 weights that products read, float32 ones that AdamW updates."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "llama", dtype=torch.float32)
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    model = model.to(torch.bfloat16)
    if name != "bf16":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        config = Float8LinearConfig.from_recipe_name(RECIPES[name])
        object.__setattr__(config, "emulate", True)
        convert_to_float8_training(model, config=config, module_filter_fn=lambda _, path: path != "lm_head")
    optimizer = torch.optim.AdamW(masters, lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=True)

    def update():
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters()):
                master.grad, parameter.grad = parameter.grad.float(), None
            torch.nn.utils.clip_grad_norm_(masters, NORM)
            optimizer.step()
            for master, parameter in zip(masters, model.parameters()):
                parameter.copy_(master)

    train_here(folder / "tokens.bin", run, model, lambda loss: loss.backward(), update)


def theirs(folder, name, run):
    result = start_ranks(__file__, folder, name, run, 1, 1)
    if "failed" in result:
        sys.exit(f"fp8_peers.py: torchao's {name}: {result['failed']}")
    return result["losses"]


def ours(tessera, folder, name, run):
    settings = tessera_settings(folder, "llama", run, 1, 1)
    settings["optimizer"] = {"max_grad_norm": NORM} | tessera_adamw(RATE, BETAS, EPSILON, DECAY)
    settings["precision"] = {"compute": "bf16"} | ({} if name == "bf16" else {"matmul": name})
    (folder / "job.yaml").write_text(json.dumps(settings))
    subprocess.run([tessera, "train", str(folder / "job.yaml")], check=True, stdout=subprocess.DEVNULL)
    return tessera_figures(folder)[0]["losses"]


def run_once(tessera, data, who, name, run):
    with tempfile.TemporaryDirectory(prefix="fp8_peers_") as folder:
        folder = pathlib.Path(folder)
        make_files(folder, data, run)
        return ours(tessera, folder, name, run) if who == "tessera" else theirs(folder, name, run)


def by_window(losses, beside):
    off = [100 * (a / b - 1) for a, b in zip(losses, beside)]
    return [statistics.fmean(off[i:i + WINDOW]) for i in range(0, len(off) - WINDOW + 1, WINDOW)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out")
    options = parser.parse_args()
    report = report_head(__file__, [f"--steps {options.steps}"], [torch, transformers, torchao])
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {}
        for seed in options.seeds:
            run = {"steps": options.steps, "batch": 4, "length": 256, "seed": seed}
            for name in ("bf16", *options.recipes):
                for who in ("tessera", "torchao"):
                    runs[seed, name, who] = pool.submit(run_once, options.tessera, options.data, who, name, run)
        losses = {key: run.result() for key, run in runs.items()}
    print(f"percent above the same program's bf16, means of {WINDOW} steps")
    for (seed, name, who), own in losses.items():
        row = {"seed": seed, "recipe": name, "contestant": who, "losses": [round(loss, 5) for loss in own]}
        if name != "bf16":
            row["off"] = by_window(own, losses[seed, "bf16", who])
            print(f"seed {seed} {name:<16}{who:<8}" + "".join(f"{percent:>+7.2f}" for percent in row["off"]))
        elif who == "torchao":
            print(f"seed {seed} bf16            beside ours" + "".join(f"{percent:>+7.2f}" for percent in by_window(own, losses[seed, name, "tessera"])))
        report["rows"].append(row)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(report, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        theirs_here(pathlib.Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
    else:
        main()
