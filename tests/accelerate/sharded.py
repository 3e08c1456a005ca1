"""What Accelerate does with FSDP 1 and 2 and with DeepSpeed's ZeRO 1 to 3, which sharded.cpp does, too.

usage: ACCELERATE_USE_CPU=true torchrun --nproc_per_node N sharded.py FILE ddp|fsdp1|fsdp2|zero1|zero2|zero3 [no|bf16|fp16]

DeepSpeed wants DS_ACCELERATOR=cpu. fp16: ddp alone. Names that begin with `bf16` or `fp16` are compared as 16 bits allow
(compare.cpp)."""

import os
import sys

import torch
from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState, PartialState
from problem import Net, Rows, loss_of, say, say_all, write_lines
from sharded_on_cpus import sharded_on_cpus
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader

CLIP = 0.05


def begin(kind, precision, steps):
    AcceleratorState._reset_state(reset_partial_state=False)
    GradientState._reset_state()
    plugins = {}
    if kind.startswith("fsdp"):
        plugins["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=int(kind[-1]), auto_wrap_policy="size_based_wrap", min_num_params=10, use_orig_params=True if kind == "fsdp1" else None
        )
    elif kind.startswith("zero"):
        plugins["deepspeed_plugin"] = DeepSpeedPlugin(zero_stage=int(kind[-1]), gradient_clipping=CLIP, gradient_accumulation_steps=steps)
    return Accelerator(mixed_precision=precision, gradient_accumulation_steps=steps, **plugins)


def whole_weights(model, kind, size):
    if size > 1 and kind == "fsdp1":
        with FullyShardedDataParallel.summon_full_params(model):
            return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])
    if kind == "zero3":
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])
    whole = [parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter for parameter in model.parameters()]
    return torch.cat([parameter.detach().flatten().float() for parameter in whole])


class HalfPrecision:
    """What Accelerate does for fp16, by PyTorch's own means: on CPUs it refuses fp16."""

    def __init__(self, accelerator, net, optimizer):
        self.accelerator, self.net, self.optimizer = accelerator, net, optimizer
        self.scaler = torch.amp.GradScaler("cpu")

    def loss(self, data, target):
        with torch.autocast("cpu", dtype=torch.float16):
            output = self.net(data)
        return loss_of(output.float(), target)

    def backward(self, loss):
        self.scaler.scale(loss / self.accelerator.gradient_accumulation_steps).backward()

    def clip(self):
        self.scaler.unscale_(self.optimizer)
        return torch.nn.utils.clip_grad_norm_(self.net.parameters(), CLIP)

    def step(self):
        if self.accelerator.sync_gradients:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()


def train_half(name, make, steps=1, clip=False, rows=16, **more):
    accelerator = begin("ddp", "no", steps)
    net = Net()
    optimizer = make(net.parameters(), **more)
    net, loader = accelerator.prepare(net, DataLoader(Rows(rows), batch_size=2))
    half = HalfPrecision(accelerator, net, optimizer)
    losses, norms = [], []
    for _ in range(2):
        for data, target in loader:
            with accelerator.accumulate(net):
                loss = half.loss(data, target)
                half.backward(loss)
                if clip:
                    norms.append(float(half.clip()))
                half.step()
            losses.append(loss.item())
    say_all(accelerator, f"fp16.{name}.losses", *losses)
    if clip:
        say(accelerator, f"fp16.{name}.norms", norms)
    say(accelerator, f"fp16.{name}.weights", whole_weights(net, "ddp", accelerator.num_processes))


def train(kind, precision, name, make, steps=1, clip=False, rows=16, **more):
    if precision == "fp16":
        train_half(name, make, steps, clip, rows, **more)
        return
    accelerator = begin(kind, precision, steps)
    net = Net()
    optimizer = make(net.parameters(), **more)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(Rows(rows), batch_size=2))
    losses, norms = [], []
    for _ in range(2):
        for data, target in loader:
            with accelerator.accumulate(net):
                if precision == "bf16" and kind.startswith("zero"):
                    data = data.bfloat16()  # DeepSpeed's models want it so, ours cast it
                loss = loss_of(net(data).float(), target)
                accelerator.backward(loss)
                if clip:
                    norms.append(float(accelerator.clip_grad_norm_(net.parameters(), CLIP)))
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    name = ("" if precision == "no" else precision + ".") + name
    say_all(accelerator, name + ".losses", *losses)
    if clip:
        say(accelerator, name + ".norms", norms)
    weights = whole_weights(net, kind, accelerator.num_processes)
    say(accelerator, name + ".weights", weights)


def main():
    path, kind, precision = sys.argv[1], sys.argv[2], (sys.argv + ["no"])[3]
    if kind.startswith("zero"):
        # Accelerate takes DeepSpeed for GPUs alone: the processes join as those of a CPU first.
        PartialState(cpu=True)
        os.environ.pop("ACCELERATE_USE_CPU", None)
    else:
        sharded_on_cpus()
    train(kind, precision, "adamw.clipped", torch.optim.AdamW, clip=True, lr=0.02, weight_decay=0.1)
    train(kind, precision, "sgd", torch.optim.SGD, lr=0.1, momentum=0.9)
    train(kind, precision, "adamw.accumulated", torch.optim.AdamW, steps=2, rows=20, lr=0.02)
    if int(os.environ.get("RANK", 0)) == 0:
        write_lines(path)
    Accelerator().wait_for_everyone()
    os._exit(0)  # DeepSpeed's shared memory may keep the processes from their end


main()
