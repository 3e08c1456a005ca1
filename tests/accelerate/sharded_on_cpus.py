"""FSDP of Accelerate on CPUs, where it would take DDP without a word: PyTorch's FSDP 1 and 2 do run there."""

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType


def sharded_on_cpus():
    begin = AcceleratorState.__init__

    def begin_sharded(self, *args, fsdp_plugin=None, **more):
        first = not AcceleratorState._shared_state
        begin(self, *args, fsdp_plugin=fsdp_plugin, **more)
        if not first or self.num_processes == 1:
            return
        kind, state = DistributedType.MULTI_CPU, AcceleratorState._shared_state
        if fsdp_plugin is not None:
            kind = DistributedType.FSDP
            if state["_mixed_precision"] != "no":
                fsdp_plugin.set_mixed_precision(state["_mixed_precision"])
            state["fsdp_plugin"] = fsdp_plugin
        # FSDP 1 compares the device to those of parameters, which have no index.
        for shared in (state, PartialState._shared_state):
            shared.update(distributed_type=kind, device=torch.device("cpu"))

    AcceleratorState.__init__ = begin_sharded
