"""How accuracy grows over training: of the fused prediction, and of every modality's own head."""

from __future__ import annotations

from ...analysis import metric_name
from ..figure import Figure, Panel, Source
from ..related import compared
from ..series import judged, modalities, over_seeds


def learning(source: Source) -> Figure | None:
    """A panel for the fused prediction and one for each modality, on the validation split."""
    arms = compared(source)
    metric = source.setting.runs[0].metric
    panels: list[Panel] = []
    heads = [(f"{name}, own head", f"{name}/accuracy") for name in modalities(arms, "accuracy")]
    for title, key in [("fused", metric), *heads]:
        found = [
            over_seeds(arm.label, source.look(arm), judged(arm, "valid", key, 100)) for arm in arms
        ]
        series = tuple(one for one in found if one is not None)
        label = f"valid {metric_name(metric if key == metric else 'accuracy')} (%)"
        if series:
            panels.append(Panel(title, "lines", "epoch", label, series))
    if not panels:
        return None
    return Figure(
        name="learning",
        title="Learning curves",
        caption=(
            "Validation split, after every epoch: the fused prediction, and each modality's own "
            "head. Lines are means over seeds, bands one standard deviation to either side."
        ),
        reading=(
            "A modality that is held back in joint training stays below its own curve when trained "
            "alone, even where the fused curve rises."
        ),
        panels=tuple(panels),
        arms=arms,
    )
