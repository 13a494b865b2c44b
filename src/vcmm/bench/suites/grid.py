"""Arms times seeds. An arm is named as "method" or "method+controller": `joint+vcmm`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..spec import Choice, Spec


def arm(base: Spec, name: str) -> Spec:
    """The base with the method and the controller that the name says."""
    method, plus, controller = name.partition("+")
    if not method or (plus and not controller):
        raise ValueError(f"{name!r} names no arm; write method or method+controller: joint+vcmm")
    return replace(base, method=Choice(method), controller=Choice(controller or "none"))


def references(base: Spec) -> list[Spec]:
    """Every modality alone: what a multimodal network ought to beat."""
    from ..data import load

    names = base.modalities or load(base.data.name, **base.data.options).modalities
    return [
        replace(base, method=Choice("unimodal", modality=name), controller=Choice("none"))
        for name in names
    ]


def seeded(arms: Iterable[Spec], seeds: int) -> list[Spec]:
    """Every arm with every seed; all arms of a seed before the next, so that parts compare too."""
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it is how many there are, 1 or more")
    each = list(arms)
    return [replace(one, seed=seed) for seed in range(seeds) for one in each]
