"""Everything that a spec names, made once on a stand-in, so that a bad value fails at once.

What a constructor refuses is written once, in the constructor. The stand-in has as many modalities
as the spec speaks of, with linear encoders of a few weights, and no data. Nothing is drawn from
torch's randomness, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn

from . import seeds
from .controllers import CONTROLLERS
from .encoders import ENCODERS
from .fusions import FUSIONS
from .method import groups
from .methods import METHODS
from .model import Multimodal
from .optimizers import OPTIMIZERS
from .schedules import SCHEDULES
from .types import Form, Kind

if TYPE_CHECKING:
    from .spec import Choice, Spec

WIDTH, CLASSES, STEPS = 4, 3, 10
KINDS: dict[str, Kind] = {  # any other takes vectors
    "ast": "image",
    "bert": "tokens",
    "conv1d": "sequence",
    "conv2d": "image",
    "i3d": "video",
    "resnet18": "image",
    "resnet34": "image",
    "resnet50": "image",
}
SHAPES: dict[Kind, tuple[int, ...]] = {
    "vector": (8,),
    "sequence": (1, 8),
    "image": (1, 16, 16),
    "video": (1, 8, 16, 16),
    "tokens": (8,),
}


def attempt(spec: Spec) -> None:
    """Make everything that the spec names; whatever is wrong with it is raised."""
    for choice in (spec.encoder, *spec.encoders.values()):
        encode(choice)
    with seeds.fixed(0, "trial"):
        names = spoken_of(spec)
        fusion = FUSIONS[spec.fusion.name](
            dict.fromkeys(names, WIDTH), CLASSES, **spec.fusion.options
        )
        model = Multimodal({name: nn.Linear(WIDTH, WIDTH) for name in names}, fusion)
        optimizer = OPTIMIZERS[spec.optimizer.name](groups(model), **spec.optimizer.options)
        METHODS[spec.method.name](model, optimizer, **spec.method.options)
        SCHEDULES[spec.schedule.name](optimizer, spec.epochs, STEPS, **spec.schedule.options)
        total = spec.epochs * STEPS
        CONTROLLERS[spec.controller.name](
            optimizer, "cross_entropy", total, **spec.controller.options
        )
    starts = spec.method.options.get("starts", 0)
    if starts >= spec.epochs:
        raise ValueError(
            f"method {spec.method.name!r}: starts is {starts}, and the last epoch of this run is "
            f"{spec.epochs - 1}, so the method would never act; give starts=0, or more epochs"
        )


def encode(choice: Choice) -> None:
    """Make an encoder, without any memory; a file of weights is not read."""
    kind = KINDS.get(choice.name, "vector")
    form = Form(kind, SHAPES[kind], None, np.zeros(1), np.ones(1))
    with torch.device("meta"):
        ENCODERS[choice.name](form, **choice.options)


def spoken_of(spec: Spec) -> tuple[str, ...]:
    """The modalities that the spec names anywhere; two with other names if it names none."""
    if spec.method.name == "unimodal":
        return (spec.method.options["modality"],)
    if spec.modalities is not None:
        return spec.modalities
    found: set[str] = set()
    for choice in (spec.method, spec.fusion, spec.controller):
        for name, value in choice.options.items():
            if isinstance(value, Mapping):
                found |= {str(key) for key in cast(Mapping[str, object], value)} - {"fused"}
            elif name == "main" and value is not None:
                found.add(value)
    return tuple(sorted(found)) or ("a", "b")
