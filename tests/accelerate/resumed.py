"""A checkpoint of Accelerate's, read by another number of processes than wrote it, as resumed.cpp does, too.

usage: ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 resumed.py save FOLDER
       ACCELERATE_USE_CPU=true torchrun --nproc_per_node N resumed.py load FOLDER FILE"""

import os
import sys

import torch
from problem import Net, Rows, fresh, loss_of, say, say_all, weights, write_lines
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

SEEN = 12  # rows, before the checkpoint


def main():
    is_new, folder = sys.argv[1] == "save", sys.argv[2]
    accelerator = fresh()
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, DataLoader(Rows(36), batch_size=2))
    step_rows = 2 * accelerator.num_processes
    if not is_new:
        accelerator.load_state(folder)
        say(accelerator, "loaded", weights(net), scheduler.get_last_lr(), optimizer.param_groups[0]["lr"])
        loader = accelerator.skip_first_batches(loader, SEEN // step_rows)
    losses = []
    for step, (data, target) in enumerate(loader):
        if is_new and step * step_rows == SEEN:
            accelerator.save_state(folder)
            break
        loss = loss_of(net(data), target)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if not is_new:
        say_all(accelerator, "losses", *losses)
        say(accelerator, "weights", weights(net), scheduler.get_last_lr())
        if int(os.environ.get("RANK", 0)) == 0:
            write_lines(sys.argv[3])


main()
