"""The ratio of drift to noise, from which the momentum follows."""

from __future__ import annotations

from ...arms import Arm
from ..figure import Figure, Panel, Source
from ..related import compared
from ..series import logged, modalities, over_seeds


def ratio(source: Source) -> Figure | None:
    """A panel per modality, with every arm that measured it."""
    panels: list[Panel] = []
    arms = [arm for arm in compared(source) if arm.controller != "none"]
    for modality in modalities(arms, "Q"):
        found = [
            over_seeds(arm.label, source.look(arm), _ratios(arm, modality), log=True)
            for arm in arms
        ]
        series = tuple(one for one in found if one is not None)
        if series:
            panels.append(Panel(modality, "lines", "step", "drift / noise (Q/R)", series, True))
    if not panels:
        return None
    return Figure(
        name="ratio",
        title="Drift over noise",
        caption=(
            "How fast each modality's classifier gradient changes (Q) over how noisy it is (R), on "
            "a logarithmic scale. Lines are geometric means over seeds, bands one standard "
            "deviation of the logarithm to either side."
        ),
        reading=(
            "A low ratio means that noise dominates, which asks for a long memory and a high beta. "
            "Only the differences between modalities move the momentum: a ratio that falls in all "
            "of them alike changes nothing."
        ),
        panels=tuple(panels),
        arms=tuple(arms),
    )


def _ratios(arm: Arm, modality: str) -> list[dict[float, float]]:
    drifts, noises = logged(arm, f"{modality}/Q"), logged(arm, f"{modality}/R")
    return [
        {step: drift[step] / noise[step] for step in drift.keys() & noise.keys() if noise[step] > 0}
        for drift, noise in zip(drifts, noises, strict=True)
    ]
