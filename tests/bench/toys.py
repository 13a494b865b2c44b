"""Small data, small specs and small ways to look at them, for the tests of the benchmark."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vcmm.bench import judge
from vcmm.bench.build import Training, build
from vcmm.bench.data import synthetic
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.train import EpochEnded, Progress, Stepped, fit
from vcmm.bench.types import Batch, Data, Split, SplitName

# 50 samples in batches of 16 are four steps, and the last one is of two samples.
SAMPLES, BATCH, STEPS = 50, 16, 4
SIZES = {"vector": 6, "sequence": 8, "image": 5}

# What a method requires, and phases so short that a tiny training comes through all of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "aug": {"every": 2},
    "g2d": {"teacher_epochs": 1, "batch_size": BATCH},
    "gblend": {"super_epoch": 1, "batch_size": BATCH, "share": 0.16},
    "reconboost": {"stage_epochs": 1, "joint_epochs": 1},
    "unimodal": {"modality": "m1"},
}

# Fusions that a method brings along, as small as everything else here.
FUSIONS = {"decalign": Choice("aligned", width=8, heads=2, layers=1)}


def method(name: str) -> Choice:
    """A method of this name, with these options."""
    return Choice(name, **OPTIONS.get(name, {}))


def controller(name: str, modalities: Iterable[str]) -> Choice:
    """A controller of this name, for these modalities."""
    if name == "fixed":
        betas = {modality: 0.7 + 0.2 / (1 + i) for i, modality in enumerate(modalities)}
        return Choice("fixed", betas=betas)
    if name == "frozen":
        return Choice("frozen", after=0.5, average=0.3)
    return Choice(name)


def source(modalities: int = 2, kind: str = "vector", **options: Any) -> Choice:
    """The `data` of a spec: three classes that one line tells apart."""
    defaults = {"samples": SAMPLES, "size": SIZES[kind], "classes": 3, "noise": 0.5}
    return Choice("synthetic", modalities=modalities, kind=kind, **{**defaults, **options})


def tiny(modalities: int = 2, kind: str = "vector", **axes: Any) -> Spec:
    """A spec that takes eight steps of a millisecond."""
    if isinstance(axes.get("method"), str):
        axes["method"] = method(axes["method"])
    if isinstance(axes.get("controller"), str):
        names = [f"m{i + 1}" for i in range(modalities)]
        named = axes.get("method", Choice("joint")).options.get("modality")
        axes["controller"] = controller(axes["controller"], [named] if named else names)
    asked = axes.get("method", Choice("joint")).name
    defaults: dict[str, Any] = {
        "data": source(modalities, kind),
        "encoder": Choice("auto", width=4, outputs=8),
        "fusion": FUSIONS.get(asked, Choice("auto")),
        "optimizer": Choice("adam", lr=0.01),
        "epochs": 2,
        "batch_size": BATCH,
    }
    return Spec(**{**defaults, **axes})


def data_of(spec: Spec) -> Data:
    """What a tiny spec is trained on."""
    return synthetic.load(**spec.data.options)


def built(spec: Spec, data: Data | None = None) -> Training:
    """The training of a tiny spec."""
    return build(spec, data or data_of(spec))


def events(
    training: Training, spec: Spec, progress: Progress | None = None
) -> Iterator[Stepped | EpochEnded]:
    """What `fit` tells of it."""
    return fit(
        training.method,
        training.data,
        training.schedule,
        epochs=spec.epochs,
        batch_size=spec.batch_size,
        seed=spec.seed,
        progress=progress,
    )


def losses(told: Iterable[Stepped | EpochEnded]) -> list[dict[str, float]]:
    """The values of every step, on the way to the end."""
    steps = (event for event in told if isinstance(event, Stepped))
    return [{name: value.item() for name, value in step.values.items()} for step in steps]


def trained(spec: Spec, data: Data | None = None) -> tuple[Training, list[dict[str, float]]]:
    """A training at its end, and the values of its steps."""
    training = built(spec, data)
    return training, losses(events(training, spec))


def warm() -> None:
    """Import what a run imports late, and have garbage collection pass it over.

    Every run collects garbage before it measures its memory. Among torch's objects that takes
    longer than all the rest of a tiny run; `gc.unfreeze()` makes it as it was.
    """
    training = built(tiny())
    judge.evaluate(training.method, training.data, "test")
    gc.collect()
    gc.freeze()


# Data that a test has tampered with


def renamed(data: Data, names: Mapping[str, str]) -> Data:
    """The same arrays under other names."""
    splits = {
        name: replace(part, inputs={names[m]: x for m, x in part.inputs.items()})
        for name, part in data.splits.items()
    }
    return replace(data, splits=splits, forms={names[m]: form for m, form in data.forms.items()})


def poisoned(data: Data, *splits: SplitName) -> Data:
    """NaN in every place of these splits, and labels turned round."""

    def poison(part: Split) -> Split:
        inputs = {m: np.full_like(x, np.nan) for m, x in part.inputs.items()}
        return replace(part, inputs=inputs, target=part.target[::-1].copy())

    changed = {name: poison(data.splits[name]) for name in splits}
    return replace(data, splits={**data.splits, **changed})


class Mined(np.ndarray):
    """An array that goes off when it is touched."""

    def __getitem__(self, index: object) -> Any:
        raise AssertionError("this split must not be looked at")

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise AssertionError("this split must not be looked at")

    def __array_finalize__(self, made_from: object) -> None:
        if isinstance(made_from, Mined):
            raise AssertionError("this split must not be looked at")


def mined(data: Data, *splits: SplitName) -> Data:
    """Splits that go off when a row is read."""

    def mine(part: Split) -> Split:
        inputs = {m: x.view(Mined) for m, x in part.inputs.items()}
        return replace(part, inputs=inputs, target=part.target.view(Mined))

    changed = {name: mine(data.splits[name]) for name in splits}
    return replace(data, splits={**data.splits, **changed})


class Precise(Data):
    """Gives batches in float64, for comparisons in which the order of a sum must not matter."""

    __slots__ = ()

    def batch(self, split: SplitName, index: Any, draw: int | None = None) -> Batch:
        made = Data.batch(self, split, index)
        inputs = {modality: x.double() for modality, x in made.inputs.items()}
        return Batch(inputs, made.target, made.index)


def precise(data: Data) -> Data:
    """The same data in float64."""
    parts = {name: getattr(data, name) for name in Data.__slots__}
    return Precise(**parts)


# Records


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file; anything that is not JSON is an error, NaN included."""

    def refuse(text: str) -> float:
        raise ValueError(f"{path.name} has {text}, which is not JSON")

    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def records(path: Path) -> dict[str, bytes]:
    """What has to be the same bytes whenever the same spec is run."""
    names = ("spec.json", "steps.jsonl", "evals.jsonl", "done")
    return {name: (path / name).read_bytes() for name in names}


def differences(a: object, b: object, at: str = "") -> list[str]:
    """Where two nested states differ, bit by bit; tensors of another type differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        found = [f"{at}/{key}: only in one" for key in a.keys() ^ b.keys()]
        both = (differences(a[key], b[key], f"{at}/{key}") for key in a.keys() & b.keys())
        return [*found, *(line for lines in both for line in lines)]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [line for i, (x, y) in pairs for line in differences(x, y, f"{at}/{i}")]
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    else:
        same = type(a) is type(b) and a == b
    return [] if same else [f"{at}: {a!r} and {b!r}"]
