"""Progress of decoding: a bar on a terminal, lines everywhere else. Failures are told at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from .board import clock
from .inventory import amount
from .tables import console, printable
from .training import INTERRUPTED, a_person_watches

if TYPE_CHECKING:
    from ..media.prepare import Progress

HEARTBEAT = 15.0  # seconds between two lines
BAR = 30
VERBS = {"comparing": "comparing with what was decoded", "decoding": "decoding"}


class Pace:
    """How long a stage has taken, and will still take."""

    def __init__(self, progress: Progress, now: float) -> None:
        self.stage, self.first, self.since = progress.stage, progress.done, now

    def left(self, progress: Progress, now: float) -> float | None:
        """Seconds, once there is something to tell by."""
        done = progress.done - self.first
        return (progress.total - progress.done) * (now - self.since) / done if done else None


class Lines:
    """For logs, pipes and CI."""

    def __init__(self, name: str, *, err: bool) -> None:
        self.name, self.err = name, err
        self.pace: Pace | None = None
        self.spoken = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.error is not None:
            self.say(printable(f"{progress.id}: {progress.error}"), now)
        over = progress.done == progress.total
        if self.pace is None or self.pace.stage != progress.stage:
            self.pace = Pace(progress, now)
            self.say(self.told(progress, now), now)
        elif now - self.spoken >= HEARTBEAT or (over and progress.stage == "decoding"):
            self.say(self.told(progress, now), now)

    def told(self, progress: Progress, now: float) -> str:
        """Where it is."""
        assert self.pace is not None
        if progress.stage == "writing":
            return f"{self.name}: writing {amount(progress.total)}"
        text = f"{self.name}: {VERBS[progress.stage]}, {progress.done} of {progress.total} samples"
        if progress.failed:
            text += f", {progress.failed} failed"
        left = self.pace.left(progress, now)
        return f"{text}, about {clock(left)} left" if left else text

    def say(self, text: str, now: float) -> None:
        """Out of the way of JSON."""
        typer.echo(text, err=self.err)
        self.spoken = now


class Bar:
    """For a person."""

    def __init__(self, name: str) -> None:
        from rich.live import Live

        self.name, self.console = name, console()
        self.pace: Pace | None = None
        self.last: Progress | None = None
        self.live = Live(
            console=self.console, refresh_per_second=6, get_renderable=self.drawn, transient=True
        )

    def __call__(self, progress: Progress) -> None:
        from rich.text import Text

        if self.pace is None or self.pace.stage != progress.stage:
            self.pace = Pace(progress, time.monotonic())
        if progress.error is not None:
            name, why = printable(progress.id), printable(progress.error)
            line = Text.assemble((" ✗ ", "red"), name, (f"  {why}", "red"))
            self.console.print(line)
        self.last = progress

    def drawn(self) -> Any:
        """The bar, as it is at this moment."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        if self.last is None or self.pace is None:
            return f" [dim]looking for {self.name}[/]"
        now, progress = time.monotonic(), self.last
        verb = VERBS.get(progress.stage, progress.stage)
        if progress.stage == "writing":
            counts = f"{amount(progress.done)} of {amount(progress.total)}"
        else:
            counts = f"[bold]{progress.done}/{progress.total}[/] samples"
        left = self.pace.left(progress, now)
        times = f"{clock(now - self.pace.since)} passed"
        times += ", starting" if left is None else f", about {clock(left)} left"
        failed = f"  [red]{progress.failed} failed[/]" if progress.failed else ""
        line = Table.grid(padding=(0, 1))
        for _ in range(4):
            line.add_column(no_wrap=True)
        bar = ProgressBar(total=max(1, progress.total), completed=progress.done, width=BAR)
        line.add_row(f" {verb}", bar, counts, f"[dim]{times}[/]{failed}")
        return line


@contextmanager
def watched(
    name: str, stopped: str = "", *, plain: bool, quiet: bool
) -> Generator[Callable[[Progress], None]]:
    """A display of progress; `quiet` keeps stdout free for JSON. `stopped` is said at Ctrl-C."""
    try:
        if plain or quiet or not a_person_watches():
            yield Lines(name, err=quiet)
            return
        bar = Bar(name)
        with bar.live:
            yield bar
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. {stopped}".rstrip(), err=True)
        raise typer.Exit(INTERRUPTED) from None
