"""Numbers in words, the same in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .analysis import METRICS, metric_name


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    """A row of `results` in words, by column: what a terminal prints."""
    metric = row["metric"]
    shown = {"arm": row["arm"], "seeds": str(len(row["seeds"]))}
    for name in (metric, *(m for m in METRICS[:3] if m in row["metrics"] and m != metric)):
        shown[metric_name(name)] = spread(row["metrics"][name])
    difference = row["difference"]
    shown["difference to joint"] = "" if difference is None else gain(difference)
    shown["p (Holm)"] = "" if row["p_holm"] is None else p_value(row["p_holm"])
    shown["verdict"] = "reference" if row["reference"] else row["verdict"] or ""
    shown["time"] = times(row["seconds"]["mean"], "s", row["seconds_ratio"])
    peak = row["peak_bytes"]
    mean = None if peak is None else peak["mean"] / 2**20
    shown["memory"] = "" if mean is None else times(mean, "MiB", row["peak_bytes_ratio"])
    return shown


def spread(value: Mapping[str, Any], scale: float = 100.0) -> str:
    """ "71.3 ± 1.2 [68.4, 74.2]": mean, sample SD, interval; in percent."""
    text = f"{scale * value['mean']:.1f}"
    if value["sd"] is None:
        return text
    return f"{text} ± {scale * value['sd']:.1f} {_bounds(value, scale, '.1f')}"


def gain(value: Mapping[str, Any]) -> str:
    """ "+3.1 [+1.2, +5.0]": a difference and its interval, in points."""
    text = f"{100 * value['mean']:+.1f}"
    return text if value["low"] is None else f"{text} {_bounds(value, 100, '+.1f')}"


def p_value(p: float) -> str:
    """ "0.031"; never 0."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def times(value: float, unit: str, ratio: float | None) -> str:
    """ "12.3 s (1.05×)"."""
    text = f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return text if ratio is None else f"{text} ({ratio:.2f}×)"


def _bounds(value: Mapping[str, Any], scale: float, form: str) -> str:
    return f"[{scale * value['low']:{form}}, {scale * value['high']:{form}}]"
