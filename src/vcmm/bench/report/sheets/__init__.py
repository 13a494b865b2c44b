"""Every table of the report, one per file, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable

from ...arms import Setting
from ..sheet import Sheet as Sheet
from .ablation import ablation
from .cost import cost
from .ranking import ranking as ranking
from .search import search
from .sensitivity import sensitivity
from .table1 import table1

# Of a setting and a rule that selects epochs; None where the records have nothing to show.
SHEETS: tuple[Callable[[Setting, str], Sheet | None], ...] = (
    table1,
    ablation,
    sensitivity,
    cost,
    search,
)
