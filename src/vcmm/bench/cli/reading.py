"""`vcmm results` and `vcmm report`: what finished runs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .errors import Mistake, mistakes
from .flags import Json, Runs, Select


def results(
    *,
    runs: Runs = Path("runs"),
    sql: Annotated[
        str | None,
        typer.Option(help="A SELECT over the tables runs, steps, evals and cost.", metavar="QUERY"),
    ] = None,
    select: Select = "valid",
    as_json: Json = False,
) -> None:
    """The results table of all runs in a folder, or the answer to a query."""
    from .. import records

    if sql is not None:
        with mistakes():
            names, rows = records.query(runs, sql)
        answer(names, rows, as_json)
        return
    with mistakes():
        found = records.load(runs)
    if not found:
        raise Mistake(f"there is no finished run in {runs}; vcmm demo makes some")
    from ..analysis import results as rows_of
    from .tables import console, show_results

    rows = rows_of(found, select)
    if as_json:
        typer.echo(json.dumps({"selection": select, "results": rows}, indent=2))
    else:
        show_results(rows, console())


def report(
    *,
    runs: Runs = Path("runs"),
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where index.html goes; RUNS/report."),
    ] = None,
    select: Select = "valid",
    title: Annotated[str, typer.Option(help="Of the page.")] = "Results",
) -> None:
    """One page with everything: tables, figures, what they mean."""
    from .. import records
    from ..report.page import write

    with mistakes():
        found = records.load(runs)
    if not found:
        raise Mistake(f"there is no finished run in {runs}; vcmm demo makes some")
    with mistakes():
        page = write(found, out or runs / "report", selection=select, title=title)
    typer.echo(page)


def answer(names: list[str], rows: list[tuple[object, ...]], as_json: bool) -> None:
    """The rows of a query."""
    if as_json:
        made = [dict(zip(names, row, strict=True)) for row in rows]
        typer.echo(json.dumps(made, indent=2, default=str))
        return
    from .tables import console, show_rows

    show_rows(names, rows, console())
