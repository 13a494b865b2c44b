"""The one loop. It is a generator: who logs, saves or judges consumes what it yields.

At every yield the method, the optimizer and the `Progress` are those of the same moment, so a
checkpoint taken there resumes bitwise.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from . import seeds
from .ahead import ahead
from .method import Method
from .types import Batch, Data


@dataclass(slots=True)
class Progress:
    """How far a training has come."""

    epoch: int = 0
    batch: int = 0  # of this epoch, how many are done
    step: int = 0  # over all epochs
    order: Tensor | None = None  # in which this epoch visits the rows of train, once it has begun


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step was taken."""

    epoch: int
    step: int
    samples: int
    lr: float  # with which it was taken
    values: dict[str, Tensor]  # detached, still on the device


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """All batches of an epoch were seen."""

    epoch: int
    step: int


def fit(
    method: Method,
    data: Data,
    schedule: LRScheduler,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    progress: Progress | None = None,
    loaders: int = 0,
) -> Generator[Stepped | EpochEnded]:
    """Train for some epochs, from where `progress` says.

    The method sees train alone: `data` may hold other splits, but they are not handed on. The order
    of samples depends on `seed` and the epoch, and not on the method, and so does what is drawn to
    augment them. Threads, `loaders` of them, make batches ahead.
    """
    now = progress or Progress()
    train = data.only("train")
    size = len(train.splits["train"])
    while now.epoch < epochs:
        if now.order is None:
            method.train()
            method.begin_epoch(now.epoch, train)
            now.order = method.sampler(now.epoch)
            if now.order is None:
                shuffler = seeds.generator(seed, "order", now.epoch)
                now.order = torch.randperm(size, generator=shuffler)
            require_whole_groups(method)
        make = partial(made, train, method.device, seeds.derived(seed, "augment", now.epoch))
        left = batches(now.order, batch_size)[now.batch :]
        with closing(ahead(make, left, loaders if train.made else 0)) as ready:
            for batch in ready:
                method.train()
                lr = float(method.optimizer.param_groups[0]["lr"])
                values = method.step(batch.to(method.device))
                schedule.step()
                now.batch += 1
                now.step += 1
                yield Stepped(now.epoch, now.step, len(batch.index), lr, values)
        ended = EpochEnded(now.epoch, now.step)
        now.epoch, now.batch, now.order = now.epoch + 1, 0, None
        yield ended


def made(train: Data, device: torch.device, draw: int, rows: Tensor) -> Batch:
    """A batch of train, on its way to the device."""
    batch = train.batch("train", rows, draw)
    return batch.pinned() if device.type == "cuda" else batch


def batches(order: Tensor, size: int) -> list[Tensor]:
    """The rows of each batch. A last one of a single sample is left out: batch norm needs two."""
    parts = list(torch.split(order, size))
    return parts if len(parts[-1]) > 1 or len(parts) == 1 else parts[:-1]


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """How many batches `batches` makes of an epoch that visits every sample once."""
    return len(batches(torch.arange(samples), batch_size))


def require_whole_groups(method: Method) -> None:
    """An error unless every trainable parameter is in exactly one group of the optimizer."""
    counted = group_counts([method.optimizer, *method.others.values()])
    for name, parameter in method.named_parameters():
        found = counted.get(parameter, 0)
        if parameter.requires_grad and found != 1:
            raise RuntimeError(
                f"{type(method).__name__}: parameter {name!r} is in {found} groups of the "
                "optimizer, so it would be trained "
                f"{'not at all' if found == 0 else 'more than once'}; "
                "a method hands modules of its own to self.adopt(module), once"
            )


def group_counts(optimizers: Iterable[Optimizer]) -> dict[Tensor, int]:
    """In how many groups each parameter is."""
    counted: dict[Tensor, int] = {}
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        for parameter in group["params"]:
            counted[parameter] = counted.get(parameter, 0) + 1
    return counted
