"""torch.distributed.tensor.parallel over Gloo: matrices, embedding and head over all ranks, the loss over parts of the
vocabulary.  Launch with torchrun, PYTHONPATH at the folder of common.py and model.py."""
import common as C
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

import model as M

args = C.parse_args(lambda ap: ap.add_argument("--sequence-parallel", action="store_true"))
rank, world = C.env_rank_world()
C.set_threads(world)
if args.dtype != "fp32":
    C.fail(args, "tp", "written for fp32")
    raise SystemExit(0)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (world,))
model = M.build(args.size, args.seed)
n = M.num_params(model)

sequence = args.sequence_parallel
between = Shard(1) if sequence else Replicate()  # what lies between blocks: [batch, positions, features]


def rowwise():
    return RowwiseParallel(output_layouts=between)


plan = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
    "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
}
block = {
    "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(), "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": rowwise(),
    "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": rowwise(),
}
if sequence:
    plan["model.norm"] = SequenceParallel()
    whole = Replicate()
    block |= {
        "input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(input_layouts=(between, None, None), desired_input_layouts=(whole, None, None)),
        "mlp": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(whole,)),
    }
parallelize_module(model, mesh, plan)
for layer in model.model.layers:
    parallelize_module(layer, mesh, block)
    layer.self_attn.n_heads //= world
    layer.self_attn.n_kv_heads //= world

# Without sequence parallelism norms stay plain tensors; one call of the optimizer takes one kind.
groups = [[p for p in model.parameters() if isinstance(p, DTensor) == divided] for divided in (True, False)]
groups = [group for group in groups if group]
opt = C.adamw([{"params": group} for group in groups])
batches = C.Batches(args.data, M.SIZES[args.size].seq_len, args.batch, 0, 1)  # every rank takes every row


def global_norm():
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(norms))


def step(i, x, y):
    x, y = batches(i)
    opt.zero_grad(set_to_none=True)
    with loss_parallel():
        loss = M.loss_fn(model(x), y)
        loss.backward()
    norm = global_norm()
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, C.CLIP, norm)
    opt.step()
    return loss.full_tensor(), norm


C.run(args, rank=rank, world=world, train_step=step, framework="tp_sp" if sequence else "tp", model_params=n)
C.finish()
