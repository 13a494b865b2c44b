"""What a figure is before it is drawn: panels of series, with words and with where they come from.

A figure is computed once. `interactive.py` draws it on the page and `paper.py` on paper, both from
the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..arms import Arm, Setting
from .style import Look

Kind = Literal["lines", "marks", "bars", "ranges", "heat", "points"]
Number = float | None
MOST = 10  # arms that a column has room for, and a legend beside them


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one arm, or of one measure. `low` and `high` are a band, or error bars.

    In "heat", x and y count the columns and rows of the panel's names, and `values` are the cells.
    """

    label: str
    look: Look
    x: Sequence[float | str]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    dots: Sequence[tuple[float, float]] = ()  # single seeds; in "heat", the cells that are framed
    values: Sequence[Number] = ()
    level: bool = False  # a value to compare with, and no measurement at every x


@dataclass(frozen=True, slots=True)
class Panel:
    """A pair of axes. In "ranges", x is the value, and every series is a line of its own.

    Where an axis has names, its numbers are places among them.
    """

    title: str
    kind: Kind
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_y: bool = False
    banded: bool = True
    log_x: bool = False
    marked: bool = False  # whether the points of lines are few, and each one was measured
    from_zero: bool = True  # whether zero is a landmark of "ranges"
    y_range: tuple[float, float] | None = None
    x_names: Sequence[str] = ()
    y_names: Sequence[str] = ()
    value_label: str = ""  # of the colours of "heat"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its words: a name for files, a title, what it shows and how to read it."""

    name: str
    title: str
    caption: str
    reading: str
    panels: tuple[Panel, ...]
    arms: tuple[Arm, ...]  # where the numbers come from
    by_rule: bool = False  # whether the selection rule changes it

    @property
    def wide(self) -> bool:
        """Whether it wants the width of the text, and not that of a column."""
        crowded = self.panels[0].kind != "ranges" and len(self.panels[0].series) > MOST
        return len(self.panels) > 1 or crowded

    @property
    def plotly(self) -> list[dict[str, Any]]:
        """A plotly figure per panel, as JSON has it."""
        from .interactive import chart

        return [chart(panel) for panel in self.panels]

    def save(self, stem: str) -> list[str]:
        """Draw it with matplotlib as `<stem>.pdf` and `<stem>.png`; gives both names."""
        from .paper import save

        return save(self, stem)


@dataclass(frozen=True, slots=True)
class Source:
    """What figures are made from: a setting, the rule that selects epochs, and how arms look."""

    setting: Setting
    selection: str
    looks: Mapping[str, Look] = field(default_factory=dict[str, Look])

    def look(self, arm: Arm) -> Look:
        return self.looks[arm.label]
