"""What an encoder is."""

from __future__ import annotations

from torch import nn

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


def require_kind(form: Form, *kinds: Kind) -> None:
    """An error if the modality's arrays are of another kind, with an encoder that takes them."""
    if form.kind not in kinds:
        raise ValueError(
            f"this encoder takes a modality of kind {' or '.join(kinds)}, not {form.kind} of shape "
            f"{form.shape}; use encoder {TAKES[form.kind]}"
        )
