"""`vcmm results` and `vcmm report`: what finished runs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .errors import Mistake, mistakes
from .flags import Json, Runs, Select

if TYPE_CHECKING:
    from ..records import Run

# As `report.sheets` and `report.export` have them; a test holds them together.
Table = Literal["table1", "ablation", "sensitivity", "cost", "search", "ranking"]
Format = Literal["text", "latex", "markdown", "csv"]


def results(
    *,
    runs: Runs = Path("runs"),
    sql: Annotated[
        str | None,
        typer.Option(help="A SELECT over the tables runs, steps, evals and cost.", metavar="QUERY"),
    ] = None,
    table: Annotated[
        Table | None, typer.Option(help="A table as a paper has it.", show_default=False)
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="Of that table; csv has all numbers in full.")
    ] = "text",
    select: Select = "valid",
    as_json: Json = False,
) -> None:
    """The results table of all runs in a folder, a table for a paper, or the answer to a query."""
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
    if table is not None:
        typer.echo("\n".join(written(found, table, form, select)), nl=False)
        return
    from ..analysis import results as rows_of
    from .tables import console, show_results

    rows = rows_of(found, select)
    if as_json:
        typer.echo(json.dumps({"selection": select, "results": rows}, indent=2))
    else:
        show_results(rows, console())
        if note := beside(found):
            typer.echo(f"\n{note}")


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


def written(found: list[Run], table: str, form: str, select: str) -> list[str]:
    """Every table of a name, as text."""
    from ..arms import settings
    from ..report.export import FORMATS
    from ..report.sheets import SUITES, named

    with mistakes():
        sheets = named(table, settings(found), select)
    if not sheets:
        raise Mistake(
            f"these runs hold no table {table!r}; vcmm sweep {SUITES[table]} trains what it shows"
        )
    return [FORMATS[form](sheet) for sheet in sheets]


def beside(found: list[Run]) -> str:
    """What is in no row of the results, and where it is."""
    from ..arms import settings

    made = settings(found)
    tried = sum(len(arm.runs) for one in made for arm in one.aside)
    swept = sum(len(arm.runs) for one in made for arm in one.near)
    said = [f"{tried} runs of searches, grids and recorders (--table search)"] * (tried > 0)
    said += [f"{swept} steps of sweeps (--table sensitivity)"] * (swept > 0)
    return f"Not shown: {' and '.join(said)}; vcmm report has them all" if said else ""


def answer(names: list[str], rows: list[tuple[object, ...]], as_json: bool) -> None:
    """The rows of a query."""
    if as_json:
        made = [dict(zip(names, row, strict=True)) for row in rows]
        typer.echo(json.dumps(made, indent=2, default=str))
        return
    from .tables import console, show_rows

    show_rows(names, rows, console())
