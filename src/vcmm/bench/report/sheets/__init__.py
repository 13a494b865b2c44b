"""Every table of the report, one per file, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...arms import Setting
from ..sheet import Sheet
from .ablation import ablation
from .cost import cost
from .ranking import ranking
from .search import search
from .sensitivity import sensitivity
from .table1 import table1

__all__ = ["SHEETS", "SUITES", "Sheet", "named", "ranking"]

Maker = Callable[[Setting, str], Sheet | None]

# Of a setting and a rule that selects epochs; None where the records have nothing to show.
SHEETS: tuple[Maker, ...] = (table1, ablation, sensitivity, cost, search)
# By name, with the suite whose runs fill it.
SUITES: dict[str, str] = {
    "table1": "table1",
    "ablation": "ablation",
    "sensitivity": "sensitivity",
    "cost": "cost",
    "search": "table1 --search 10",
    "ranking": "table1, on two data sets or more",
}


def named(name: str, found: Sequence[Setting], selection: str) -> list[Sheet]:
    """The sheets of this name: one for each setting that has it, or one over all data sets."""
    if name not in SUITES:
        raise ValueError(f"there is no table {name!r}; choose from {', '.join(SUITES)}")
    if name == "ranking":
        made = [ranking(found, selection)]
    else:
        make = next(one for one in SHEETS if one.__name__ == name)
        made = [make(setting, selection) for setting in found]
    return [sheet for sheet in made if sheet is not None]
