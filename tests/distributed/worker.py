"""What every rank runs, and what one process runs over the ranks' batches put end to end.

A plan says, per step, rank and micro-batch, how many samples there are and which modalities are
present. Every piece of it has a seed of its own, so all ranks and the one process draw the same.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from vcmm import VCMM, Probe, ProbeHeads, modal_groups, pool
from vcmm.probe import numbers_of

MODALITIES = ("audio", "video")
# Of the true head from step to step, so that there is a drift to measure beside the noise.
DRIFT = 0.7


class Piece(NamedTuple):
    """One micro-batch."""

    n: int
    modalities: tuple[str, ...] = MODALITIES


Task = Callable[..., Any]
Plan = list[list[list[Piece]]]  # [step][rank][micro-batch]


class Shape(NamedTuple):
    classes: int
    width: int
    tokens: tuple[int, ...] = ()  # sequence length of each rank; none for plain samples


# The ranks


def serve(rank: int, world: int, rendezvous: str, inbox: Connection) -> None:
    """Run what the tests send until they send None."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=20),
    )
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    try:
        while (message := inbox.recv()) is not None:
            function, arguments = message
            try:
                inbox.send((True, function(groups=groups, **arguments)))
            except Exception:  # noqa: BLE001  whatever it is, the test shall show it
                inbox.send((False, traceback.format_exc()))
    finally:
        dist.destroy_process_group()


def here() -> tuple[int, int]:
    """(rank, world), (0, 1) in the one process that the ranks are compared with."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def mine(pieces: list[list[Piece]]) -> Iterator[tuple[int, int, Piece]]:
    """(rank, number, piece) of this rank's share of a step, or of all in the one process."""
    rank, world = here()
    for r, share in enumerate(pieces):
        for number, piece in enumerate(share):
            if world == 1 or r == rank:
                yield r, number, piece


def seeded(*key: int) -> torch.Generator:
    seed = 17
    for part in key:
        seed = seed * 1009 + part
    return torch.Generator().manual_seed(seed)


def group_of(
    split: list[list[int]], groups: dict[tuple[int, ...], dist.ProcessGroup]
) -> dist.ProcessGroup | None:
    """This rank's part of the split. All ranks must take part in making all groups."""
    rank, world = here()
    if world == 1:
        return None
    for ranks in split:
        if tuple(ranks) not in groups:
            groups[tuple(ranks)] = dist.new_group(ranks)
    return groups[next(tuple(ranks) for ranks in split if rank in ranks)]


# Observation alone: features and logits that no training moves, so that they agree bitwise


def drawn(
    step: int, rank: int, number: int, n: int, index: int, shape: Shape, longest: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Features, logits and mask of one modality, in float64, padded to `longest` tokens."""
    generator = seeded(1, step, rank, number, index)
    tokens = shape.tokens[rank : rank + 1]
    features = torch.randn(n, *tokens, shape.width, generator=generator, dtype=torch.float64)
    fixed = seeded(2, index)
    weight = torch.randn(shape.classes, shape.width, generator=fixed, dtype=torch.float64)
    drift = torch.randn(shape.classes, shape.width, generator=fixed, dtype=torch.float64)
    logits = features @ (weight + DRIFT * step * drift).T / shape.width**0.5
    mask = torch.rand(n, *tokens, generator=generator) < 0.7
    if not tokens:
        return features, logits, torch.ones(n, dtype=torch.bool)
    mask[:, 0] = True
    padding = longest - tokens[0]
    return (
        F.pad(features, (0, 0, 0, padding)),
        F.pad(logits, (0, 0, 0, padding)),
        F.pad(mask, (0, padding)),
    )


def watch(
    *,
    plan: Plan,
    shapes: dict[str, Shape],
    dtype: torch.dtype = torch.float32,
    split: list[list[int]] | None = None,
    groups: dict[tuple[int, ...], dist.ProcessGroup] | None = None,
) -> dict[str, Any]:
    """Metrics of every step, the forms, and the parameters at last, all moved by equal gradients.

    `split` gives every part of it a process group, and so a batch, of its own.
    """
    model = nn.ModuleDict({m: nn.Linear(3, 2, dtype=dtype) for m in MODALITIES})
    for index, parameter in enumerate(model.parameters()):
        nn.init.constant_(parameter, 0.1 * index)
    optimizer = torch.optim.Adam(modal_groups(model, **model))
    together = None if split is None else group_of(split, groups if groups is not None else {})
    vcmm = VCMM(optimizer, process_group=together)
    history: list[dict[str, float]] = []
    for step, pieces in enumerate(plan):
        # The one process sees a step as one batch, the ranks see theirs piece by piece.
        parts: dict[str, list[tuple[Tensor, ...]]] = {m: [] for m in MODALITIES}
        for rank, number, piece in mine(pieces):
            for index, modality in enumerate(MODALITIES):
                if modality not in piece.modalities:
                    continue
                shape = shapes[modality]
                # Sequences of one batch are padded to the longest; ranks need not agree on that.
                lengths = shape.tokens if here()[1] == 1 else shape.tokens[rank : rank + 1]
                longest = max(lengths, default=0)
                h, z, mask = drawn(step, rank, number, piece.n, index, shape, longest)
                label = seeded(3, step, rank, number)
                y = torch.randint(shape.classes, (piece.n,), generator=label)
                if shape.tokens:
                    y = (y[:, None] + torch.arange(longest)) % shape.classes
                parts[modality].append((h.to(dtype), z.to(dtype), mask, y))
        for modality, pieces_of_it in parts.items():
            if here()[1] == 1 and pieces_of_it:
                pieces_of_it[:] = [tuple(map(torch.cat, zip(*pieces_of_it, strict=True)))]
            for h, z, mask, y in pieces_of_it:
                vcmm.observe(y, mask=mask, **{modality: (h, z)})
        for index, parameter in enumerate(model.parameters()):
            generator = seeded(4, step, index)
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=dtype)
        optimizer.step()
        history.append(vcmm.metrics())
    return {
        "history": history,
        "forms": {m: stream.form for m, stream in vcmm._pool.streams.items()},
        "parameters": [p.detach().numpy().tobytes() for p in model.parameters()],
    }


# Training


class Towers(nn.Module):
    """An encoder and a head per modality, the mean of the logits, and a shared bias."""

    def __init__(self, shapes: dict[str, Shape], dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict(
            {m: nn.Sequential(nn.Linear(6, s.width), nn.Tanh()) for m, s in shapes.items()}
        )
        self.heads = nn.ModuleDict({m: nn.Linear(s.width, s.classes) for m, s in shapes.items()})
        self.bias = nn.Parameter(torch.zeros(next(iter(shapes.values())).classes))
        self.to(dtype)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
        observed: dict[str, tuple[Tensor, Tensor]] = {}
        for modality, x in inputs.items():
            h = self.encoders[modality](x)
            observed[modality] = (h, self.heads[modality](h))
        fused = torch.stack([z for _, z in observed.values()]).mean(0) + self.bias
        return observed, fused


def train(
    *,
    plan: Plan,
    shapes: dict[str, Shape],
    dtype: torch.dtype = torch.float32,
    average: str = "ddp",
    weigh: str = "samples",
    groups: dict[tuple[int, ...], dist.ProcessGroup] | None = None,
    **ddp: Any,
) -> dict[str, Any]:
    """The same for a model that learns, its gradients averaged by "ddp" or by "hand".

    Every sample of a step has the same weight, or, as in the loops that people write, all "ranks"
    have, and on a rank all its micro-batches.
    """
    world = here()[1]
    model = Towers(shapes, dtype)
    claims = {m: [model.encoders[m], model.heads[m]] for m in shapes}
    optimizer = torch.optim.AdamW(modal_groups(model, **claims), lr=1e-2)
    vcmm = VCMM(optimizer)
    by_ddp = world > 1 and average == "ddp"
    replica = DistributedDataParallel(model, **ddp) if by_ddp else model
    classes = model.bias.numel()
    history: list[dict[str, float]] = []
    for step, pieces in enumerate(plan):
        samples = sum(piece.n for share in pieces for piece in share)
        todo = list(mine(pieces))
        parts: dict[str, list[tuple[Tensor, ...]]] = {m: [] for m in shapes}
        for r, number, piece in todo:
            generator = seeded(5, step, r, number)
            every = {m: torch.randn(piece.n, 6, generator=generator) for m in shapes}
            y = torch.randint(classes, (piece.n,), generator=generator)
            for x in every.values():  # something to learn
                x[:, 0] += y
            is_last = (r, number) == todo[-1][:2]
            hold = by_ddp and not is_last
            with replica.no_sync() if hold else nullcontext():
                observed, fused = replica({m: every[m].to(dtype) for m in piece.modalities})
                weight = (
                    piece.n / samples if weigh == "samples" else 1 / len(pieces[r]) / len(pieces)
                )
                # An average over ranks divides by their number what should be a sum.
                (F.cross_entropy(fused, y) * (weight * world)).backward()
            if world > 1:
                vcmm.observe(y, **observed)
            for modality, (h, z) in observed.items():
                parts[modality].append((h.detach(), z.detach(), y))
        if world == 1:
            for modality, pieces_of_it in parts.items():
                if pieces_of_it:
                    h, z, y = map(torch.cat, zip(*pieces_of_it, strict=True))
                    vcmm.observe(y, **{modality: (h, z)})
        elif average == "hand":
            average_by_hand(model, world)
        optimizer.step()
        optimizer.zero_grad()
        history.append(vcmm.metrics())
    return {
        "history": history,
        "forms": {m: stream.form for m, stream in vcmm._pool.streams.items()},
        "parameters": [p.detach().numpy().tobytes() for p in model.parameters()],
        "values": [p.detach().double().flatten().tolist() for p in model.parameters()],
    }


def average_by_hand(model: nn.Module, world: int) -> None:
    """The mean over ranks, in one collective, of the gradients that any rank has."""
    parameters = list(model.parameters())
    owners = torch.tensor([float(p.grad is not None) for p in parameters])
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(owners)
    dist.all_reduce(flat)
    parts = flat.div_(world).split([p.numel() for p in parameters])
    for parameter, gradient, owned in zip(parameters, parts, owners.tolist(), strict=True):
        parameter.grad = gradient.view_as(parameter).clone() if owned else None


def rounded_unlike(
    *, split: list[list[int]], groups: dict[tuple[int, ...], dist.ProcessGroup]
) -> dict[str, list[float]]:
    """What ranks agree on that have rounded the last digits each in its own way."""
    ranks = pool.Ranks(group_of(split, groups), torch.device("cpu"))
    one = torch.ones((), dtype=torch.float64)
    numbers = [(i + 1) * one * (1 + here()[0] * 1e-15) for i in range(4)]
    agreed = ranks.same_everywhere({m: Probe(*numbers) for m in MODALITIES})
    return {m: [float(x) for x in numbers_of(probe)] for m, probe in agreed.items()}


def probe_heads(
    *, plan: Plan, groups: dict[tuple[int, ...], dist.ProcessGroup] | None = None
) -> list[list[float]]:
    """What probe heads have learnt."""
    shape = Shape(classes=3, width=4)
    heads = ProbeHeads(dict.fromkeys(MODALITIES, shape.width), shape.classes, lr=1e-2).double()
    for step, pieces in enumerate(plan):
        every: dict[str, list[Tensor]] = {}
        labels = [torch.zeros(0, dtype=torch.int64)]
        for rank, number, piece in mine(pieces):
            generator = seeded(3, step, rank, number)
            labels.append(torch.randint(shape.classes, (piece.n,), generator=generator))
            for index, modality in enumerate(piece.modalities):
                h, _, _ = drawn(step, rank, number, piece.n, index, shape, 0)
                every.setdefault(modality, []).append(h)
        heads(torch.cat(labels), **{m: torch.cat(hs) for m, hs in every.items()})
    return [p.detach().flatten().tolist() for p in heads.parameters()]
