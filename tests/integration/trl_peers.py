"""Losses and figures of learning from preferences beside TRL's DPOTrainer (sigmoid and ipo) and ORPOTrainer:
a small Llama that transformers made, the same pairs in the same order, several steps of AdamW in float32.

usage: trl_peers.py TESSERA [LOSS..]   (the command; needs torch, transformers, trl, datasets)
Prints what differs, and ends with 1 if anything does; with 77 where trl is missing."""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    import trl
    from datasets import Dataset
except ImportError as error:
    print(f"trl_peers.py: skipped: {error}")
    sys.exit(77)
try:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer
except ImportError:
    try:
        from trl import ORPOConfig, ORPOTrainer
    except ImportError:
        ORPOTrainer = None

tessera = str(pathlib.Path(sys.argv[1]).resolve())
root = pathlib.Path(__file__).resolve().parents[2]
STEPS, BATCH, BETA, RATE = 8, 4, 0.3, 0.002
TOLERANCE = 5e-5  # of each figure, relative to 1 or to itself, whichever is larger
NAMES = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]


def write_pairs(path):
    draw = random.Random(7)
    words = "red blue old wet big fox owl elk bee pig sees likes knows the".split()
    text = lambda least, most: " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))
    rows = [{"prompt": text(2, 9), "chosen": " " + text(1, 12), "rejected": " " + text(1, 12) + " no"} for _ in range(STEPS * BATCH)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def make_model(folder):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=5000, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    for file in (root / "tests/fixtures/tokenizers/qwen2_style").glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())


def ours(folder, run, loss):
    options = [f"--model.path={folder}", "--model.init=pretrained", f"--data.train=[{folder}/pairs.jsonl]", "--data.shape=preference",
               "--data.validation_fraction=0", "--data.seq_len=256", "--data.shuffle=false", "--data.packing=false",
               f"--preference.loss={loss}", f"--preference.beta={BETA}", f"--optimizer.learning_rate={RATE}", "--optimizer.weight_decay=0",
               "--optimizer.beta2=0.999", "--schedule.type=constant", f"--train.steps={STEPS}", f"--train.global_batch={BATCH}",
               "--train.sample_tokens=0", f"--train.run_dir={run}", "--parallel.num_ranks=2", "--checkpoint.at_end=false"]
    job = folder / "job.yaml"
    job.write_text("train: {}\n")
    done = subprocess.run([tessera, "train", str(job), *options], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"tessera train: {done.stdout}{done.stderr}")
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


if ORPOTrainer:
    class PaperOrpo(ORPOTrainer):
        """Its cross-entropy is that of the chosen answers, as in the paper; TRL's takes the prompts in."""

        def concatenated_forward(self, model, batch):
            found = super().concatenated_forward(model, batch)
            logits, labels = found[2], batch["chosen_labels"][:, 1:].to(found[2].device)  # those that predict something
            labels = torch.nn.functional.pad(labels, (0, logits.shape[1] - labels.shape[1]), value=-100)
            entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
            return (*found[:4], entropy, *found[5:])


def theirs(folder, rows, loss):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    common = dict(output_dir=str(folder / "trl"), per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=RATE, beta=BETA,
                  lr_scheduler_type="constant", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=1.0,
                  optim="adamw_torch", logging_steps=1, logging_nan_inf_filter=False, save_strategy="no", report_to=[], use_cpu=True,
                  bf16=False, gradient_checkpointing=False, train_sampling_strategy="sequential", disable_tqdm=True, max_length=128)
    data = Dataset.from_list(rows)
    if loss == "orpo":
        trainer = PaperOrpo(model=model, args=ORPOConfig(**common), train_dataset=data, processing_class=tokenizer)
    else:
        args = trl.DPOConfig(**common, loss_type=loss)
        trainer = trl.DPOTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


def differences(name, ours, theirs):
    if len(ours) != STEPS or len(theirs) != STEPS:
        return [f"{name}: {len(ours)} of our steps, {len(theirs)} of TRL's"]
    found, largest = [], 0.0
    for step, (mine, other) in enumerate(zip(ours, theirs), 1):
        keys = [("loss", "loss"), ("grad_norm", "grad_norm")] + [(key, key) for key in NAMES]
        if name.startswith("orpo"):
            keys += [(key, key) for key in ("nll_loss", "log_odds_ratio", "log_odds_chosen")]
        for key, their_key in keys:
            if key == "rewards/accuracies" and abs(float(other["rewards/margins"])) < 1e-6:
                continue  # equal rewards count half here, not at all there
            if key not in mine or their_key not in other:
                found.append(f"{name}: step {step}: {key} is missing")
                continue
            a, b = float(mine[key]), float(other[their_key])
            error = abs(a - b) / max(1.0, abs(b))
            largest = max(largest, error)
            if not error <= TOLERANCE:
                found.append(f"{name}: step {step}: {key} is {a}, TRL's {b}")
    print(f"{name}: {STEPS} steps, loss {ours[0]['loss']:.6f} to {ours[-1]['loss']:.6f}, largest difference {largest:.2g}", flush=True)
    return found


with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    rows = write_pairs(folder / "pairs.jsonl")
    make_model(folder)
    problems = []
    for loss in sys.argv[2:] or ["sigmoid", "ipo", "orpo"]:
        if loss == "orpo" and not ORPOTrainer:
            print("orpo: this trl has no ORPOTrainer")
            continue
        problems += differences(loss, ours(folder, folder / f"run_{loss}", loss),
                                theirs(folder, rows, loss))
print("\n".join(problems) if problems else "no difference")
sys.exit(1 if problems else 0)
