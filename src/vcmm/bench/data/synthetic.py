"""Any number of made-up modalities whose usefulness is known, because it was dialled in.

A class of modality m consists of `difficulty` clusters. A sample of class y shows, in every
modality on its own, a cluster of y with probability `informativeness`, and otherwise a cluster of a
class drawn at random; to its pattern comes Gaussian noise of standard deviation `noise`, where the
pattern itself has deviation 1. So the best that a modality alone can reach is

    informativeness + (1 - informativeness) / classes

as long as noise does not hide the patterns, and 0 is chance exactly. One cluster per class can be
told apart by a line; more of them cannot, and are learned later.

Patterns are Gaussian vectors, or sums of waves for sequences and images, so that a convolution sees
them as well as a linear layer does. Every modality draws from streams of its own: turning a knob of
one leaves the others as they are.
"""

from __future__ import annotations

from typing import Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..types import Data, Split, SplitName
from .assemble import SPLITS, assemble

CHANNELS = 3  # of a sequence; an image has none of its own
WAVES = 4  # in the pattern of a sequence or an image

Floats = npt.NDArray[np.float32]
Shape = Literal["vector", "sequence", "image"]
T = TypeVar("T")


def load(
    *,
    modalities: int = 2,
    informativeness: float | tuple[float, ...] = 1.0,
    noise: float | tuple[float, ...] = 1.0,
    difficulty: int | tuple[int, ...] = 1,
    kind: Shape | tuple[Shape, ...] = "vector",
    classes: int = 4,
    samples: int = 2000,
    size: int = 16,
    seed: int = 0,
) -> Data:
    """Modalities m1, m2, ...; a knob is one value for all of them, or a tuple with one for each.

    `samples` are train's; valid and test have a quarter of that each. `size` is the length of a
    vector, the steps of a sequence, the side of an image.
    """
    at_least("modalities", modalities, 1)
    at_least("classes", classes, 2)
    at_least("samples", samples, 4 * classes)
    at_least("size", size, 2)
    at_least("seed", seed, 0)
    names = tuple(f"m{i:0{len(str(modalities))}d}" for i in range(1, modalities + 1))
    shares = within("informativeness", spread("informativeness", informativeness, modalities), 1.0)
    noises = within("noise", spread("noise", noise, modalities), np.inf)
    clusters = spread("difficulty", difficulty, modalities)
    shapes: tuple[Shape, ...] = spread("kind", kind, modalities)
    for count in clusters:
        at_least("difficulty", count, 1)

    sizes: dict[SplitName, int] = {"train": samples, "valid": samples // 4, "test": samples // 4}
    splits: dict[SplitName, Split] = {}
    for place, split in enumerate(SPLITS):
        shuffled = np.random.default_rng([seed, 0, place]).permutation(sizes[split])
        target = shuffled % classes
        inputs: dict[str, Floats] = {}
        for i, name in enumerate(names):
            known = patterns(
                np.random.default_rng([seed, 1, i]), classes * clusters[i], shapes[i], size
            )
            chance = np.random.default_rng([seed, 2, i, place])
            shown = seen_class(chance, target, shares[i], classes)
            inputs[name] = seen(chance, known, shown, clusters[i], noises[i])
        splits[split] = Split(inputs, target)
    return assemble(
        "synthetic",
        splits,
        labels=tuple(f"class {c}" for c in range(classes)),
        kinds=dict(zip(names, shapes, strict=True)),
        about=f"Made up from seed {seed}: informativeness {shares}, noise {noises}, "
        f"difficulty {clusters}.",
    )


def seen_class(
    chance: np.random.Generator, target: npt.NDArray[np.int64], share: float, classes: int
) -> npt.NDArray[np.int64]:
    """The class that a modality shows: the sample's own in this share of cases, else any."""
    own = chance.random(len(target)) < share
    return np.where(own, target, chance.integers(classes, size=len(target)))


def seen(
    chance: np.random.Generator,
    known: Floats,
    shown: npt.NDArray[np.int64],
    clusters: int,
    noise: float,
) -> Floats:
    """The pattern of one of the clusters of each class, and noise."""
    cluster = shown * clusters + chance.integers(clusters, size=len(shown))
    hidden = chance.standard_normal((len(shown), *known.shape[1:]), np.float32)
    return (known[cluster] + noise * hidden).astype(np.float32)


def patterns(chance: np.random.Generator, count: int, kind: Shape, size: int) -> Floats:
    """`count` patterns of deviation 1, of shape [d], [t, c] or [h, w]."""
    if kind == "vector":
        made = chance.standard_normal((count, size))
    elif kind == "sequence":
        made = waves(chance, count * CHANNELS, (size,)).reshape(count, CHANNELS, size)
        made = np.swapaxes(made, 1, 2)
    else:
        made = waves(chance, count, (size, size))
    aside = tuple(range(1, made.ndim))
    return (made / made.std(axis=aside, keepdims=True)).astype(np.float32)


def waves(
    chance: np.random.Generator, count: int, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Sums of a few waves, with directions, lengths and phases drawn for each pattern."""
    along = np.stack(np.meshgrid(*(np.arange(side) / side for side in shape), indexing="ij"))
    cycles = chance.uniform(-4.0, 4.0, (count, WAVES, len(shape)))
    phase = chance.uniform(0.0, 1.0, (count, WAVES, *(1 for _ in shape)))
    turns = np.tensordot(cycles, along, axes=1) + phase
    return np.sin(2 * np.pi * turns).sum(axis=1)


def spread(name: str, values: T | tuple[T, ...], modalities: int) -> tuple[T, ...]:
    """One value per modality, of one for each or one for all."""
    each = cast("tuple[T, ...]", values if isinstance(values, tuple) else (values,))
    if len(each) == 1:
        each = each * modalities
    if len(each) != modalities:
        raise ValueError(f"{name} has {len(each)} values; give 1 or modalities = {modalities}")
    return each


def at_least(name: str, value: int, least: int) -> None:
    """An option that counts something."""
    if value < least:
        raise ValueError(f"{name} = {value}; it must be at least {least}")


def within(name: str, values: tuple[float, ...], most: float) -> tuple[float, ...]:
    """Options from 0 to `most`."""
    for value in values:
        if not 0 <= value <= most:
            raise ValueError(f"{name} = {value}; it must lie between 0 and {most:g}")
    return values
