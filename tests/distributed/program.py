"""What torchrun starts: `torchrun -m distributed.program TASKS FOLDER`.

TASKS is a pickled list of [name, function of this module or of `worker`, arguments]. Every rank
writes what they return, by name, into FOLDER.
"""

from __future__ import annotations

import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F
from torch.optim import Optimizer

from vcmm import VCMM, modal_groups

from . import worker
from .worker import Plan, Shape, Towers, here, mine, seeded

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW": ("AdamW", {"lr": 1e-2}),
    "AdamW-fused": ("AdamW", {"lr": 1e-2, "fused": True}),
    "AdamW-loop": ("AdamW", {"lr": 1e-2, "foreach": False}),
    "SGD": ("SGD", {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1}),
}


def sharded(model: nn.Module) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in model.encoders.values():
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which every rank may have a part."""
    return tensor.full_tensor() if here()[1] > 1 and hasattr(tensor, "full_tensor") else tensor


class Joined(Towers):
    """The encoders, and one head over their features put end to end."""

    def __init__(self, shapes: dict[str, Shape], dtype: torch.dtype) -> None:
        super().__init__(shapes, dtype)
        width = sum(shape.width for shape in shapes.values())
        del self.heads
        self.head = nn.Linear(width, self.bias.numel(), dtype=dtype)
        self.slices: dict[str, slice] = {}
        for modality, shape in shapes.items():
            start = sum(part.stop - part.start for part in self.slices.values())
            self.slices[modality] = slice(start, start + shape.width)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[dict[str, Any], Tensor]:
        features = [self.encoders[m](inputs[m]) for m in self.slices]
        return {}, self.head(torch.cat(features, -1)) + self.bias


def shard(
    *,
    plan: Plan,
    shapes: dict[str, Shape],
    optimizer: str = "AdamW",
    capture: str = "",
    overflows: tuple[int, ...] = (),
    sync: bool = False,
    split: int = 1,
    save: tuple[int, str] | None = None,
    load: tuple[int, str] | None = None,
) -> dict[str, Any]:
    """Training with fully_shard, or of the whole model in the one process.

    Args:
        capture: "" to pass features and logits, "heads" or "slices" to have them captured.
        overflows: steps in which GradScaler finds an infinity, on the last rank alone.
        sync: reduce the gradients of every micro-batch, and not of all of them together.
        split: so many ranks draw what is drawn as micro-batches of one rank otherwise.
        save: after so many steps, there.
        load: begin with that step, from there.
    """
    rank, world = here()
    model = (Joined if capture == "slices" else Towers)(shapes, torch.float64)
    if world > 1:
        sharded(model)
    if capture == "slices":
        groups = modal_groups(model, **model.encoders)
    else:
        claims = {m: [model.encoders[m], model.heads[m]] for m in shapes}
        groups = modal_groups(model, **claims)
    name, settings = OPTIMIZERS[optimizer]
    made: Optimizer = getattr(torch.optim, name)(groups, **settings)
    heads = {"heads": {"heads": model.heads}} if capture == "heads" else {}
    if capture == "slices":
        heads = {"slices": {"heads": model.head, "slices": model.slices}}
    vcmm = VCMM(made, **heads.get(capture, {}))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=bool(overflows))
    classes = model.bias.numel()
    history: list[dict[str, float]] = []
    start = 0
    if load is not None:
        start, folder = load
        state = everything(model, made, vcmm)
        dcp.load(state, checkpoint_id=folder)
        model_state, optimizer_state = state["model"], state["optimizer"]
        set_state_dict(model, made, model_state_dict=model_state, optim_state_dict=optimizer_state)
    for step, pieces in enumerate(plan):
        if step < start:
            continue
        todo = list(mine(pieces))
        for r, number, piece in todo:
            generator = seeded(5, step, r // split, r % split + number)
            every = {m: torch.randn(piece.n, 6, generator=generator) for m in shapes}
            y = torch.randint(classes, (piece.n,), generator=generator)
            for x in every.values():
                x[:, 0] += y
            if world > 1:
                model.set_requires_gradient_sync(sync or (r, number) == todo[-1][:2])
            observed, fused = model({m: x.double() for m, x in every.items()})
            weight = 1 / len(pieces[r]) / len(pieces)
            scaler.scale(F.cross_entropy(fused, y) * (weight * world)).backward()
            for h, z in observed.values():
                assert type(h) is Tensor  # whole, and not a part of it
                assert type(z) is Tensor
            vcmm.observe(y, **({} if capture else observed))
        if step in (1, 2, 6):  # so that there are cohorts
            model.encoders["audio"][0].bias.grad = None
        if step in overflows and rank == world - 1:
            gradient = model.encoders["video"][0].weight.grad
            local = gradient if world == 1 else gradient.to_local()
            local[0, 0] = torch.inf
        scaler.step(made)
        scaler.update()
        made.zero_grad()
        history.append(vcmm.metrics())
        if save is not None and step + 1 == save[0]:
            dcp.save(everything(model, made, vcmm), checkpoint_id=save[1])
    moments = [x for p in model.parameters() for x in made.state[p].values() if x.ndim]
    return {
        "history": history,
        "values": [whole(p.detach()).flatten().tolist() for p in model.parameters()],
        "ages": [
            [[float(n) for n in cohort[:3]] for cohort in group]
            for group in vcmm._ages.state_dict(made.param_groups)
        ],
        "kinds": sorted({type(x).__name__ for x in moments}),
        "groups": [{"lr": float(group["lr"])} for group in made.param_groups],
    }


def everything(model: nn.Module, optimizer: Optimizer, vcmm: VCMM) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "vcmm": vcmm}


def main() -> None:
    tasks, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    answers = {}
    try:
        for name, function, arguments in pickle.loads(Path(tasks).read_bytes()):
            answers[name] = {**globals(), **vars(worker)}[function](**arguments)
        path = Path(folder) / f"{dist.get_rank()}.pickle"
        path.write_bytes(pickle.dumps(answers))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
