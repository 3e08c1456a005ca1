"""torch.distributed.pipelining over Gloo: an equal share of the layers on each rank, 1F1B, micro-batches of one row.
Launch with torchrun, PYTHONPATH at the folder of common.py and model.py."""
import common as C
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import model as M

args = C.parse_args()
rank, world = C.env_rank_world()
C.set_threads(world)
if args.dtype != "fp32":
    C.fail(args, "pp", "written for fp32")
    raise SystemExit(0)
dist.init_process_group("gloo")
first, last = rank == 0, rank == world - 1


class Stage(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        trunk = model.model
        share = len(trunk.layers) // world
        self.embed_tokens = trunk.embed_tokens if first else None
        self.layers = trunk.layers[rank * share : (rank + 1) * share]
        self.head = torch.nn.Sequential(trunk.norm, model.lm_head) if last else None
        self.register_buffer("cos", trunk.cos, persistent=False)
        self.register_buffer("sin", trunk.sin, persistent=False)

    def forward(self, x):
        x = self.embed_tokens(x) if first else x
        for layer in self.layers:
            x = layer(x, self.cos[: x.shape[1]], self.sin[: x.shape[1]])
        return self.head(x) if last else x


model = M.build(args.size, args.seed)
n = M.num_params(model)
module = Stage(model)
del model
schedule = Schedule1F1B(PipelineStage(module, rank, world, torch.device("cpu")), args.batch, loss_fn=M.loss_fn)
opt = C.adamw(module.parameters())
batches = C.Batches(args.data, M.SIZES[args.size].seq_len, args.batch, 0, 1)  # every rank reads every row


def step(i, x, y):
    x, y = batches(i)
    opt.zero_grad(set_to_none=True)
    losses = []
    schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
    square = torch.nn.utils.get_total_norm([p.grad for p in module.parameters()]).square()
    dist.all_reduce(square)
    norm = square.sqrt()
    torch.nn.utils.clip_grads_with_norm_(module.parameters(), C.CLIP, norm)
    opt.step()
    # C.run takes the mean over ranks, of which the last alone has losses.
    return torch.stack(losses).mean() * world if last else torch.zeros(()), norm


C.run(args, rank=rank, world=world, train_step=step, framework="pp", model_params=n)
C.finish()
