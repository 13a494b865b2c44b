"""Encoders by name: each makes a module, with `outputs` features, for a modality's `Form`.

`docs/encoders.md` says which takes what. To add one, write its file and its line in `ENCODERS`, and
which kind of modality it is tried on in `vcmm.bench.trial`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..signature import require_positive
from ..types import Form
from .ast import AST
from .bert import BERT
from .conv import Conv1d, Conv2d
from .encoder import Encoder, require_kind
from .i3d import I3D
from .mlp import MLP
from .resnet import resnet18, resnet34, resnet50


def auto(form: Form, *, width: int = 32, outputs: int = 64) -> Encoder:
    """An MLP for vectors, a 1-D CNN for sequences, a 2-D CNN for images."""
    require_kind(form, "vector", "sequence", "image")
    require_positive("auto", width=width, outputs=outputs)
    if form.kind == "vector":
        return MLP(form, width=2 * width, outputs=outputs)
    convolution = Conv1d if form.kind == "sequence" else Conv2d
    return convolution(form, width=width, outputs=outputs)


ENCODERS: dict[str, Callable[..., Encoder]] = {
    "ast": AST,
    "auto": auto,
    "bert": BERT,
    "conv1d": Conv1d,
    "conv2d": Conv2d,
    "i3d": I3D,
    "mlp": MLP,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
}
