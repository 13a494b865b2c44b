"""What stands at the end of a sweep: the table, what it means, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .errors import mistakes
from .training import Outcome

if TYPE_CHECKING:
    from ..analysis import Imbalance
    from ..records import Run
    from ..statistics import Interval, Paired


def finish(
    outcome: Outcome,
    root: Path,
    out: Path,
    *,
    title: str,
    selection: str = "valid",
    as_json: bool = False,
    more: dict[str, Any] | None = None,
) -> None:
    """Print the results of what was launched, write its page, and leave with its exit code."""
    from ..records import load

    with mistakes():
        runs = load(root, outcome.complete.values())
    if not runs:
        outcome.leave()
    from ..report.page import write

    page = write(runs, out, selection=selection, title=title)
    said = summary(runs, selection)
    if as_json:
        failed = [{"label": f.label, "run": f.run, "error": f.reason} for f in outcome.failures]
        whole = {**(more or {}), **said, "failed": failed}
        whole |= {"runs": str(root), "report": str(page)}
        typer.echo(json.dumps(whole, indent=2))
    else:
        show(said)
        typer.echo(f"\nRecords  {root}\nReport   {page}")
    outcome.leave()


def summary(runs: list[Run], selection: str) -> dict[str, Any]:
    """Results, imbalance and recommendation of every setting, as JSON has it."""
    from ..analysis import imbalance, results
    from ..arms import settings
    from ..recommend import recommend

    found = settings(runs)
    return {
        "selection": selection,
        "results": results(runs, selection),
        "imbalance": [
            {"setting": one.title, **described(row)}
            for one in found
            for row in imbalance(one, selection)
        ],
        "recommendation": {one.title: recommend(one, selection) for one in found},
    }


def described(row: Imbalance) -> dict[str, Any]:
    """A modality's balance, as JSON has it."""
    found: dict[str, Any] = {"modality": row.modality, "verdict": row.verdict}
    for name in ("unimodal", "probe", "head", "gap"):
        value: Interval | Paired | None = getattr(row, name)
        found[name] = None if value is None else value._asdict()
    return found


def show(said: dict[str, Any]) -> None:
    """The same in a terminal."""
    from rich.table import Table
    from rich.text import Text

    from .tables import console, show_imbalance, show_results

    screen = console()
    show_results(said["results"], screen)
    show_imbalance(said["imbalance"], screen)
    for title, sentences in said["recommendation"].items():
        screen.print()
        several = len(said["recommendation"]) > 1
        screen.print(Text(f"What it means{f', {title}' if several else ''}", style="bold"))
        lines = Table.grid(padding=(0, 1))
        for sentence in sentences:
            lines.add_row(" •", Text(sentence))
        screen.print(lines)
