"""Suites by name: functions from a base to the list of specs that answer a question.

The base says what all of them share: data, encoders, fusion, optimizer, schedule. The keyword-only
arguments of a suite are what it varies and how much it spends.
"""

from __future__ import annotations

from collections.abc import Callable

from ..spec import Spec
from .compare import compare
from .demo import demo
from .table1 import table1

SUITES: dict[str, Callable[..., list[Spec]]] = {
    "compare": compare,
    "demo": demo,
    "table1": table1,
}
