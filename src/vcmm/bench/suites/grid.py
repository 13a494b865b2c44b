"""Arms times seeds. An arm is named as "method" or "method+controller": `joint+vcmm`.

What all arms share is a `Base`: arguments of `Spec`. It is not a `Spec` yet, because an axis that
is left out may mean something else to each method, such as its own fusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..spec import Choice, Spec
from .windows import windows

Base = Mapping[str, Any]


def arm(base: Base, name: str) -> Spec:
    """The base with the method and the controller that the name says.

    Options of the method that count epochs are cut to those of the base (`windows`).
    """
    method, plus, controller = name.partition("+")
    if not method or (plus and not controller):
        raise ValueError(f"{name!r} names no arm; write method or method+controller: joint+vcmm")
    epochs = base.get("epochs")
    options = {} if epochs is None else windows(method, epochs)
    return _spec(base, Choice(method, **options), Choice(controller or "none"))


def references(base: Base) -> list[Spec]:
    """Every modality alone: what a multimodal network ought to beat."""
    names = modalities_of(_spec(base, Choice("joint"), Choice("none")))
    alone = [Choice("unimodal", modality=name) for name in names]
    return [_spec(base, choice, Choice("none")) for choice in alone]


def modalities_of(spec: Spec) -> tuple[str, ...]:
    """Those that a spec trains on; its data is loaded if it does not name them."""
    from ..data import load

    return spec.modalities or load(spec.data.name, **spec.data.options).modalities


def seeded(arms: Iterable[Spec], seeds: int) -> list[Spec]:
    """Every arm with every seed; all arms of a seed before the next, so that parts compare too."""
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it is how many there are, 1 or more")
    each = list(arms)
    return [replace(one, seed=seed) for seed in range(seeds) for one in each]


def _spec(base: Base, method: Choice, controller: Choice) -> Spec:
    fields: dict[str, Any] = {**base, "method": method, "controller": controller}
    return Spec(**fields)
