"""Figure 3: what the probe measures at the classifier, against the same at the encoder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...arms import Arm
from ...records import Run
from ...roles import changed
from ..figure import Figure, Panel, Series, Source
from ..related import everything
from ..series import modalities
from ..style import BARS, DASHES, SYMBOLS, Look

QUANTITIES = {"Q": "drift Q", "R": "noise R"}
SMOOTHING = 0.95
Points = list[tuple[float, float]]


def encoder(source: Source) -> Figure | None:
    """A panel for drift and one for noise; a mark is a step."""
    arm = _recorded(source)
    if arm is None:
        return None
    panels: list[Panel] = []
    for quantity, words in QUANTITIES.items():
        names = modalities([arm], f"encoder_{quantity}")
        found = {name: _points(arm.runs.values(), name, quantity) for name in names}
        known = {name: points for name, points in found.items() if any(points)}
        if known:
            panels.append(_panel(quantity, words, known))
    if not panels:
        return None
    return Figure(
        name="encoder",
        title="Probe against encoder",
        caption=(
            "Drift and noise as the probe estimates them at a modality's classifier, against the "
            "same estimates from the gradient of its encoder, at the steps where both were "
            f"recorded: running means with a = {SMOOTHING:g}, as the controller takes them. r is "
            "Pearson's correlation over the steps of a run, and raw that of the single estimates; "
            "both are means over modalities and seeds."
        ),
        reading=(
            "The closer the marks of a modality are to a line, the more the probe, which costs no "
            "backward pass, says what the encoder's own gradient would say. Where the line lies "
            "does not matter: the momentum follows from ratios."
        ),
        panels=tuple(panels),
        arms=(arm,),
    )


def _recorded(source: Source) -> Arm | None:
    """Joint training with VCMM as published, with a recorder at the encoder."""
    reference = source.setting.reference or source.setting.arms[0]
    anchor = next(iter(reference.runs.values()))
    runs = {
        run.seed: run
        for run in everything(source)
        if run.spec["method"]["name"] == "joint"
        and run.spec["fusion"] == anchor.spec["fusion"]
        and not changed(run.spec)
        and any("/encoder_" in name for row in run.steps for name in row.values)
    }
    return Arm("recorded at the encoder", dict(sorted(runs.items()))) if runs else None


def _points(runs: Iterable[Run], modality: str, quantity: str) -> list[Points]:
    """By run: probe and encoder, at the steps that have both."""
    ours, theirs = f"{modality}/probe_{quantity}", f"{modality}/encoder_{quantity}"
    return [
        [
            (row.values[ours], row.values[theirs])
            for row in run.steps
            if math.isfinite(row.values.get(ours, math.nan))
            and math.isfinite(row.values.get(theirs, math.nan))
        ]
        for run in runs
    ]


def _panel(quantity: str, words: str, found: dict[str, list[Points]]) -> Panel:
    series: list[Series] = []
    smooth = {name: [smoothed(points) for points in runs] for name, runs in found.items()}
    for index, (modality, runs) in enumerate(smooth.items()):
        shown = [point for points in runs for point in points if min(point) > 0]
        look = Look(BARS[index % len(BARS)], DASHES[0], SYMBOLS[index % len(SYMBOLS)])
        series.append(Series(modality, look, [x for x, _ in shown], [y for _, y in shown]))
    raw, r = (
        _mean([pearson(points) for runs in each.values() for points in runs])
        for each in (found, smooth)
    )
    return Panel(
        f"{quantity}: r = {r}, raw {raw}",
        "points",
        f"{words} at the probe",
        f"{words} at the encoder",
        tuple(series),
        log_x=True,
        log_y=True,
    )


def smoothed(points: Points) -> Points:
    """Running means of both sides, from the first point on."""
    found = points[:1]
    for x, y in points[1:]:
        last_x, last_y = found[-1]
        rest = 1 - SMOOTHING
        found.append((SMOOTHING * last_x + rest * x, SMOOTHING * last_y + rest * y))
    return found


def pearson(points: Points) -> float | None:
    """Pearson's correlation; None where one side does not vary."""
    if len(points) < 3:
        return None
    xs, ys = zip(*points, strict=True)
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    both = math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    spread = math.sqrt(
        math.fsum((x - mean_x) ** 2 for x in xs) * math.fsum((y - mean_y) ** 2 for y in ys)
    )
    return both / spread if spread > 0 else None


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{math.fsum(known) / len(known):.3f}" if known else "unknown"
