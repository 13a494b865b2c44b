"""How much do VCMM's settings matter? One is changed at a time; everything else stays.

Batch size and learning rate are changed with and without VCMM: what they do to joint training must
be told from what they do to VCMM. Runs of another batch size or learning rate are compared with
joint training by the same, and so stand in a table of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..signature import Value
from ..spec import Choice, Spec
from .budget import Name, within
from .grid import Base, arm, seeded
from .search import base_momentum, with_rate

VARIED: dict[str, tuple[Value, ...]] = {
    "strength": (0.0, 0.25, 0.5, 1.0, 1.5, 2.0),
    "smoothing": (0.5, 0.9, 0.95, 0.99),
    "floor": (1e-6, 1e-4, 1e-3, 1e-2),
    "gain_range": ((0.05, 0.2), (0.01, 0.3), (0.001, 0.9)),
}
BATCHES = (0.5, 2.0, 4.0)  # times the batch size
RATES = (0.1, 0.3, 3.0, 10.0)  # times the learning rate
ROUNDING = 1e-9  # 1 - .7 is more than .3


def sensitivity(
    base: Base,
    *,
    budget: Name = "small",
    seeds: int | None = None,
    epochs: int | None = None,
    batch_size: int = 64,
) -> list[Spec]:
    """VCMM with one setting changed at a time; batch size and learning rate without it as well."""
    base, count = within(base, budget, seeds, epochs, batch_size)
    both = [arm(base, "joint"), arm(base, "joint+vcmm")]
    return seeded(dict.fromkeys([*both, *controlled(both[0]), *trained(both)]), count)


def controlled(joint: Spec) -> Iterator[Spec]:
    """Joint training with VCMM, one option of it changed.

    A range of gains that does not contain the optimizer's own is left out: VCMM refuses it.
    """
    gain = 1 - base_momentum(joint)
    for option, values in VARIED.items():
        for value in values:
            if option != "gain_range" or value[0] - ROUNDING <= gain <= value[1] + ROUNDING:
                yield replace(joint, controller=Choice("vcmm", **{option: value}))


def trained(arms: list[Spec]) -> Iterator[Spec]:
    """Each arm with other batch sizes, and with other learning rates."""
    for one in arms:
        for factor in BATCHES:
            yield replace(one, batch_size=max(2, round(one.batch_size * factor)))
        for factor in RATES:
            yield with_rate(one, float(f"{one.optimizer.options['lr'] * factor:.6g}"))
