"""What the tests of several methods do: a model small enough for a hand, a restart, a renaming."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.bench import toys
from vcmm.bench.build import Training
from vcmm.bench.fusions import FUSIONS
from vcmm.bench.method import Method, groups
from vcmm.bench.model import Multimodal
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.train import Progress, Stepped
from vcmm.bench.types import Batch, Data

CLASSES = 3
NAMES = ("audio", "flow", "video", "text", "depth", "pose")


def small(modalities: int = 2, fusion: str = "mean", *, inputs: int = 2, width: int = 2) -> Any:
    """Linear encoders of a few weights, in float64, and the optimizer that takes plain steps."""
    torch.manual_seed(modalities)
    names = NAMES[:modalities]
    encoders = {m: nn.Linear(inputs, width, bias=False) for m in names}
    model = Multimodal(encoders, FUSIONS[fusion](dict.fromkeys(names, width), CLASSES)).double()
    return model, torch.optim.SGD(groups(model), lr=0.1)


def some(model: Multimodal, samples: int = 4, *, seed: int = 0, inputs: int = 2) -> Batch:
    """A batch for such a model."""
    chance = torch.Generator().manual_seed(seed)
    drawn = {
        m: torch.randn(samples, inputs, generator=chance, dtype=torch.float64)
        for m in model.modalities
    }
    return Batch(drawn, torch.arange(samples) % CLASSES, torch.arange(samples))


def gradients(method: Method, batch: Batch) -> dict[str, Tensor]:
    """Of every parameter of the model, as they are when the optimizer takes them."""
    seen: dict[str, Tensor] = {}

    def look(*_: object) -> None:
        for name, parameter in method.model.named_parameters():
            if parameter.grad is not None:
                seen[name] = parameter.grad.clone()

    handle = method.optimizer.register_step_pre_hook(look)
    method.step(batch)
    handle.remove()
    return seen


def spec(name: str, modalities: int = 2, *, kind: str = "vector", **options: Any) -> Spec:
    """A tiny training by the method with these options; `axes` overrides what else there is."""
    axes = options.pop("axes", {})
    return toys.tiny(modalities, kind, method=Choice(name, **options), **axes)


def state(training: Training) -> dict[str, Any]:
    """All that a checkpoint holds of a training."""
    return {
        "method": training.method.state_dict(),
        "optimizer": training.method.optimizer.state_dict(),
        "schedule": training.schedule.state_dict(),
    }


def differences_of_resume(of: Spec, steps: int) -> list[str]:
    """What differs in the end if a training stops after so many steps and goes on elsewhere."""
    whole = toys.built(of)
    told = list(toys.events(whole, of))
    assert any(isinstance(event, Stepped) for event in told)

    first, progress = toys.built(of), Progress()
    events: Iterator[Any] = toys.events(first, of, progress)
    while progress.step < steps:
        next(events)
    saved = copy.deepcopy((state(first), progress, torch.get_rng_state()))

    second = toys.built(of)
    second.method.load_state_dict(saved[0]["method"])
    second.method.optimizer.load_state_dict(saved[0]["optimizer"])
    second.schedule.load_state_dict(saved[0]["schedule"])
    torch.set_rng_state(saved[2])
    list(toys.events(second, of, saved[1]))
    return toys.differences(state(whole), state(second))


def losses_under(of: Spec, names: dict[str, str]) -> tuple[Any, Any]:
    """The losses of a training in float64, and of the same with its modalities renamed."""
    data = toys.data_of(of)

    def lose(data: Data, weights: dict[str, Tensor] | None, new: dict[str, str]) -> Any:
        training = toys.built(of, data)
        model = training.method.model
        start = {name: value.clone() for name, value in model.state_dict().items()}
        if weights is not None:
            model.load_state_dict(moved(weights, new, training.data.modalities))
        training.method.double()
        told = toys.losses(toys.events(training, of))
        back = {other: name for name, other in new.items()}
        return start, [{renamed_term(k, back): v for k, v in row.items()} for row in told]

    start, plain = lose(toys.precise(data), None, {})
    _, other = lose(toys.precise(toys.renamed(data, names)), start, names)
    return plain, other


def renamed_term(name: str, names: dict[str, str]) -> str:
    """loss/m1 becomes loss/m2."""
    return "/".join(names.get(part, part) for part in name.split("/"))


def moved(
    weights: dict[str, Tensor], names: dict[str, str], order: tuple[str, ...]
) -> dict[str, Tensor]:
    """The state of a model under new names; a head over all features has its columns permuted."""
    back = {new: old for old, new in names.items()}
    found: dict[str, Tensor] = {}
    for key, value in weights.items():
        parts = key.split(".")
        over_all = parts[:2] in (["fusion", "head"], ["fusion", "joint"]) and parts[-1] == "weight"
        if over_all:
            columns = dict(zip(sorted(names), value.chunk(len(names), dim=1), strict=True))
            found[key] = torch.cat([columns[back[m]] for m in order], dim=1)
        else:
            found[".".join(names.get(part, part) for part in parts)] = value
    return found
