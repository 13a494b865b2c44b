"""A multilayer perceptron, for vectors; arrays of other kinds are flattened first."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from ..signature import require_positive
from ..types import Form
from .encoder import Encoder, require_kind


class MLP(Encoder):
    """Linear layers with ReLU, `depth` of them, the last one of `outputs` features."""

    def __init__(self, form: Form, *, width: int = 64, depth: int = 2, outputs: int = 64) -> None:
        super().__init__()
        require_kind(form, "vector", "sequence", "image", "video")
        require_positive("mlp", width=width, depth=depth, outputs=outputs)
        self.outputs = outputs
        widths = [math.prod(form.shape), *[width] * (depth - 1), outputs]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)
