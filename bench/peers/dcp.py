"""torch.distributed.checkpoint, beside which save_bench measures ours.

torchrun --nproc-per-node 2 dcp.py FOLDER BYTES: saves and loads a state of BYTES, sharded over the
ranks, and prints one JSON line with seconds. DCP writes through the page cache and flushes each
file at its end; "load" finds the files there, before "load_cold" they are dropped from it.
"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

NUM_TENSORS = 48


def make_state(num_bytes, mesh):
    elements = num_bytes // NUM_TENSORS // 4 // mesh.size()
    torch.manual_seed(mesh.get_rank())
    return {f"layer_{i:02}.weight": DTensor.from_local(torch.rand(elements), mesh, [Shard(0)])
            for i in range(NUM_TENSORS)}


def timed(action):
    dist.barrier()
    start = time.perf_counter()
    result = action()
    dist.barrier()
    return time.perf_counter() - start, result


def drop_from_cache(folder):
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def main():
    folder, num_bytes = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = make_state(num_bytes, mesh)
    first = dist.get_rank() == 0
    seconds = {"save": timed(lambda: dcp.save(state, checkpoint_id=folder))[0]}
    seconds["load"] = timed(lambda: dcp.load(state, checkpoint_id=folder))[0]
    if first:
        drop_from_cache(folder)
    seconds["load_cold"] = timed(lambda: dcp.load(state, checkpoint_id=folder))[0]
    again = folder + "_async"
    seconds["async_stall"], future = timed(lambda: dcp.async_save(state, checkpoint_id=again))
    future.result()
    dist.barrier()
    if first:
        shutil.rmtree(folder)
        shutil.rmtree(again)
        print(json.dumps({"seconds": seconds, "torch": torch.__version__}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
