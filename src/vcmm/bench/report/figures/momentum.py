"""The momentum that a controller gave each modality over training."""

from __future__ import annotations

from ..figure import Figure, Panel, Source
from ..related import compared
from ..series import logged, modalities, over_seeds


def momentum(source: Source) -> Figure | None:
    """A panel per modality, with every arm that has a controller."""
    panels: list[Panel] = []
    arms = [arm for arm in compared(source) if arm.controller != "none"]
    for modality in modalities(arms, "beta"):
        found = [
            over_seeds(arm.label, source.look(arm), logged(arm, f"{modality}/beta")) for arm in arms
        ]
        series = tuple(one for one in found if one is not None)
        if series:
            panels.append(Panel(modality, "lines", "step", "momentum (beta)", series))
    if not panels:
        return None
    return Figure(
        name="momentum",
        title="Momentum over training",
        caption=(
            "The first-moment coefficient beta of each modality's parameters, at the steps that "
            "were logged. Lines are means over seeds, bands one standard deviation to either side."
        ),
        reading=(
            "A higher beta averages gradients over more steps: 0.99 over about a hundred, 0.7 over "
            "about three. Modalities that part ways are those whose gradients differ in how noisy "
            "or how fast-changing they are."
        ),
        panels=tuple(panels),
        arms=tuple(arms),
    )
