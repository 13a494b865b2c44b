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

Kind = Literal["lines", "marks", "bars", "ranges"]
Number = float | None


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one arm, or of one measure. `low` and `high` are a band, or error bars."""

    label: str
    look: Look
    x: Sequence[float | str]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    dots: Sequence[tuple[float, float]] = ()  # single seeds


@dataclass(frozen=True, slots=True)
class Panel:
    """A pair of axes. In "ranges", x is the value, and every series is a line of its own."""

    title: str
    kind: Kind
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_y: bool = False
    banded: bool = True


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
