"""Runs Accelerate's examples/by_feature as they are, on generated sentence pairs and a small model.

usage: by_feature.py FOLDER EXAMPLE.py [its options] [-- EXAMPLE.py [its options]] ..

What the examples import beside Accelerate (transformers, datasets, evaluate, scikit-learn) is stood in for here by what
examples/accelerate/by_feature/pairs.h has in C++. Shuffling is a fixed order, the same in both. Rank 0 writes the loss of each
training step and what the example prints of its epochs to FOLDER/<example>_<processes>.txt; an example that is named again goes
on in that file. printed.sh makes such lines of what the examples of C++ print."""

import builtins
import dataclasses
import importlib.machinery
import math
import os
import runpy
import sys
import tempfile
import types

import torch
from torch.optim.lr_scheduler import LambdaLR

lines = []
lines_of = {}  # by example
LENGTH, WORDS, DIM, HIDDEN, GAIN = 10, 41, 8, 16, 60.0


class Table:
    def __init__(self, rows):
        self.rows = rows
        self.num_rows = len(rows)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]

    def select(self, indices):
        return Table([self.rows[i] for i in indices])


class DatasetDict(dict):
    def map(self, *_, **__):
        return self

    def rename_column(self, old, new):
        return DatasetDict({name: Table([{"input_ids": row["input_ids"], new: row[old]} for row in table.rows]) for name, table in self.items()})


def pair(i):
    label = (i * i // 3 + i // 2) % 2
    count = 4 + i * 5 % 7
    words = [1 + (i * 13 + j * 7 + label * j * 3) % (WORDS - 1) for j in range(count)]
    return {"input_ids": words + [0] * (LENGTH - count), "label": label}


def load_dataset(*_):
    return DatasetDict({"train": Table([pair(i) for i in range(246)]), "validation": Table([pair(1000 + i) for i in range(70)])})


class Batch(dict):
    def to(self, *_, **__):
        return self


class Tokenizer:
    @staticmethod
    def from_pretrained(*_, **__):
        return Tokenizer()

    def pad(self, examples, **_):
        return Batch({name: torch.tensor([row[name] for row in examples]) for name in examples[0]})


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, DIM)
        self.hidden = torch.nn.Linear(DIM, HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, 2)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                values = torch.sin(torch.arange(parameter.numel(), dtype=torch.float64) * 0.7 + i) * 0.02
                parameter.copy_(values.float().reshape(parameter.shape))

    @staticmethod
    def from_pretrained(*_, **__):
        return Classifier()

    def forward(self, input_ids, labels):
        there = (input_ids != 0).float()
        mean = (self.words(input_ids) * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        logits = GAIN * self.out(torch.tanh(GAIN * self.hidden(GAIN * mean)))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        if self.training and torch.is_grad_enabled():
            lines.append("loss %.8f" % loss.item())
        return Output(loss, logits)


class Metric:
    def __init__(self):
        self.predictions, self.references = [], []

    def add_batch(self, predictions, references):
        self.predictions += predictions.tolist()
        self.references += references.tolist()

    def compute(self, predictions=None, references=None):
        if predictions is not None:
            self.add_batch(predictions, references)
        pairs = list(zip(self.predictions, self.references))
        self.__init__()
        hits = sum(p == r for p, r in pairs)
        true = sum(p == r == 1 for p, r in pairs)
        ones = sum(p for p, _ in pairs) + sum(r for _, r in pairs)
        return {"accuracy": hits / len(pairs), "f1": 2 * true / ones if ones else 0.0}


def warmup(optimizer, num_warmup_steps, num_training_steps):
    def factor(step):
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))

    return LambdaLR(optimizer, factor)


class Folds:
    """Every n-th row of each class is held out."""

    def __init__(self, n_splits):
        self.n = n_splits

    def split(self, _, labels):
        fold_of, seen = [], {}
        for label in labels:
            fold_of.append(seen.get(label, 0) % self.n)
            seen[label] = seen.get(label, 0) + 1
        for fold in range(self.n):
            yield [i for i, of in enumerate(fold_of) if of != fold], [i for i, of in enumerate(fold_of) if of == fold]


class InOrder(torch.utils.data.Sampler):
    """Stands for shuffling."""

    def __init__(self, table):
        self.count = len(table)
        self.step = next(step for step in range(37, 1000) if math.gcd(step, self.count) == 1)

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter([(i * self.step + 11) % self.count for i in range(self.count)])


def module(name, **members):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name].__dict__.update(members)


# Of the profiler's table: what the model and the loss call in both languages (LibTorch has no aten::linear: its modules call addmm).
OPERATORS = """addmm tanh tanh_backward embedding embedding_backward embedding_dense_backward index_select ne cross_entropy_loss
log_softmax _log_softmax_backward_data nll_loss nll_loss_forward nll_loss_backward""".split()


def shown(*words, **_):
    text = " ".join(str(word) for word in words)
    if text.startswith(("epoch", "Average")):
        lines.append("".join(c for c in text if c not in "{},'"))
    elif "Memory" in text:
        lines.append(text.rsplit(":", 1)[0] + ": number")
    elif "# of Calls" in text:
        rows = [row.split() for row in text.splitlines()]
        lines.append("columns " + " ".join(next(row for row in rows if row[:1] == ["Name"])))
        lines.extend(sorted(f"operator {row[0]} {row[-1]}" for row in rows if row and row[0].removeprefix("aten::") in OPERATORS))


def logged():
    """What TensorBoard's files below this folder hold."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for folder, _, files in os.walk("."):
        for file in files:
            if file == "hparams.yml":
                found += ["parameter " + line.strip().replace(": ", " ") for line in open(os.path.join(folder, file))]
            elif file.startswith("events."):
                events = EventAccumulator(os.path.join(folder, file)).Reload()
                for tag in events.Tags()["scalars"]:
                    found += [f"logged {tag} {event.step} {event.value:.8f}" for event in events.Scalars(tag)]
    lines.extend(sorted(found))


import accelerate  # noqa: E402: before the stand-ins
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402
from sharded_on_cpus import sharded_on_cpus  # noqa: E402

sharded_on_cpus()

module("transformers", AutoModelForSequenceClassification=Classifier, AutoTokenizer=Tokenizer, get_linear_schedule_with_warmup=warmup, set_seed=set_seed)
module("datasets", load_dataset=load_dataset, DatasetDict=DatasetDict)
module("evaluate", load=lambda *_: Metric())
module("sklearn")
module("sklearn.model_selection", StratifiedKFold=Folds)
builtins.in_order, builtins.print = InOrder, shown
PartialState.destroy_process_group = lambda *_: None  # the next example uses it, too



def run(example, options, out):
    AcceleratorState._reset_state(reset_partial_state=False)
    GradientState._reset_state()
    name = os.path.basename(example).removesuffix(".py")
    lines.clear()
    source = open(example).read().replace("shuffle=True", "sampler=in_order(tokenized_datasets['train'])")
    # This example knows the memory of GPUs alone, and ends on others.
    source = source.replace("class TorchTracemalloc:", "class TorchTracemalloc:\n    begin = end = peak = 0\n")
    with tempfile.NamedTemporaryFile("w", suffix="_" + os.path.basename(example)) as copy:
        copy.write(source)
        copy.flush()
        sys.argv = [example] + options
        runpy.run_path(copy.name, run_name="__main__")
    if "--with_tracking" in options and int(os.environ.get("RANK", 0)) == 0:
        logged()
    lines_of[name] = lines_of.get(name, []) + lines
    if int(os.environ.get("RANK", 0)) == 0:
        with open(os.path.join(out, name + "_" + os.environ.get("WORLD_SIZE", "1") + ".txt"), "w") as file:
            file.write("\n".join(lines_of[name]) + "\n")


folder, words = sys.argv[1], sys.argv[2:] + ["--"]
while words:
    end = words.index("--")
    (example, *options), words = words[:end], words[end + 1 :]
    run(example, options, folder)
