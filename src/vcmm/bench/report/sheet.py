"""What a table of a paper is before it is written: titled columns, and rows of cells with marks.

A sheet is computed once. `export.py` writes it as LaTeX, Markdown, CSV or plain text, and the page
shows it, all from the same cells. Words are as a person reads them; escaping is the writer's task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

# Best and second are among the rows that compete; below: a multimodal arm that does not reach the
# best single modality.
Mark = Literal["best", "second", "below"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, what stands small beside it, its marks, and the numbers behind it by name."""

    text: str = ""
    small: str = ""
    marks: frozenset[Mark] = frozenset()
    values: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. Numbers stand to the right, words to the left."""

    title: str
    number: bool = True


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with its words: a name for files, a title, a caption, and notes beneath."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()  # the rows that a line stands above

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"sheet {self.name!r} has {len(self.columns)} columns, and a row of {len(row)} "
                    f"cells: {[cell.text for cell in row]}"
                )


def ranked(cells: Sequence[Cell], key: str = "mean", *, largest: bool = True) -> list[Cell]:
    """The cells of a column with the best and the second marked, by what they show.

    Means that are shown as equal are equal: a difference that the table does not show decides
    nothing. Cells without this value do not compete.
    """
    shown = {_mean(cell): cell.values[key] for cell in cells if key in cell.values}
    order = sorted(shown, key=lambda text: shown[text], reverse=largest)
    marks: dict[str, Mark] = {}
    if len(order) > 1:
        marks = {order[0]: "best", order[1]: "second"}
    return [
        replace(cell, marks=cell.marks | {marks[_mean(cell)]})
        if key in cell.values and _mean(cell) in marks
        else cell
        for cell in cells
    ]


def _mean(cell: Cell) -> str:
    return cell.text.partition(" ")[0]
