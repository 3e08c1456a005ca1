#!/usr/bin/env python3
"""Small jobs of many kinds, each on this machine's GPU and on its CPU: the same losses within rounding.

    python3 bench/gpu/parity.py --bin FOLDER --out FOLDER [JOB ..]
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

from train import BF16 as BF16_WHOLE
from train import COMMON

TINY = {"model.preset": "tiny", "data.seq_len": 128, "train.global_batch": 4, "train.micro_batch": 2}
# Within rounding: of sums of float32 in another order, and of products in 16 bits after some steps.
FP32, BF16 = 2e-5, 2e-2

DRIVES = {"offload.paths": "[drives]", "offload.any_file_system": "true", "offload.host_memory": 64}  # within the job's folder


def family(name):
    return {"path": name, "data.seq_len": 32, "train.global_batch": 4, "train.micro_batch": 2}


JOBS = {
    "llama": (FP32, TINY),
    "full": (FP32, TINY | {"memory.checkpointing": "full"}),
    "feed_forward": (FP32, TINY | {"memory.checkpointing": "feed_forward"}),
    "feed_forward_bf16": (BF16, TINY | {"memory.checkpointing": "feed_forward", "precision.compute": "bf16"}),
    "selective_bf16": (BF16, TINY | {"memory.checkpointing": "selective", "precision.compute": "bf16"}),
    "bf16_whole": (BF16, TINY | BF16_WHOLE | {"precision.stochastic_rounding": "true"}),
    "autocast": (BF16, TINY | {"precision.compute": "bf16", "precision.autocast": "true"}),
    "fp16": (BF16, TINY | {"precision.compute": "fp16"}),
    "documents": (FP32, TINY | {"data.document_mask": "true", "data.document_end": 10}),
    "documents_bf16": (BF16, TINY | {"data.document_mask": "true", "data.document_end": 10, "precision.compute": "bf16"}),
    "gpt2_dropout": (FP32, TINY | {"model.preset": "gpt2", "model.num_layers": 2, "model.dropout": 0.1}),
    "muon": (2e-4, TINY | {"optimizer.type": "muon"}),
    "lion": (FP32, TINY | {"optimizer.type": "lion", "optimizer.learning_rate": 0.0001}),
    "adamw8bit": (2e-3, TINY | {"optimizer.type": "adamw8bit"}),
    "adamw8bit_bf16": (BF16, TINY | BF16_WHOLE | {"optimizer.type": "adamw8bit", "precision.optimizer_states": "fp32", "precision.stochastic_rounding": "true"}),
    "lora": (FP32, TINY | {"adapter.type": "lora", "adapter.targets": "[all-linear]", "adapter.dropout": 0.1}),
    "dora": (FP32, TINY | {"adapter.type": "dora"}),
    "nf4_double_lora": (FP32, TINY | {"adapter.type": "lora", "adapter.targets": "[all-linear]", "model.weights": "nf4_double"}),
    "nf4_lora": (FP32, TINY | {"adapter.type": "lora", "adapter.targets": "[all-linear]", "model.weights": "nf4"}),
    "in_backward": (FP32, TINY | {"optimizer.in_backward": "true", "optimizer.max_grad_norm": 0, "train.micro_batch": 0}),
    "offload_optimizer": (FP32, TINY | {"parallel.offload_optimizer": "true"}),
    "offload_sharded": (FP32, TINY | {"parallel.placement": "full_shard", "parallel.offload_optimizer": "true"}),
    "offload_params": (FP32, TINY | {"parallel.offload_params": "true"}),
    "drives": (FP32, TINY | DRIVES | {"parallel.offload_optimizer": "nvme"}),
    "drives_all": (FP32, TINY | DRIVES | {"parallel.placement": "full_shard", "parallel.offload_optimizer": "nvme", "parallel.offload_gradients": "nvme"}),
    "offload_activations": (FP32, TINY | {"memory.checkpointing": "full", "memory.offload_activations": "true"}),
    "fp8_tensor": (0.1, TINY | {"precision.compute": "bf16", "precision.matmul": "fp8_tensor"}),
    "fp8_delayed": (0.1, TINY | {"precision.compute": "bf16", "precision.matmul": "fp8_delayed"}),
    "fp8_row": (0.1, TINY | {"precision.compute": "bf16", "precision.matmul": "fp8_row"}),
    "fp8_block": (0.1, TINY | {"precision.compute": "bf16", "precision.matmul": "fp8_block", "precision.fp8_pad": "true"}),
    "msamp_o2": (0.1, TINY | {"precision.preset": "msamp_o2"}),
    "mistral_window_bf16": (BF16, family("mistral") | {"precision.compute": "bf16"}),
    "gemma2": (FP32, family("gemma2")),
    "gemma3_bf16": (BF16, family("gemma3") | {"precision.compute": "bf16"}),
    "qwen3": (FP32, family("qwen3")),
    "olmo2": (FP32, family("olmo2")),
    "phi3": (FP32, family("phi3")),
    "gpt_oss": (FP32, family("gpt_oss")),
    "mixtral": (FP32, family("mixtral")),
    "qwen3_moe_bf16": (BF16, family("qwen3_moe") | {"precision.compute": "bf16"}),
    "deepseek_v3": (FP32, family("deepseek_v3")),
}


def losses(name, backend, settings, arguments):
    folder = arguments.out / f"{name}_{backend}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text("{}\n")
    settings = COMMON | {"train.steps": 6, "data.token_dtype": "uint16", "optimizer.learning_rate": 0.001,
                         "data.train": f"[{arguments.tokens}]"} | settings
    if "offload.paths" in settings:
        (folder / "drives").mkdir(exist_ok=True)
        settings["offload.paths"] = f"[{folder / 'drives'}]"
    settings |= {"parallel.backend": backend, "train.run_dir": folder / "run", "parallel.threads_per_rank": 1}
    if backend == "gloo":
        settings.pop("memory.offload_activations", None)  # there the host's memory is the device's
    if "path" in settings:
        settings["model.path"] = arguments.families / settings.pop("path")
    command = [arguments.bin / "tessera", "train", folder / "job.yaml", *(f"--{k}={v}" for k, v in settings.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout)
    if done.returncode != 0:
        raise RuntimeError(f"exit {done.returncode}: {(done.stderr + done.stdout).strip()[-600:]}")
    return [json.loads(line)["loss"] for line in open(folder / "run" / "metrics.jsonl") if '"loss"' in line]


def compare(name, arguments):
    bound, settings = JOBS[name]
    try:
        on_gpu, on_cpu = (losses(name, backend, settings, arguments) for backend in (arguments.device, "gloo"))
    except Exception as error:  # the others are to be compared all the same
        return name, None, f"FAILED {error}"
    worst = max(abs(a - b) for a, b in zip(on_gpu, on_cpu))
    return name, worst, f"{'ok    ' if worst <= bound else 'FAILED'} {worst:.2e} of {bound:.0e}, loss {on_cpu[0]:.4f} .. {on_cpu[-1]:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=pathlib.Path, default="tests/fixtures/tokens_head.bin")
    parser.add_argument("--families", type=pathlib.Path, default="tests/fixtures/families")
    parser.add_argument("--device", default="nccl", help="parallel.backend of the first of both")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--timeout", type=int, default=60)
    parser.add_argument("names", nargs="*", default=list(JOBS))
    arguments = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda name: compare(name, arguments), arguments.names))
    for name, _, text in results:
        print(f"{name:22} {text}")
    json.dump({name: worst for name, worst, _ in results}, open(arguments.out / "parity.json", "w"))
    failed = [name for name, _, text in results if not text.startswith("ok")]
    print(f"parity: {len(results) - len(failed)} of {len(results)} alike")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
