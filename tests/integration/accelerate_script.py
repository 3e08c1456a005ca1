"""A training script as a user of Accelerate writes it: accelerate_script.sh starts it under
`tessera launch`.

Prints, on rank 0, what Accelerate made of its environment, an all-reduce, and whether one step on
a batch split over the ranks equals the step on the whole batch.
"""
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def weights_after_a_step(model, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward()
    optimizer.step()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


accelerator = Accelerator()
torch.manual_seed(0)
examples, targets = torch.randn(8, 4), torch.randn(8, 1)
whole, split = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
split.load_state_dict(whole.state_dict())
expected = weights_after_a_step(whole, torch.nn.functional.mse_loss(whole(examples), targets))

batch_size = 8 // accelerator.num_processes
optimizer = torch.optim.SGD(split.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(examples, targets), batch_size=batch_size)
split, optimizer, loader = accelerator.prepare(split, optimizer, loader)
for inputs, wanted in loader:
    accelerator.backward(torch.nn.functional.mse_loss(split(inputs), wanted))
    optimizer.step()
actual = torch.cat([weight.detach().float().flatten() for weight in split.parameters()])
tolerance = 1e-6 if accelerator.mixed_precision == "no" else 1e-2

total = accelerator.reduce(torch.tensor([accelerator.process_index + 1.0]), reduction="sum")
equal = torch.allclose(actual, expected, atol=tolerance)
accelerator.print(
    accelerator.distributed_type.value,
    f"processes={accelerator.num_processes} device={accelerator.device.type}",
    f"mixed_precision={accelerator.mixed_precision} sum={total.item():g}",
    f"step={'equal' if equal else 'different'}",
    f"fsdp={os.environ.get('ACCELERATE_USE_FSDP', 'false')}",
    f"version={os.environ.get('FSDP_VERSION', '-')}",
)
accelerator.end_training()
