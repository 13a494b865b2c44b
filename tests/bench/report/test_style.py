"""The colours keep apart, on both backgrounds and to colour-blind eyes: measured, not claimed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from vcmm.bench.report.style import COLOURS, DASHES, THEMES, looks, variables

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it is seen.
VISIONS = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# sRGB with its white of D65.
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    value = TO_XYZ @ rgb.clip(0, 1) / WHITE
    f = np.where(value > 0.008856, np.cbrt(value), 7.787 * value + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    """As WCAG defines it."""
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_the_measures_are_right() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21, abs=0.01)
    assert lab(linear("#ff0000")) == pytest.approx([53.24, 80.09, 67.20], abs=0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_no_two_arms_look_alike(theme: str, vision: str) -> None:
    seen = [lab(VISIONS[vision] @ linear(c)) for c in (*COLOURS[theme], THEMES[theme]["ink"])]
    # A difference of 2.3 is just noticeable; lines are thin, so several times that.
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 15


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_and_words_stand_out(theme: str) -> None:
    names = variables(theme)
    for colour in COLOURS[theme]:
        assert contrast(colour, names["card"]) >= 3  # WCAG, graphics
    for ground in ("page", "card"):
        for word in ("ink", "muted", "accent", "good", "bad"):
            assert contrast(names[word], names[ground]) >= 4.5  # WCAG, text
    assert contrast(names["warn"], names["warn-card"]) >= 4.5


def test_both_themes_name_the_same_colours() -> None:
    assert variables("light").keys() == variables("dark").keys()


def test_thirty_arms_look_different_and_the_reference_is_ink() -> None:
    labels = [f"arm {index}" for index in range(30)]
    found = looks(labels, "arm 3")
    assert found["arm 3"].colour == "ink"
    others = [found[label] for label in labels if label != "arm 3"]
    assert len({(look.colour, look.dash) for look in others}) == 29
    assert len({(look.colour, look.symbol) for look in others}) == 29
    assert len({dash.svg for dash in DASHES}) == len(DASHES)


def test_vcmm_has_the_same_colour_on_every_page() -> None:
    variant = "joint + vcmm (exact=false)"
    pages = (
        ["joint", "joint + vcmm"],
        ["unimodal: a", "joint", variant, "joint + vcmm", "mla", "ogm"],
        ["ogm", "joint"],
    )
    found = [looks(labels, "joint") for labels in pages]
    ours = {one["joint + vcmm"].colour for one in found[:2]}
    assert len(ours) == 1
    for one in found:
        assert not ours & {look.colour for label, look in one.items() if label != "joint + vcmm"}
    # Variants take what methods leave, however they are sorted.
    assert found[1]["mla"] == looks(["unimodal: a", "joint", "mla"], "joint")["mla"]
    assert list(looks(["a", "b"], None)) == ["a", "b"]
