"""Figure 4b: how strongly the momenta of the modalities are driven apart, and what it gains."""

from __future__ import annotations

from ...analysis import metric_name
from ..figure import Figure, Panel, Series, Source
from ..related import calibrated, curve, said_of_seeds, scores, swept, vanilla


def strength(source: Source) -> Figure | None:
    """One line over the strength, and joint training as a level."""
    arm, joint = calibrated(source), vanilla(source)
    found = swept(source, arm, "strength") if arm else {}
    if arm is None or not found:
        return None
    values = {value: scores(runs, source.selection) for value, runs in found.items()}
    series = [curve(arm.label, source.look(arm), {x: ys for x, ys in values.items() if ys})]
    seeds = next(iter(found.values()))
    if joint is not None:
        shared = {seed: run for seed, run in joint.runs.items() if seed in seeds}
        if level := scores(shared, source.selection):
            middle = sum(level) / len(level)
            ends = [min(found), max(found)]
            series.insert(
                0, Series(joint.label, source.look(joint), ends, [middle, middle], level=True)
            )
    metric = metric_name(source.setting.runs[0].metric)
    label = f"test {metric} (%)"
    return Figure(
        name="strength",
        title="Strength of the calibration",
        caption=(
            f"Test {metric} of joint training with VCMM by its strength, lambda, with the 95 % "
            f"t-interval, and of joint training without it as a level. {said_of_seeds(len(seeds))}"
        ),
        reading=(
            "Zero is the optimizer's own momentum for all, so the line starts at the level of "
            "joint training. A wide top means that the strength needs no search."
        ),
        panels=(Panel("", "lines", "strength (lambda)", label, tuple(series), marked=True),),
        arms=(arm,) if joint is None else (joint, arm),
        by_rule=True,
    )
