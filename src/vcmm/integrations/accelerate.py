"""accelerate: the controller of an optimizer that `Accelerator.prepare` wraps.

Accelerate leaves the loop to its user, and its wrapper passes on each `step` that is to be taken.
So `VCMM(optimizer)` before `prepare` would do. What is here finds the optimizer in the wrapper too,
and sees to FSDP, whose checkpoints keep of an optimizer's state only what they know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from accelerate import Accelerator, DistributedType  # pyright: ignore[reportMissingTypeStubs]
from accelerate.optimizer import AcceleratedOptimizer  # pyright: ignore[reportMissingTypeStubs]
from torch.optim import Optimizer

from ..controller import MomentumController
from ..facade import VCMM


def control(
    accelerator: Accelerator,
    optimizer: Optimizer,
    make: Callable[[Optimizer], MomentumController] = VCMM,
) -> MomentumController:
    """The controller of an optimizer over `modal_groups`, before or after it was prepared.

    Args:
        accelerator: whose `save_state` and `load_state` are to carry the controller along.
        optimizer: what `accelerator.prepare` takes, or what it gave.
        make: makes the controller of a torch optimizer: `VCMM`, or `partial(VCMM, heads=...)`.

    Example:
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        vcmm = control(accelerator, optimizer)
    """
    if accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise ValueError(
            f"{accelerator.distributed_type.value} steps parameters of its own making, which have "
            "no modality; train with DDP or FSDP"
        )
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = cast(Optimizer, optimizer.optimizer)
    controller = make(optimizer)
    if accelerator.distributed_type == DistributedType.FSDP:
        accelerator.register_for_checkpointing(controller)
    return controller
