"""Progress on a terminal: a bar over everything, and a row for each run that is being trained.

Above them stays a line for each run that has ended; a failed one says why at once.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..events import Event
from .board import Board, Row, clock
from .plain import ended
from .tables import console

if TYPE_CHECKING:
    from rich.table import Table

_BAR = 30
_MARKS = {"done": "✓", "cached": "✓", "failed": "✗", "busy": "…"}
_STYLES = {"done": "green", "cached": "green", "failed": "red", "busy": "yellow"}


class LiveView:
    """A display that is drawn anew a few times a second."""

    def __init__(self, board: Board) -> None:
        from rich.live import Live

        self.board = board
        self.console = console()
        self.live = Live(
            console=self.console, refresh_per_second=6, get_renderable=self._drawn, transient=True
        )

    def __enter__(self) -> LiveView:
        self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.live.stop()

    def show(self, event: Event, row: Row) -> None:
        """A line for a run that has ended; the rest is drawn from the board."""
        if event.kind not in _MARKS:
            return
        from rich.text import Text

        line = Text.assemble(
            (f" {_MARKS[event.kind]} ", _STYLES[event.kind]),
            row.label,
            (f"  {ended(event, row, self.board)}", "red" if event.kind == "failed" else "dim"),
        )
        self.console.print(line)

    def _drawn(self) -> Any:
        from rich.console import Group
        from rich.padding import Padding

        return Group("", self._overall(), Padding(self._runs(), (0, 0, 0, 1)))

    def _overall(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        board = self.board
        line = Table.grid(padding=(0, 1))
        for _ in range(4):
            line.add_column(no_wrap=True)
        bar = ProgressBar(total=1.0, completed=board.share, width=_BAR)
        left = board.left
        times = f"{clock(board.elapsed)} passed"
        times += ", starting" if left is None else f", about {clock(left)} left"
        failed = f"  [red]{len(board.failures)} failed[/]" if board.failures else ""
        line.add_row(
            f" [bold]{board.over}/{board.total}[/] runs",
            bar,
            f"{100 * board.share:.0f} %",
            f"[dim]{times}[/]{failed}",
        )
        return line

    def _runs(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
        table.add_column("running", no_wrap=True, overflow="ellipsis", min_width=24)
        for name in ("epoch", "loss", "valid"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("beta", no_wrap=True, overflow="ellipsis")
        table.add_column("left", justify="right", no_wrap=True)
        now = self.board.clock()
        for row in list(self.board.running.values()):
            table.add_row(
                Text(row.label),
                f"{min(row.epoch + 1, row.epochs)}/{row.epochs}",
                "" if row.loss is None else f"{row.loss:.3f}",
                "" if row.score is None else f"{100 * row.score[1]:.1f} %",
                Text(betas(row.betas)),
                clock(row.left(now)),
            )
        return table


def betas(values: dict[str, float]) -> str:
    """Momenta by as much of each modality's name as tells them apart: "acc .91  gyr .88"."""
    names = sorted(values)
    length = 3
    while length < 12 and len({name[:length] for name in names}) < len(names):
        length += 1
    return "  ".join(f"{name[:length]} {values[name]:.3f}".replace("0.", ".") for name in names)
