"""What the programs of this folder share: how results are written down, and a small problem, as in problem.h."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import gather_object
from torch.utils.data import Dataset

lines = []


def say(accelerator, name, *values):
    """Values of this rank: numbers, or tensors of them. Rank 0's are written."""
    if accelerator is not None and not accelerator.is_main_process:
        return
    numbers = []
    for value in values:
        if isinstance(value, torch.Tensor):
            numbers += value.detach().double().flatten().tolist()
        elif isinstance(value, (list, tuple)):
            numbers += [float(number) for number in value]
        else:
            numbers.append(float(value))
    lines.append(name + ": " + " ".join("%.17g" % number for number in numbers))


def say_all(accelerator, name, *values):
    """Values of every rank, in order."""
    numbers = []
    for value in values:
        numbers += value.detach().double().flatten().tolist() if isinstance(value, torch.Tensor) else [float(value)]
    say(accelerator, name, sum(gather_object([numbers]), []) if accelerator.num_processes > 1 else numbers)


# ---- a small problem: values are a formula, so that both programs have the same ----


def formula(*shape, phase=0.0):
    count = 1
    for size in shape:
        count *= size
    return (torch.sin(torch.arange(count, dtype=torch.float64) * 0.7 + phase) * 0.5).float().reshape(shape)


class Rows(Dataset):
    def __init__(self, count):
        self.data = formula(count, 4, phase=1.0)
        self.target = formula(count, 2, phase=2.0)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], self.target[index]


class Net(torch.nn.Module):
    """Two layers and a branch that no loss reaches."""

    def __init__(self, norm=False, unused=False):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.norm = torch.nn.BatchNorm1d(6) if norm else torch.nn.Identity()
        self.second = torch.nn.Linear(6, 2)
        self.unused = torch.nn.Linear(3, 3) if unused else None
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(formula(*parameter.shape, phase=float(i)))

    def forward(self, x):
        return self.second(torch.tanh(self.norm(self.first(x))))


def loss_of(output, target):
    return (output - target).square().mean()


def fresh(**options):
    """An Accelerator like the first one of a program."""
    AcceleratorState._reset_state(reset_partial_state=False)
    GradientState._reset_state()
    return Accelerator(**options)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def write_lines(path):
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
