"""What an encoder is."""

from __future__ import annotations

from typing import Literal

from torch import nn

from ..types import Form


class Encoder(nn.Module):
    """A module that makes `outputs` features of a sample."""

    outputs: int


def require_kind(form: Form, kind: Literal["sequence", "image"], instead: str) -> None:
    """An error if the modality's arrays are of another kind."""
    if form.kind != kind:
        raise ValueError(
            f"this encoder takes a modality of kind {kind}, not {form.kind} of shape "
            f"{form.shape}; use encoder {instead}, or auto"
        )
