"""Train a list of specs with a display, and say how it ended."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..execution import Execution
from ..launch import cores, launch
from ..spec import Spec, canonical
from .board import Board, Failure
from .errors import mistakes
from .plain import PlainView

if TYPE_CHECKING:
    from ..records import Run

FAILED = 1
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launch ended."""

    complete: Mapping[str, str]  # spec, as canonical JSON -> hash
    failures: tuple[Failure, ...]

    def __or__(self, other: Outcome) -> Outcome:
        """Of both launches."""
        return Outcome({**self.complete, **other.complete}, self.failures + other.failures)

    def leave(self) -> None:
        """Exit code 1 if a run failed."""
        if self.failures:
            raise typer.Exit(FAILED)


NOTHING = Outcome({}, ())


def made(specs: Sequence[Spec], outcome: Outcome, root: Path) -> dict[Spec, Run]:
    """The records of these specs, as far as they are complete."""
    from ..records import load

    known = {spec: outcome.complete.get(canonical(spec.to_json())) for spec in specs}
    records = {run.hash: run for run in load(root, set(known.values()))}
    return {spec: records[run] for spec, run in known.items() if run is not None}


def train(
    specs: Sequence[Spec],
    root: Path,
    *,
    workers: int | None,
    threads: int | None = None,
    execution: Execution | None = None,
    checkpoint_every: float = 10.0,
    plain: bool = False,
    quiet: bool = False,
) -> Outcome:
    """Run the specs, showing progress; `quiet` keeps stdout free for JSON."""
    with mistakes():
        root.mkdir(parents=True, exist_ok=True)
    board = Board(specs)
    many = execution is None or execution.device == "cpu"
    count = workers or (cores() if many else 1)
    events = launch(
        specs,
        root,
        workers=count,
        threads=threads,
        execution=execution,
        checkpoint_every=checkpoint_every,
    )
    if plain or quiet or not a_person_watches():
        view = PlainView(board, err=quiet)
    else:
        from .live import LiveView

        view = LiveView(board)
    try:
        with view, closing(events):
            for event in events:
                row = board.update(event)
                view.show(event, row)
    except KeyboardInterrupt:
        again = shlex.join(["vcmm", *sys.argv[1:]])
        typer.echo(
            f"\nStopped. {len(board.complete)} of {board.total} runs are complete, and what was "
            f"begun is kept in {root}. The same command goes on from there:\n  {again}",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    explain(board.failures, root)
    return Outcome(board.complete, tuple(board.failures))


def a_person_watches() -> bool:
    """Whether a display that redraws itself makes sense."""
    return (
        sys.stdout.isatty()
        and os.environ.get("TERM", "") not in ("", "dumb")
        and not os.environ.get("CI")
    )


def explain(failures: Sequence[Failure], root: Path) -> None:
    """Which runs failed, why, and where the whole story lies."""
    if not failures:
        return
    lines = [f"error: {len(failures)} run{'s' * (len(failures) > 1)} failed:"]
    reasons: dict[str, list[Failure]] = {}
    for failure in failures:
        reasons.setdefault(failure.reason, []).append(failure)
    for reason, group in reasons.items():
        lines.append(f"  {reason}")
        for failure in group:
            story = root / ".work" / failure.run / "error.txt"
            where = f": {story}" if failure.run and story.exists() else ""
            lines.append(f"    {failure.label}{where}")
    typer.echo("\n".join(lines), err=True)
