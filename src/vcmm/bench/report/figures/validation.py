"""Figure 5: what each modality's own head learns, without and with VCMM."""

from __future__ import annotations

from ..figure import Figure, Panel, Source
from ..related import calibrated, vanilla
from ..series import judged, modalities, over_seeds


def validation(source: Source) -> Figure | None:
    """A panel per modality, and a line for each of the two."""
    joint, ours = vanilla(source), calibrated(source)
    if joint is None or ours is None:
        return None
    panels: list[Panel] = []
    for modality in modalities([joint, ours], "accuracy"):
        key = f"{modality}/accuracy"
        lines = [
            over_seeds(arm.label, source.look(arm), judged(arm, "valid", key, 100))
            for arm in (joint, ours)
        ]
        if len(series := tuple(line for line in lines if line is not None)) == len(lines):
            label = "valid accuracy (%)"
            panels.append(Panel(modality, "lines", "epoch", label, series))
    if not panels:
        return None
    return Figure(
        name="validation",
        title="Each modality, without and with VCMM",
        caption=(
            "Accuracy on the validation split of each modality's own head in joint training, "
            "after every epoch, without and with VCMM. Lines are means over seeds, bands one "
            "standard deviation to either side."
        ),
        reading=(
            "If VCMM frees a modality that joint training holds back, its line is the higher one "
            "there, and no lower elsewhere."
        ),
        panels=tuple(panels),
        arms=(joint, ours),
    )
