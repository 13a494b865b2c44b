"""`vcmm paper`: all tables and figures as files that a paper takes in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import Mistake, mistakes
from .flags import Runs, Select


def paper(
    *,
    runs: Runs = Path("runs"),
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of which data set; needed where runs are of several.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="For main.tex and its parts.")
    ] = (Path("paper")),
    select: Select = "valid",
) -> None:
    """LaTeX tables, PDF figures, a main.tex that takes them in, and a manifest of the runs."""
    from .. import records
    from ..report.bundle import write

    with mistakes():
        found = records.load(runs)
    if not found:
        raise Mistake(f"there is no finished run in {runs}; vcmm sweep table1 makes some")
    with mistakes():
        main = write(found, out, data=data, selection=select)
    typer.echo(main)
