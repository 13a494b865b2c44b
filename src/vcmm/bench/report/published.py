"""What the paper reports in its main table, to stand in small print beside what was measured here.

The unimodal rows of the paper are numbered. Which modality a number means is taken from the papers
before it, whose tables print the same numbers under the modalities' names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Data set: its two metrics, and by method the paper's two numbers.
_METRICS = {
    "cremad": ("accuracy", "map"),
    "kinetics_sounds": ("accuracy", "map"),
    "twitter15": ("accuracy", "macro_f1"),
    "nvgesture": ("accuracy", "macro_f1"),
}
_Row = tuple[tuple[float, float] | None, ...]
_ROWS: dict[str, _Row] = {
    "joint by concat": ((0.6361, 0.6841), (0.6455, 0.7130), (0.7011, 0.6386), (0.8237, 0.8270)),
    "gblend": ((0.6465, 0.7392), (0.6722, 0.7274), (0.7309, 0.6799), (0.8299, 0.8305)),
    "ogm": ((0.6612, 0.7372), (0.6582, 0.7159), (0.7058, 0.6435), None),
    "pmr": ((0.6659, 0.7058), (0.6675, 0.7274), (0.7357, 0.6636), None),
    "mla": ((0.7943, 0.8572), (0.7004, 0.7945), (0.7352, 0.6713), (0.8340, 0.8372)),
    "reconboost": ((0.7557, 0.8140), (0.6855, 0.7662), (0.7442, 0.6832), (0.8386, 0.8434)),
    "lfm": ((0.8362, 0.9006), (0.7253, 0.7897), (0.7501, 0.7057), (0.8436, 0.8468)),
    "inforeg": ((0.7498, 0.8603), (0.7189, 0.7986), (0.7403, 0.6847), None),
    "aug": ((0.8515, 0.9103), (0.7263, 0.7901), (0.7512, 0.6962), (0.8501, 0.8533)),
    "decalign": ((0.8426, 0.9027), (0.7298, 0.7926), (0.7396, 0.6786), (0.8397, 0.8429)),
    "joint + vcmm": ((0.8562, 0.9148), (0.7534, 0.8218), (0.7570, 0.7098), (0.8532, 0.8558)),
}
_ALONE: dict[str, dict[str, tuple[float, float]]] = {
    "cremad": {"audio": (0.6317, 0.5879), "visual": (0.4583, 0.6861)},
    "kinetics_sounds": {"audio": (0.5412, 0.5669), "visual": (0.5562, 0.5837)},
    "twitter15": {"image": (0.5863, 0.4333), "text": (0.7367, 0.6849)},
    "nvgesture": {"rgb": (0.7822, 0.7833), "flow": (0.7863, 0.7865), "depth": (0.8154, 0.8183)},
}
# Accuracy in the ablation, by the row of `sheets/ablation.py`.
_ABLATION: dict[str, tuple[float, float]] = {
    "shared": (0.6455, 0.7011),
    "fixed asymmetric": (0.6773, 0.7396),
    "frozen": (0.6813, 0.7412),
    "without noise subtraction": (0.6935, 0.7499),
    "without centring": (0.7070, 0.7452),
    "without exact correction": (0.7208, 0.7513),
    "full": (0.7534, 0.7570),
}
_ABLATED = ("kinetics_sounds", "twitter15")
# GiB of training on CREMA-D.
_MEMORY = {
    "joint by concat": 8.89,
    "lfm": 10.88,
    "mla": 11.13,
    "pmr": 12.38,
    "reconboost": 11.37,
    "joint + vcmm": 10.10,
}


def reports(spec: Mapping[str, Any]) -> bool:
    """Whether the data set is one of the paper's."""
    return spec["data"]["name"] in _METRICS


def reported(spec: Mapping[str, Any], metric: str) -> float | None:
    """What the paper reports for this arm on this data, or None if it reports nothing."""
    data = spec["data"]["name"]
    if metric not in _METRICS.get(data, ()):
        return None
    method, controller = spec["method"], spec["controller"]["name"]
    if method["name"] == "unimodal" and controller == "none":
        found = _ALONE[data].get(method["modality"])
    else:
        found = _ROWS.get(_name(spec), (None,) * 4)[list(_METRICS).index(data)]
    return None if found is None else found[_METRICS[data].index(metric)]


def reports_ablation(spec: Mapping[str, Any]) -> bool:
    """Whether the paper's ablation is of this data set."""
    return spec["data"]["name"] in _ABLATED


def ablated(spec: Mapping[str, Any], row: str, metric: str) -> float | None:
    """The paper's accuracy in a row of the ablation."""
    if not reports_ablation(spec) or metric != "accuracy" or row not in _ABLATION:
        return None
    return _ABLATION[row][_ABLATED.index(spec["data"]["name"])]


def reports_memory(spec: Mapping[str, Any]) -> bool:
    """Whether the paper measured memory on this data set."""
    return spec["data"]["name"] == "cremad"


def memory(spec: Mapping[str, Any]) -> float | None:
    """The paper's training memory over that of its joint training."""
    found = _MEMORY.get(_name(spec)) if reports_memory(spec) else None
    return None if found is None else found / _MEMORY["joint by concat"]


def _name(spec: Mapping[str, Any]) -> str:
    """The row of the paper: its joint training joins by concatenation."""
    method, controller = spec["method"]["name"], spec["controller"]["name"]
    if method == "joint" and controller == "none":
        return f"joint by {spec['fusion']['name']}"
    return method if controller == "none" else f"{method} + {controller}"
