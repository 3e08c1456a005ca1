"""Full fine-tuning with `optimizer.type adamw8bit` beside transformers and bitsandbytes' AdamW8bit on the CPU, its embedding in 32 bits as
transformers' trainer sets it: losses of 20 steps on one rank and on several, and the codes and scales that both end with.

usage: adamw8bit_peers.py TESSERA   (the command; needs torch, transformers, bitsandbytes)
Prints what differs, and ends with 1 if anything does, with 77 where bitsandbytes is not installed."""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import bitsandbytes
    import numpy
    import torch
    import transformers
    from safetensors.torch import safe_open
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

tessera = sys.argv[1]
STEPS, ROWS, LENGTH, RATE, DECAY = 20, 12, 32, 1e-3, 0.1
TOLERANCE = 2e-5  # of losses, relative
LAYOUTS = {"one rank": {}, "three ranks, replicate": {"parallel.num_ranks": 3},
           "two ranks, full_shard": {"parallel.num_ranks": 2, "parallel.placement": "full_shard"},
           "three ranks, full_shard, in_backward": {"parallel.num_ranks": 3, "parallel.placement": "full_shard",
                                                    "optimizer.in_backward": "true"}}


def make_model(folder):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=300, hidden_size=72, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, head_dim=18, max_position_embeddings=64, tie_word_embeddings=False,
                                      bos_token_id=1, eos_token_id=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def theirs(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    bitsandbytes.optim.GlobalOptimManager.get_instance().register_module_override(
        model.model.embed_tokens, "weight", {"optim_bits": 32})
    optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    losses = []
    for step in range(STEPS):
        rows = [tokens[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(step * ROWS, (step + 1) * ROWS)]
        rows = torch.tensor(numpy.stack(rows).astype(numpy.int64))
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    states = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    return losses, states


def ours(folder, run, layout):
    settings = {"model.path": folder, "model.init": "pretrained", "data.train": f"[{folder / 'tokens.bin'}]", "data.seq_len": LENGTH,
                "data.format": "tokens", "data.shuffle": "false", "data.validation_fraction": 0, "optimizer.type": "adamw8bit",
                "optimizer.learning_rate": RATE, "optimizer.weight_decay": DECAY, "optimizer.decay_norms_and_biases": "true",
                "optimizer.max_grad_norm": 0, "schedule.type": "constant", "train.steps": STEPS, "train.global_batch": ROWS,
                "train.run_dir": run, "logging.progress": "none", **layout}
    job = folder / "job.yaml"
    job.write_text("train: {}\n")
    done = subprocess.run([tessera, "train", str(job), *(f"--{key}={value}" for key, value in settings.items())], capture_output=True,
                          text=True)
    if done.returncode:
        sys.exit(f"tessera train: {done.stdout}{done.stderr}")
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    return losses[:STEPS]


def stored_states(run):
    """What lies whole in the checkpoint of a run of one rank."""
    states = {}
    for file in (run / "checkpoints" / f"step_{STEPS:08}").glob("*.safetensors"):
        with safe_open(file, "pt") as stored:
            states.update({name: stored.get_tensor(name) for name in stored.keys()})
    return states


def values(codes, scales, is_signed):
    code = bitsandbytes.functional.create_dynamic_map(signed=is_signed)
    return torch.ops.bitsandbytes.dequantize_blockwise(codes, scales, code, 256, torch.float32).flatten()


def check_states(run, peers):
    """After 20 steps of feedback from other orders of sums: most codes are the same, and so are the values within a hundredth."""
    found, coded, same, numbers, worst = [], 0, 0, 0, 0.0
    stored = stored_states(run)
    for name, state in peers.items():
        in_codes = f"optimizer/exp_avg_codes/{name}" in stored
        if in_codes != (state["state1"].dtype == torch.uint8):
            found.append(f"{name}: 8 bits here {in_codes}, there {state['state1'].dtype}")
        if not in_codes or found:
            continue
        coded += 1
        for moment, number, is_signed in (("exp_avg", 1, True), ("exp_avg_sq", 2, False)):
            codes, scales = (stored[f"optimizer/{moment}_{part}/{name}"] for part in ("codes", "absmax"))
            same += (codes == state[f"state{number}"]).sum().item()
            numbers += codes.numel()
            here, there = values(codes, scales, is_signed), values(state[f"state{number}"], state[f"absmax{number}"], is_signed)
            error = ((here - there).norm() / there.norm()).item()
            worst = max(worst, error)
            if not error <= 1e-2:
                found.append(f"{name}: {moment} differs by {error:.2g}")
    print(f"{coded} parameters in 8 bits, {len(peers) - coded} in 32, as there; {same / max(1, numbers):.2%} of {numbers} codes are the same, "
          f"values differ by {worst:.2g} of their norm at most")
    return found + ([] if same > 0.95 * numbers else ["too few codes are the same"])


def main():
    torch.set_num_threads(1)
    problems = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        make_model(folder)
        places = numpy.arange(STEPS * ROWS * LENGTH + 1)
        tokens = ((places * 7 + (places // 11) ** 2) % 300).astype(numpy.uint16)
        tokens.tofile(folder / "tokens.bin")
        expected, states = theirs(folder, tokens)
        for number, (name, layout) in enumerate(LAYOUTS.items()):
            losses = ours(folder, folder / f"run_{number}", layout)
            if len(losses) != STEPS:
                problems.append(f"{name}: {len(losses)} losses")
                continue
            largest = max(abs(a / b - 1) for a, b in zip(losses, expected))
            print(f"{name}: loss {losses[0]:.6f} to {losses[-1]:.6f}, largest relative difference {largest:.2g}", flush=True)
            if not largest <= TOLERANCE:
                problems.append(f"{name}: losses differ by {largest:.2g}")
            if number == 0:
                problems += check_states(folder / "run_0", states)
    print("\n".join(problems) if problems else "no difference")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
