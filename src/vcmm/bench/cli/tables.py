"""Results in a terminal: as many columns as it is wide, every number as on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unicodedata import category

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 160  # where no terminal says how wide it is
_COLOURS = {"better": "green", "worse": "red", "reference": "dim"}


def console(*, err: bool = False) -> Console:
    """The terminal, or what stands in for it."""
    from rich.console import Console

    screen = Console(stderr=err, highlight=False)
    if not screen.is_terminal:
        screen = Console(stderr=err, highlight=False, width=_WIDE)
    return screen


def printable(text: str, *, lines: bool = False) -> str:
    """Words of a stranger's list or disk, with what would steer the terminal written out.

    With `lines` they may have several.
    """
    kept = "\n" if lines else ""
    return "".join(
        one
        if one.isprintable() or category(one) == "Zs" or one in kept  # Zs: the blanks of scripts
        else one.encode("unicode_escape").decode()
        for one in text
    )


def show_results(rows: Sequence[Mapping[str, Any]], screen: Console) -> None:
    """A table for each setting, with what must be said of it."""
    from rich.table import Table
    from rich.text import Text

    from ..wording import cells

    for title in dict.fromkeys(row["setting"] for row in rows):
        here = [row for row in rows if row["setting"] == title]
        words = [cells(row) for row in here]
        table = Table(
            box=None,
            padding=(0, 2, 0, 0),
            pad_edge=False,
            header_style="bold",
            title_justify="left",
            title_style="",
            title=Text(f"{title}, test split, {about(here[0])}", style="bold"),
        )
        chosen = columns(words[0], screen.width, words)
        for name in chosen:
            table.add_column(name, no_wrap=name != "arm", justify="left")
        for row in words:
            style = _COLOURS.get(row["verdict"], "")
            table.add_row(*(Text(row[name], style=style) for name in chosen))
        screen.print()
        screen.print(table)
        if here[0]["warning"]:
            screen.print(Text(here[0]["warning"], style="yellow"))


def about(row: Mapping[str, Any]) -> str:
    """How the numbers of a table are to be read."""
    count = len(row["seeds"])
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    return f"epoch by {row['selection']}; mean ± SD [95 % interval] over {seeds}"


def columns(first: Mapping[str, str], width: int, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The columns that there is room for: the needed ones first."""
    names = list(first)
    metric = names[2]
    wanted = ["arm", metric, "difference to joint", "p (Holm)", "verdict", "time", "memory"]
    wanted += [name for name in names if name not in wanted]
    chosen: list[str] = []
    for name in wanted:
        room = sum(widest(one, rows) + 2 for one in [*chosen, name])
        if len(chosen) < 4 or room <= width + 2:
            chosen.append(name)
        else:
            break
    return [name for name in names if name in chosen]


def widest(name: str, rows: Sequence[Mapping[str, str]]) -> int:
    """How wide a column is."""
    return max(len(name), *(len(row[name]) for row in rows))


def show_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], screen: Console) -> None:
    """The answer to a query."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(Text(name), overflow="fold")  # a hash cut short is none
    for row in rows:
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    screen.print(table)


def show_imbalance(rows: Sequence[Mapping[str, Any]], screen: Console) -> None:
    """Every modality alone, and what joint training makes of it."""
    from rich.table import Table
    from rich.text import Text

    from ..wording import gain

    if not rows:
        return
    several = len({row["setting"] for row in rows}) > 1
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="bold",
        title_justify="left",
        title_style="",
        title=Text(
            "Accuracy of each modality alone, and of its encoder's features in joint "
            "training (linear probe)",
            style="bold",
        ),
    )
    for name in (*(["setting"] if several else []), "modality", "alone", "in joint"):
        table.add_column(name, no_wrap=name != "modality")
    for name in ("difference", "verdict"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        cells = [row["setting"]] if several else []
        cells += [row["modality"]]
        cells += [with_sd(row["unimodal"]), with_sd(row["probe"])]
        cells += ["" if row["gap"] is None else gain(row["gap"]), row["verdict"]]
        style = "yellow" if row["verdict"] == "under-trained" else ""
        table.add_row(*(Text(cell, style=style) for cell in cells))
    screen.print()
    screen.print(table)


def with_sd(value: Mapping[str, Any] | None) -> str:
    """ "71.3 ± 1.2": mean and sample standard deviation, in percent."""
    if value is None:
        return ""
    mean = f"{100 * value['mean']:.1f}"
    return mean if value["sd"] is None else f"{mean} ± {100 * value['sd']:.1f}"
