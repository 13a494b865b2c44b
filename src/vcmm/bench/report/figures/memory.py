"""Accuracy against the memory that training took."""

from __future__ import annotations

from ..figure import Figure, Source
from ..related import compared
from .price import against


def memory(source: Source) -> Figure | None:
    """One mark per arm, over the peak of one training step."""
    panel = against(
        source,
        "peak memory of a step (MiB)",
        lambda run: None if run.peak_bytes is None else run.peak_bytes / 2**20,
    )
    if panel is None:
        return None
    return Figure(
        name="memory",
        title="Accuracy against memory",
        caption=(
            "Test split. Marks are means over seeds with the 95 % t-interval, dots are single "
            "seeds. Memory is what model and optimizer hold, and the peak of two training steps."
        ),
        reading="Up and to the left is better.",
        panels=(panel,),
        arms=compared(source),
        by_rule=True,
    )
