"""Flags that say where and how runs are executed, and what they come to where they are left out.

Data that is decoded from media is trained on a GPU where there is one, in bfloat16. The small data
sets stay on the CPU: their networks are too small for a GPU to be faster.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..execution import Execution
from .errors import mistakes

PANEL = "Execution"

Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:1, ...; auto is a GPU for media, where there is one.",
        rich_help_panel=PANEL,
    ),
]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(
        "--precision",
        help="Of encoders, by autocast; auto is bfloat16 on a GPU.",
        rich_help_panel=PANEL,
    ),
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile the encoders.", rich_help_panel=PANEL)
]
Loaders = Annotated[
    int | None,
    typer.Option(
        "--loaders",
        min=0,
        help="Threads that decode and augment ahead; as many as torch has if left out.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]


def executed(
    data: str, device: str, precision: str, compiled: bool, loaders: int | None
) -> Execution:
    """What the flags come to for this data."""
    from ..data import COLLECTIONS

    if device == "auto":
        device = "cuda" if data in COLLECTIONS and cuda() else "cpu"
    with mistakes():
        require_device(device)
    on_gpu = device != "cpu"
    if precision == "auto":
        precision = "bfloat16" if on_gpu else "float32"
    with mistakes():
        return Execution(
            device=device,
            precision="bfloat16" if precision == "bfloat16" else "float32",
            channels_last=on_gpu,
            compiled=compiled,
            loaders=loaders,
        )


def require_device(device: str) -> None:
    """An error unless torch can train there."""
    kind, colon, number = device.partition(":")
    if device == "cpu":
        return
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise ValueError(f"--device is {device!r}; it must be auto, cpu, cuda or cuda:NUMBER")
    if not cuda():
        raise ValueError(f"--device {device}: torch finds no GPU here")
    import torch

    if colon and int(number) >= torch.cuda.device_count():
        raise ValueError(f"--device {device}: torch finds {torch.cuda.device_count()} GPUs here")


def cuda() -> bool:
    """Whether torch finds a GPU."""
    import torch

    return torch.cuda.is_available()
