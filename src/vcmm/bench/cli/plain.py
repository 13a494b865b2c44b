"""Progress as lines: for logs, pipes and CI. One for each run that ends, and a sign of life."""

from __future__ import annotations

from types import TracebackType

import typer

from ..events import Event
from .board import Board, Row, clock

_HEARTBEAT = 15.0  # seconds


class PlainView:
    """Lines on stderr or stdout."""

    def __init__(self, board: Board, *, err: bool = False) -> None:
        self.board, self.err = board, err
        self._spoken = board.clock()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is to be undone."""

    def show(self, event: Event, row: Row) -> None:
        """Say what happened, if it is worth a line."""
        board = self.board
        if event.kind in ("done", "cached", "failed", "busy"):
            place = f"[{board.over:>{len(str(board.total))}}/{board.total}]"
            self._say(f"{place} {row.label}: {ended(event, row, board)}")
        elif event.kind == "started" and event.step:
            self._say(f"{row.label}: continues at step {event.step} of {event.steps}")
        elif board.clock() - self._spoken >= _HEARTBEAT:
            under_way = "; ".join(map(at, list(board.running.values())))
            self._say(f"  {board.over} of {board.total} runs over, {remaining(board)}; {under_way}")

    def _say(self, text: str) -> None:
        typer.echo(text, err=self.err)
        self._spoken = self.board.clock()


def ended(event: Event, row: Row, board: Board) -> str:
    """How a run ended, in words."""
    if event.kind == "failed":
        return f"failed: {board.failures[-1].reason}"
    if event.kind == "cached":
        return "is there already"
    if event.kind == "busy":
        return "is being run by another process; it is looked at again later"
    took = f"done in {board.clock() - row.since:.1f} s"
    took = f"{took}, {score(row)} on valid" if row.score else took
    return f"{took}; it diverged: the loss is no number" if row.diverged else took


def score(row: Row) -> str:
    """accuracy 81.2 %"""
    if row.score is None:
        return ""
    name, value = row.score
    return f"{'mAP' if name == 'map' else name} {100 * value:.1f} %"


def at(row: Row) -> str:
    """Where a run is."""
    loss = "" if row.loss is None else f", loss {row.loss:.3f}"
    return f"{row.label} in epoch {min(row.epoch + 1, row.epochs)}/{row.epochs}{loss}"


def remaining(board: Board) -> str:
    """How long it will still take."""
    left = board.left
    return "no estimate yet" if left is None else f"about {clock(left)} left"
