"""Who sees valid and test: the judge, and nobody else. Judging leaves no trace in the method."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from . import metrics
from .ahead import ahead
from .method import Method
from .types import Data, Output, SplitName

# In a batch, for memory's sake alone.
ROWS = 512
BYTES = 1 << 28


@torch.no_grad()
def evaluate(method: Method, data: Data, split: SplitName, loaders: int = 0) -> dict[str, float]:
    """Every metric of the prediction, and the accuracy of every modality's own head."""
    predictions: list[Tensor] = []
    own: dict[str, list[Tensor]] = {}
    targets: list[Tensor] = []
    for output, target in outputs(method, data, split, loaders):
        predictions.append(method.predict(output))
        targets.append(target)
        for modality, logits in output.logits.items():
            own.setdefault(modality, []).append(logits)
    target = torch.cat(targets)
    accuracies = {m: metrics.accuracy(torch.cat(parts), target) for m, parts in own.items()}
    heads = {f"{modality}/accuracy": value for modality, value in accuracies.items()}
    return {**metrics.scores(torch.cat(predictions), target), **metrics.gap(accuracies), **heads}


def probe(method: Method, data: Data, loaders: int = 0) -> dict[SplitName, dict[str, float]]:
    """Per split, how well a linear classifier does on every modality's frozen features.

    It is fitted on train. What joint training has made of an encoder is seen here, whatever its own
    head was given to learn.
    """
    features: dict[SplitName, dict[str, Tensor]] = {}
    targets: dict[SplitName, Tensor] = {}
    for split in data.splits:
        parts = list(outputs(method, data, split, loaders))
        targets[split] = torch.cat([target for _, target in parts])
        names = parts[0][0].features
        features[split] = {m: torch.cat([out.features[m] for out, _ in parts]) for m in names}
    found: dict[SplitName, dict[str, float]] = {split: {} for split in data.splits}
    for modality, train in features["train"].items():
        mean, scale = train.mean(dim=0), train.std(dim=0) + 1e-6
        standard = (train - mean) / scale
        if not standard.isfinite().all():  # training has diverged, and there is nothing to fit
            continue
        weight = fitted(standard, targets["train"], data.classes)
        for split, values in found.items():
            rows = (features[split][modality] - mean) / scale
            logits = F.linear(rows, weight[:, 1:], weight[:, 0])
            values[f"{modality}/probe"] = metrics.accuracy(logits, targets[split])
    return found


@torch.enable_grad()
def fitted(rows: Tensor, target: Tensor, classes: int, *, decay: float = 1e-3) -> Tensor:
    """[b | W] of a linear classifier, the minimum of its loss and of decay / 2 ||W||^2."""
    shape = classes, rows.shape[1] + 1
    weight = torch.zeros(shape, device=rows.device, requires_grad=True)
    solver = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")
    loss_of = F.cross_entropy if target.ndim == 1 else F.binary_cross_entropy_with_logits

    def closure() -> Tensor:
        solver.zero_grad()
        loss = loss_of(F.linear(rows, weight[:, 1:], weight[:, 0]), target)
        loss = loss + decay / 2 * weight[:, 1:].square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    return weight.detach()


@torch.no_grad()
def outputs(
    method: Method, data: Data, split: SplitName, loaders: int = 0
) -> Iterator[tuple[Output, Tensor]]:
    """What the method makes of a split, in order, with the targets."""
    rows = torch.arange(len(data.splits[split]))
    parts = torch.split(rows, min(ROWS, data.rows_within(BYTES)))
    make = partial(data.batch, split)
    with judging(method), closing(ahead(make, parts, loaders if data.made else 0)) as ready:
        for batch in ready:
            there = batch.to(method.device)
            yield method(there.inputs), there.target


@contextmanager
def judging(method: Method) -> Generator[None]:
    """In eval mode, and without drawing from torch's randomness."""
    modes = {module: module.training for module in method.modules()}
    method.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes.items():  # a method may hold a part of its own in eval mode
            module.training = training
