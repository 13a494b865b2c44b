"""Suites by name: functions from a base to the specs that answer a question.

The base says what all of them share: data, encoders, fusion, optimizer, schedule. The keyword-only
arguments of a suite are what it varies and how much it spends. A suite is a list of specs, or a
generator where later ones depend on what earlier ones found (`stages`).
"""

from __future__ import annotations

from collections.abc import Callable

from .ablation import ablation
from .compare import compare
from .cost import cost
from .demo import demo
from .dynamics import dynamics
from .everything import everything
from .sensitivity import sensitivity
from .stages import Asked
from .table1 import table1

PAPER: dict[str, Callable[..., Asked]] = {
    "ablation": ablation,
    "all": everything,
    "cost": cost,
    "dynamics": dynamics,
    "sensitivity": sensitivity,
    "table1": table1,
}
SUITES: dict[str, Callable[..., Asked]] = {"compare": compare, "demo": demo, **PAPER}
