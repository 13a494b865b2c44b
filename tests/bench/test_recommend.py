"""The recommendation: what it must say, and what it must not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from vcmm.bench.arms import settings
from vcmm.bench.recommend import recommend
from vcmm.bench.records import load

from .folders import STUDY, reseal, study, write

JOINT = ("joint", "none")
VCMM = ("joint", "vcmm")
LOSS = ("multi_loss", "none")
ALONE = ("unimodal:accelerometer", "none")


def said(
    root: Path,
    arms: Mapping[tuple[str, str], Sequence[float]] = STUDY,
    *,
    seeds: int = 4,
    selection: str = "valid",
) -> str:
    (setting,) = settings(load(study(root, arms, seeds=seeds)))
    return " ".join(recommend(setting, selection))


def test_a_method_that_helps_is_named_with_how_much_how_sure_and_the_cost(tmp_path: Path) -> None:
    text = said(tmp_path)
    assert "The modalities are imbalanced: accelerometer is under-trained" in text
    assert "The encoder of accelerometer reaches 76.4 % alone and 70.5 % in joint" in text
    assert "Joint training is below the best single modality: in accuracy, joint train" in text
    assert "joint + vcmm is better than joint training by 4.0 points (95 % interval " in text
    assert "Holm p" in text
    assert "at 1.00 times the time and 1.00 times the memory." in text
    assert "It is still below accelerometer alone, by 1.9 points" in text
    assert "Worse than joint training: ensemble (by 5.1 points)." in text
    assert "rests on 4 seeds" in text
    assert "5 seeds or more would tell more" in text


def test_differences_within_the_noise_are_not_sold(tmp_path: Path) -> None:
    text = said(tmp_path, {JOINT: (0.70, 0.72, 0.69, 0.71), VCMM: (0.73, 0.69, 0.72, 0.71)})
    assert "Nothing that was compared is shown to be better than joint training" in text
    assert "joint + vcmm: 0.8 points" in text
    assert "not distinguishable" in text
    assert "is better than joint" not in text


def test_one_seed_proves_nothing_however_large_the_difference(tmp_path: Path) -> None:
    text = said(tmp_path, {JOINT: (0.3,), VCMM: (0.9,), ALONE: (0.8,)}, seeds=1)
    assert "There is one seed" in text
    assert "Run 5 seeds or more" in text
    assert "Whether the modalities are imbalanced cannot be told" in text
    assert "not tested, for want of common seeds" in text
    assert "better than joint training by" not in text


def test_equal_differences_are_not_called_certain(tmp_path: Path) -> None:
    text = said(tmp_path, {JOINT: (0.5, 0.6, 0.7), VCMM: (0.6, 0.7, 0.8)}, seeds=3)
    assert "10.0 points, not tested, because it is the same with every seed" in text


def test_two_that_help_are_compared_with_one_another(tmp_path: Path) -> None:
    arms = {
        JOINT: (0.60, 0.61, 0.59, 0.60),
        VCMM: (0.700, 0.712, 0.689, 0.703),
        LOSS: (0.701, 0.708, 0.690, 0.700),
    }
    text = said(tmp_path / "close", arms)
    assert "multi_loss is better than joint training too" in text
    assert "joint + vcmm and multi_loss are not distinguishable from one another" in text
    text = said(tmp_path / "apart", {**arms, LOSS: (0.650, 0.661, 0.641, 0.652)})
    assert "multi_loss is better than joint training too, and joint + vcmm is ahead of it" in text


def test_a_fusion_is_not_sold_as_a_method(tmp_path: Path) -> None:
    """OGM beats joint training by mean, as joint training by OGM's own fusion does."""
    concat = {"name": "concat"}
    for seed, noise in enumerate((0.0, 0.01, -0.01, 0.005)):
        write(tmp_path, seed=seed, test=0.6 + noise)
        write(tmp_path, seed=seed, test=0.7 + 1.1 * noise, fusion=concat)
        write(tmp_path, "ogm", seed=seed, test=0.7 + 0.9 * noise, fusion=concat)
        write(tmp_path, "pmr", seed=seed, test=0.8 + 1.2 * noise, fusion=concat)
        write(tmp_path, "agm", seed=seed, test=0.65 + 1.2 * noise, fusion=concat)
    (setting,) = settings(load(tmp_path))
    text = " ".join(recommend(setting))
    assert "joint by concat is better than joint training too" in text
    assert "ogm" not in text
    assert "pmr by concat is better than joint by concat by 10.0 points" in text
    assert "Worse than joint training: agm by concat (5.0 points below joint by concat)" in text


def test_a_gap_without_spread_is_told_as_such(tmp_path: Path) -> None:
    arms = {
        JOINT: (0.80, 0.81, 0.79, 0.80),
        ALONE: (0.85, 0.86, 0.84, 0.85),
        ("unimodal:gyroscope", "none"): (0.75, 0.77, 0.755, 0.76),
    }
    text = said(tmp_path, arms)
    assert "for accelerometer the difference is the same with every seed" in text


def test_joint_above_the_best_single_modality(tmp_path: Path) -> None:
    text = said(tmp_path, {JOINT: (0.80, 0.81, 0.79, 0.80), ALONE: (0.70, 0.712, 0.688, 0.701)})
    assert "Joint training is above the best single modality" in text
    assert "a difference of 10.0 points" in text
    assert "No method was compared with joint training." in text


def test_no_under_trained_modality_is_said_so(tmp_path: Path) -> None:
    arms = {
        JOINT: (0.80, 0.81, 0.79, 0.80),
        ALONE: (0.81, 0.80, 0.80, 0.79),
        ("unimodal:gyroscope", "none"): (0.75, 0.77, 0.755, 0.76),
    }
    assert "No modality was found to be under-trained" in said(tmp_path, arms)


@pytest.mark.parametrize("selection", ["valid", "last", "oracle"])
def test_oracle_begins_with_its_warning(tmp_path: Path, selection: str) -> None:
    warned = said(tmp_path, selection=selection).startswith("\N{WARNING SIGN} Epochs were chosen")
    assert warned == (selection == "oracle")


def test_without_joint_training_it_asks_for_it(tmp_path: Path) -> None:
    assert "`vcmm run --method joint`" in said(tmp_path, {LOSS: (0.7, 0.71, 0.72, 0.7)})


def test_an_arm_that_diverged_is_no_obstacle(tmp_path: Path) -> None:
    study(tmp_path, {JOINT: (0.70, 0.71)}, seeds=2, metric="map")
    for seed in range(2):
        folder = write(tmp_path, "joint", "vcmm", seed=seed, metric="map", test=0.6)
        path = folder / "evals.jsonl"
        rows = re.sub(r'"map": [0-9.]+, ', "", path.read_text(encoding="utf-8"))
        path.write_text(rows, encoding="utf-8")
        reseal(folder)
    (setting,) = settings(load(tmp_path))
    assert "No method was compared with joint training." in recommend(setting)
