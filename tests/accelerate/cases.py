"""What Hugging Face Accelerate does in the cases that cases.cpp has, too, line by line.

usage: ACCELERATE_USE_CPU=true torchrun --nproc_per_node N cases.py FILE

Rank 0 writes a line for each result to FILE: its name, a colon, numbers. Names that begin with `exact` are compared to the last
bits, others to a hundred-thousandth (compare.cpp)."""

import contextlib
import os
import sys
import tempfile
import time

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.local_sgd import LocalSGD
from accelerate.utils import DataLoaderConfiguration, gather_object
from problem import Net, Rows, formula, fresh, loss_of, say, say_all, weights, write_lines
from torch.distributed.algorithms.join import Join
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

# ---- the cases ----


def train(accelerator, name, rows=16, batch_size=2, epochs=1, make=torch.optim.SGD, rate=0.1, net=None, zero=True, clip=None, **more):
    net = net or Net()
    optimizer = make(net.parameters(), lr=rate, **more)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(Rows(rows), batch_size=batch_size))
    losses, norms = [], []
    for _ in range(epochs):
        for data, target in loader:
            with accelerator.accumulate(net):
                loss = loss_of(net(data), target)
                accelerator.backward(loss)
                if clip is not None:
                    norms.append(clip(net))
                optimizer.step()
                if zero:
                    optimizer.zero_grad()
            losses.append(loss.item())
    say_all(accelerator, name + ".losses", *losses)
    if norms:
        say_all(accelerator, name + ".norms", *[norm.item() for norm in norms if norm is not None])
    say(accelerator, name + ".weights", weights(net))
    return net


def optimizers():
    for make, more in (
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
        (torch.optim.Adagrad, {"initial_accumulator_value": 0.2}),
    ):
        train(fresh(), "optimizer." + make.__name__, epochs=2, make=make, rate=0.02, **more)


def part_of_a_model():
    accelerator = fresh(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    net = Net()
    optimizer = torch.optim.SGD(net.first.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(Rows(12), batch_size=2))
    for data, target in loader:
        accelerator.backward(loss_of(model(data), target))
        optimizer.step()
        optimizer.zero_grad()
    say(accelerator, "part_of_a_model.weights", weights(model))


def two_optimizers():
    accelerator = fresh()
    net = Net()
    first, second = torch.optim.SGD(net.first.parameters(), lr=0.1), torch.optim.Adam(net.second.parameters(), lr=0.05)
    model, first, second, loader = accelerator.prepare(net, first, second, DataLoader(Rows(12), batch_size=2))
    for data, target in loader:
        accelerator.backward(loss_of(model(data), target))
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
    say(accelerator, "two_optimizers.weights", weights(model))


def unused_parameters():
    accelerator = fresh(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    train(accelerator, "unused_parameters", net=Net(unused=True), make=torch.optim.AdamW, rate=0.05, weight_decay=0.5)


def clipping():
    def norm(net):
        return accelerator.clip_grad_norm_(net.parameters(), 0.05)

    def values(net):
        accelerator.clip_grad_value_(net.parameters(), 0.01)

    for steps in (1, 2):
        accelerator = fresh(gradient_accumulation_steps=steps)
        train(accelerator, f"clip_norm.every_micro_batch.{steps}", clip=norm)
        accelerator = fresh(gradient_accumulation_steps=steps)
        train(accelerator, f"clip_value.every_micro_batch.{steps}", clip=values)
    accelerator = fresh()
    train(accelerator, "clip_norm.maximum", clip=lambda net: accelerator.clip_grad_norm_(net.parameters(), 0.05, norm_type=float("inf")))
    accelerator = fresh()
    train(accelerator, "clip_norm.one", clip=lambda net: accelerator.clip_grad_norm_(net.parameters(), 0.05, norm_type=1))


def buffers():
    for steps in (1, 2):
        accelerator = fresh(gradient_accumulation_steps=steps)
        net = train(accelerator, f"buffers.{steps}", net=Net(norm=True), epochs=1)
        net.eval()
        with torch.no_grad():
            net(formula(3, 4))
        norm = accelerator.unwrap_model(net).norm
        say_all(accelerator, f"buffers.{steps}.after_a_forward", norm.running_mean, norm.running_var)


def schedule_of(name, make, steps=1000):
    """Rates of the first 20 steps, of each 37th, and the sum of all."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    groups = [{"params": [parameter], "lr": 0.1}, {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.03}]
    optimizer = torch.optim.AdamW(groups)
    scheduler = make(optimizer)
    rates, total = [], 0.0
    for step in range(steps):
        if step < 20 or step % 37 == 0:
            rates += [group["lr"] for group in optimizer.param_groups] + [optimizer.param_groups[0]["betas"][0]]
        total += sum(group["lr"] for group in optimizer.param_groups)
        optimizer.step()
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(float(formula(1, phase=step * 0.01)) + 1.0 / (step + 1))
        elif step + 1 < steps:
            scheduler.step()
    say(None, "exact.schedule." + name, rates, total)


def schedules():
    s = lr_scheduler
    schedule_of("step", lambda o: s.StepLR(o, 30, gamma=0.7))
    schedule_of("step_1", lambda o: s.StepLR(o, 1, gamma=0.99))
    schedule_of("multi_step", lambda o: s.MultiStepLR(o, [3, 3, 100, 400], gamma=0.5))
    schedule_of("exponential", lambda o: s.ExponentialLR(o, 0.997))
    schedule_of("cosine", lambda o: s.CosineAnnealingLR(o, 100, eta_min=0.001))
    schedule_of("cosine_whole", lambda o: s.CosineAnnealingLR(o, 1000))
    schedule_of("linear", lambda o: s.LinearLR(o, start_factor=0.1, total_iters=200))
    schedule_of("linear_down", lambda o: s.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=990))
    schedule_of("one_cycle", lambda o: s.OneCycleLR(o, 0.5, total_steps=1000))
    schedule_of("one_cycle_three", lambda o: s.OneCycleLR(o, 0.5, total_steps=1000, three_phase=True, anneal_strategy="linear"))
    schedule_of("lambda", lambda o: s.LambdaLR(o, lambda step: 1.0 / (1 + 0.01 * step)))
    schedule_of("lambdas", lambda o: s.LambdaLR(o, [lambda step: 0.99**step, lambda step: 1.0 / (1 + step)]))
    schedule_of("plateau", lambda o: s.ReduceLROnPlateau(o, patience=5, factor=0.5, cooldown=2, min_lr=1e-6))
    schedule_of("plateau_max", lambda o: s.ReduceLROnPlateau(o, mode="max", patience=20, threshold_mode="abs", threshold=0.01))
    schedule_of(
        "sequential",
        lambda o: s.SequentialLR(o, [s.LinearLR(o, start_factor=0.01, total_iters=50), s.CosineAnnealingLR(o, 600), s.ExponentialLR(o, 0.99)], [50, 650]),
    )
    schedule_of(
        "sequential_steps",
        lambda o: s.SequentialLR(o, [s.LambdaLR(o, lambda step: 0.1 * (step + 1)), s.StepLR(o, 7), s.MultiStepLR(o, [2, 9])], [9, 30]),
    )


def prepared_schedules():
    for name, options, make in (
        ("step", {"gradient_accumulation_steps": 2}, lambda o: lr_scheduler.StepLR(o, 3)),
        ("split", {"dataloader_config": DataLoaderConfiguration(split_batches=True)}, lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        ("one_cycle", {}, lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=10)),
        ("alone", {"step_scheduler_with_optimizer": False, "gradient_accumulation_steps": 2}, lambda o: lr_scheduler.StepLR(o, 2)),
    ):
        accelerator = fresh(**options)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = make(optimizer)
        net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
        rates = []
        for _ in range(8):
            with accelerator.accumulate(net):
                accelerator.backward(net(formula(2, 4)).sum())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            rates.append(scheduler.get_last_lr()[0])
        say(accelerator, "prepared_schedule." + name, rates)


def new_folder():
    """The same on all processes."""
    folder = tempfile.mkdtemp() if int(os.environ.get("RANK", 0)) == 0 else None
    return gather_object([folder])[0] if int(os.environ.get("WORLD_SIZE", 1)) > 1 else folder


def resume_in_an_epoch():
    """Steps that go on from a checkpoint equal those of the run that was not interrupted."""
    folder = new_folder()

    def run(resume):
        accelerator = fresh()
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
        scheduler = lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        loader = DataLoader(Rows(20), batch_size=2)
        net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
        active = loader
        if resume:
            accelerator.load_state(folder)
            active = accelerator.skip_first_batches(loader, 2)
        losses = []
        for step, (data, target) in enumerate(active):
            loss = loss_of(net(data), target)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if step == 1 and not resume:
                accelerator.save_state(folder)
        say_all(accelerator, "resume." + ("resumed" if resume else "whole"), *losses)
        say(accelerator, "resume." + ("resumed" if resume else "whole") + ".weights", weights(net), scheduler.get_last_lr())

    run(False)
    run(True)


def exchange():
    accelerator = fresh()
    rank, size = accelerator.process_index, accelerator.num_processes
    scalar = accelerator.gather(torch.tensor(float(rank)))
    say(accelerator, "gather.scalar", scalar.dim(), scalar)
    pair = accelerator.gather((torch.full((2,), rank), {"a": torch.full((1, 2), rank + 0.5)}))
    say(accelerator, "gather.nested", pair[0], pair[1]["a"])
    say(accelerator, "gather.objects", accelerator.gather_for_metrics([rank, rank + 10], use_gather_object=True))
    for reduction in ("sum", "mean", "none", "max"):
        say(accelerator, "reduce." + reduction, accelerator.reduce(torch.tensor([1.5, 2.0 + rank]), reduction=reduction))
    if size > 1:
        integers = torch.tensor([1, 2 + rank])
        try:
            accelerator.reduce(integers, reduction="mean")
        except RuntimeError:  # there an error; the mean is that of the same numbers as floats
            integers = integers.float()
        say(accelerator, "reduce.mean_of_integers", accelerator.reduce(integers, reduction="mean"))
    say(accelerator, "reduce.scale", accelerator.reduce(torch.tensor([1.5, 2.0]), scale=0.5))
    padded = accelerator.pad_across_processes(torch.full((rank + 1, 2), float(rank)), dim=0, pad_index=-1)
    say(accelerator, "pad", padded.shape, padded)
    same = accelerator.pad_across_processes(torch.full((2,), float(rank)), dim=1)
    say(accelerator, "pad.missing_dimension", same.shape, same)
    with accelerator.split_between_processes(list(range(7)), apply_padding=True) as mine:
        say_all(accelerator, "split", *mine)
    say(accelerator, "size", size)


def who_runs():
    accelerator = fresh()
    if accelerator.num_processes == 1:
        return
    ran = [0] * 5

    def mark(i):
        def set_value(value):
            ran[i] = value

        return set_value

    accelerator.on_main_process(mark(0))(1)
    accelerator.on_local_main_process(mark(1))(2)
    accelerator.on_last_process(mark(2))(3)
    accelerator.on_process(mark(3), process_index=1)(4)
    accelerator.on_local_process(mark(4), local_process_index=1)(5)
    say_all(accelerator, "who_runs", *ran)


def who_is_first():
    accelerator = fresh()
    if accelerator.num_processes == 1:
        return
    folder = new_folder()
    for name in ("main_process_first", "local_main_process_first"):
        with getattr(accelerator, name)():
            if accelerator.is_main_process:
                time.sleep(0.3)
            seen = os.path.exists(os.path.join(folder, name))
            open(os.path.join(folder, name), "w").close()
        accelerator.wait_for_everyone()
        say_all(accelerator, name, seen)
    accelerator.save(formula(3, phase=float(accelerator.process_index)), os.path.join(folder, "saved"))
    accelerator.wait_for_everyone()
    say_all(accelerator, "saved", torch.load(os.path.join(folder, "saved")))


def lengths():
    for rows, batch in ((20, 3), (24, 4), (7, 2), (1, 4)):
        for drop_last in (False, True):
            for name, config in (
                ("plain", {}),
                ("uneven", {"even_batches": False}),
                ("split", {"split_batches": True}),
                ("dispatch", {"dispatch_batches": True}),
            ):
                if name == "split" and 6 % 2:
                    continue
                accelerator = fresh(dataloader_config=DataLoaderConfiguration(**config))
                size = 6 if name == "split" else batch
                loader = accelerator.prepare(DataLoader(Rows(rows), batch_size=size, drop_last=drop_last))
                say_all(accelerator, f"length.{name}.{rows}.{batch}.{int(drop_last)}", len(loader), len(loader.dataset))


def leave_and_come_back():
    accelerator = fresh()
    loader = accelerator.prepare(DataLoader(Rows(30), batch_size=2, num_workers=0))
    for data, _ in loader:
        break
    seen = [data.sum().item() for data, _ in loader]
    say_all(accelerator, "loader_left", *seen)


def second_accelerator():
    first, second = Accelerator(), Accelerator()
    train(second, "second_accelerator")
    say(first, "second_accelerator.size", second.num_processes)


def steps_set_later():
    accelerator = fresh()
    say(accelerator, "steps_set_later.before", accelerator.gradient_accumulation_steps)
    accelerator.gradient_accumulation_steps = 3
    train(accelerator, "steps_set_later", rows=24)
    accelerator.free_memory()
    train(accelerator, "after_free_memory")


def closures():
    for make, more in ((torch.optim.SGD, {"lr": 0.1}), (torch.optim.LBFGS, {"lr": 0.5, "max_iter": 4})):
        accelerator = fresh()
        net = Net()
        optimizer = make(net.parameters(), **more)
        net, optimizer = accelerator.prepare(net, optimizer)
        data, target = formula(4, 4, phase=3.0), formula(4, 2, phase=4.0)
        for _ in range(3):

            def closure():
                optimizer.zero_grad()
                loss = loss_of(net(data), target)
                accelerator.backward(loss)
                return loss

            optimizer.step(closure)
            optimizer.zero_grad()
        say(accelerator, "closure." + make.__name__, weights(net))


def local_sgd():
    accelerator = fresh(gradient_accumulation_steps=2)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(Rows(36), batch_size=2))
    enabled = accelerator.num_processes > 1
    for _ in range(2):
        with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=3, enabled=enabled) as local:
            for data, target in loader:
                with accelerator.accumulate(net):
                    accelerator.backward(loss_of(net(data), target))
                    optimizer.step()
                    optimizer.zero_grad()
                    local.step()
    say_all(accelerator, "local_sgd.weights", weights(net))


def uneven_inputs():
    accelerator = fresh(dataloader_config=DataLoaderConfiguration(even_batches=False))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(Rows(22), batch_size=2))
    # On CPUs join_uneven_inputs does nothing there, and the run hangs; this is what it does on GPUs.
    with Join([net], throw_on_early_termination=False) if accelerator.num_processes > 1 else contextlib.nullcontext():
        for data, target in loader:
            accelerator.backward(loss_of(net(data), target))
            optimizer.step()
            optimizer.zero_grad()
    say_all(accelerator, "uneven_inputs.weights", weights(net))


def main():
    for case in (
        optimizers,
        part_of_a_model,
        two_optimizers,
        unused_parameters,
        clipping,
        buffers,
        prepared_schedules,
        resume_in_an_epoch,
        exchange,
        who_runs,
        who_is_first,
        lengths,
        leave_and_come_back,
        second_accelerator,
        steps_set_later,
        closures,
        local_sgd,
        uneven_inputs,
    ):
        case()
    if int(os.environ.get("RANK", 0)) == 0:
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:
            schedules()
        write_lines(sys.argv[1])


main()
