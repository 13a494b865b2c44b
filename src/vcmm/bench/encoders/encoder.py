"""What an encoder is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..types import Form, Kind

# What takes each kind, to be named where something else was asked for.
TAKES: dict[Kind, str] = {
    "vector": "mlp",
    "sequence": "conv1d",
    "image": "conv2d, resnet18, resnet34 or resnet50",
    "video": "resnet18 for single frames or i3d for clips",
    "tokens": "bert",
}


class Encoder(nn.Module):
    """A module that makes `outputs` features of a sample."""

    outputs: int
    precision: torch.dtype | None = None  # in which it computes; its features are float32

    def __call__(self, inputs: Tensor) -> Tensor:
        if self.precision is None:
            return super().__call__(inputs)
        with torch.autocast(inputs.device.type, self.precision):
            features: Tensor = super().__call__(inputs)
        return features.float()


def require_kind(form: Form, *kinds: Kind) -> None:
    """An error if the modality's arrays are of another kind, with an encoder that takes them."""
    if form.kind not in kinds:
        raise ValueError(
            f"this encoder takes a modality of kind {' or '.join(kinds)}, not {form.kind} of shape "
            f"{form.shape}; use encoder {TAKES[form.kind]}"
        )
