"""Which methods help on this data? Unimodal references, joint training, and what is named.

All arms have the same encoders, optimizer, schedule, batch size and epochs. What an epoch costs
differs between methods; it is recorded, and stands beside the result. For a method that brings a
fusion of its own, joint training by that fusion is trained too: it is what the method must beat.
Options that count epochs are cut to the length of the training.
"""

from __future__ import annotations

from dataclasses import replace

from ..spec import Spec
from .grid import Base, arm, references, seeded

METHODS = ("ensemble", "multi_loss", "joint+vcmm", "multi_loss+vcmm")


def compare(
    base: Base,
    *,
    methods: tuple[str, ...] = METHODS,
    seeds: int = 3,
    epochs: int = 15,
    batch_size: int = 64,
) -> list[Spec]:
    """Every modality alone, joint training, and the methods named, under an equal budget."""
    base = {**base, "epochs": epochs, "batch_size": batch_size}
    named = [arm(base, name) for name in ("joint", *methods)]
    joint = [replace(named[0], fusion=one.fusion) for one in named]
    return seeded(dict.fromkeys([*references(base), *joint, *named]), seeds)
