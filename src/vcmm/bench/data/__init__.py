"""The data sets by name, and `load`.

A loader is a function with keyword-only typed options that returns `Data`. To add one, write its
file and its line in `DATA`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..signature import completed
from ..types import Data
from . import synthetic, watch

DATA: dict[str, Callable[..., Data]] = {
    "synthetic": synthetic.load,
    "watch": watch.load,
}


def load(name: str, **options: object) -> Data:
    """A data set by name."""
    return DATA[name](**completed(f"data {name!r}", DATA[name], options))
