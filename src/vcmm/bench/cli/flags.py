"""Flags that several commands share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Selection = Literal["valid", "last", "oracle"]

Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, nothing else there.")]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines instead of a live display.")]
Runs = Annotated[Path, typer.Option("--runs", help="The folder of the runs.", metavar="DIR")]
Select = Annotated[
    Selection,
    typer.Option(
        "--select",
        help="Which epoch counts: the best on valid, the last, or, with a "
        "warning, the best on test.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Runs at a time; all cores if left out. torch's threads are divided among them.",
        show_default=False,
    ),
]
Threads = Annotated[
    int, typer.Option("--threads", min=1, help="torch's threads; part of what is run.")
]
CheckpointEvery = Annotated[
    float,
    typer.Option("--checkpoint-every", min=0.0, help="Seconds between two checkpoints of a run."),
]
