"""What an encoder is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

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
    compiled_for: int = 0  # samples of a training batch that compiled code computes; 0 is none

    def __call__(self, inputs: Tensor) -> Tensor:
        if self.precision is None:
            return self._computed(inputs)
        with torch.autocast(inputs.device.type, self.precision):
            features = self._computed(inputs)
        return features.float()

    def _computed(self, inputs: Tensor) -> Tensor:
        # Which code computes a batch must not depend on the batches before it, or a run that goes
        # on from a checkpoint would come to other numbers. So whole batches of training have code
        # of their own, and everything else is computed as it is written.
        if self.training and len(inputs) == self.compiled_for:
            return compiled(type(self))(self, inputs)
        return super().__call__(inputs)


@cache
def compiled(kind: type[Encoder]) -> Callable[[Encoder, Tensor], Tensor]:
    """The compiled `forward` of a kind of encoder. No encoder holds it, for encoders are copied."""
    return torch.compile(kind.forward, dynamic=False)


def require_kind(form: Form, *kinds: Kind) -> None:
    """An error if the modality's arrays are of another kind, with an encoder that takes them."""
    if form.kind not in kinds:
        raise ValueError(
            f"this encoder takes a modality of kind {' or '.join(kinds)}, not {form.kind} of shape "
            f"{form.shape}; use encoder {TAKES[form.kind]}"
        )
