"""scipy.stats, imported when it is needed: it takes longer than all else that a command imports."""

from __future__ import annotations

from typing import Any


def stats() -> Any:
    """The module, whose functions have no types."""
    from scipy import stats as found  # pyright: ignore[reportMissingTypeStubs]

    return found
