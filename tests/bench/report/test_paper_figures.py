"""The figures of the paper: what they find in the records, and what they compute from it."""

from __future__ import annotations

import json
import re
import statistics as stats
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from vcmm.bench.arms import Setting, settings
from vcmm.bench.records import load
from vcmm.bench.report.figure import Figure, Source
from vcmm.bench.report.figures import FIGURES
from vcmm.bench.report.figures.budget import expected
from vcmm.bench.report.figures.critical import critical
from vcmm.bench.report.figures.encoder import pearson, smoothed
from vcmm.bench.report.interactive import chart
from vcmm.bench.report.related import compared
from vcmm.bench.report.style import looks
from vcmm.bench.statistics import interval, ranking

from ..folders import STUDY, study, write
from .studies import NOISE, OTHER, SEEDS, ablated, arm, betas, searched, swept


def source(root: Path) -> Source:
    (setting,) = settings(load(root))
    return Source(setting, "valid", looks([one.label for one in setting.arms], "joint"))


def figure(root: Path, name: str) -> Figure | None:
    (make,) = [one for one in FIGURES if one.__name__ == name]
    return make(source(root))


def shown(root: Path, name: str) -> Figure:
    found = figure(root, name)
    assert found is not None
    return found


def values(mean: float, turn: int = 0) -> list[float]:
    """What `studies.arm` writes, in percent."""
    return [100 * (mean + NOISE[seed] + OTHER[(seed + turn) % 3]) for seed in SEEDS]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("swept"))


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ablated(tmp_path_factory.mktemp("ablated"))


def test_the_docs_list_every_figure_in_the_order_of_the_page() -> None:
    text = (Path(__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")
    part = text.split("\n## Figures\n")[1].split("\n## ")[0]
    firsts = re.findall(r"^\| (`[^|]+) \|", part, re.M)
    named = re.findall(r"`(\w+)`", " ".join(firsts))
    assert named == [*(make.__name__ for make in FIGURES), "critical"]


# Strength and sensitivity


def test_strength_is_a_line_over_its_values_and_joint_a_level(sweep: Path) -> None:
    (panel,) = shown(sweep, "strength").panels
    level, line = panel.series
    assert (level.label, level.level, list(level.x)) == ("joint", True, [0, 2])
    assert level.y == pytest.approx([stats.fmean(values(0.70))] * 2)
    assert (line.label, list(line.x)) == ("joint + vcmm", [0, 0.5, 1, 2])
    one = interval(values(0.76, turn=1))
    assert (line.y[2], line.low[2], line.high[2]) == pytest.approx((one.mean, one.low, one.high))
    # Strength 3 was tried with another smoothing, so it is no step of this sweep.
    assert panel.marked


def test_sensitivity_has_a_panel_for_what_has_three_values(sweep: Path) -> None:
    panels = shown(sweep, "sensitivity").panels
    found = {panel.x_label: panel for panel in panels}
    assert list(found) == ["smoothing (a)", "batch size", "learning rate"]  # of floor there are two
    (line,) = found["smoothing (a)"].series
    assert list(line.x) == [0.8, 0.9, 0.95]
    joint, ours = found["learning rate"].series
    assert (joint.label, ours.label) == ("joint", "joint + vcmm")
    assert list(joint.x) == [0.001, 0.01, 0.1]
    assert joint.y == pytest.approx([stats.fmean(values(mean)) for mean in (0.70, 0.60, 0.60)])
    assert list(found["batch size"].series[0].x) == [16, 32, 64]
    assert found["learning rate"].y_range == found["batch size"].y_range
    low, high = found["smoothing (a)"].y_range or (0, 0)
    assert low < min(v for v in line.low if v is not None)
    assert high > max(v for v in line.high if v is not None)


def test_pairs_of_numbers_are_names(tmp_path: Path) -> None:
    arm(tmp_path, 0.7, "vcmm")
    for pair in ([0.05, 0.2], [0.001, 0.9]):
        arm(tmp_path, 0.71, "vcmm", control={"gain_range": pair})
    arm(tmp_path, 0.7)
    (panel,) = shown(tmp_path, "sensitivity").panels
    assert list(panel.x_names) == ["0.001–0.9", "0.01–0.3", "0.05–0.2"]
    assert list(panel.series[0].x) == [0, 1, 2]
    assert chart(panel)["layout"]["xaxis"]["ticktext"] == list(panel.x_names)


def test_steps_of_a_sweep_stand_in_their_own_figure_alone(sweep: Path) -> None:
    labels = {one.label for one in compared(source(sweep))}
    assert {"joint", "joint + vcmm", "joint + vcmm (floor=0.01)"} <= labels
    assert not [label for label in labels if label.endswith(("(strength=2)", "(smoothing=0.8)"))]
    (panel,) = shown(sweep, "time").panels
    assert {one.label for one in panel.series} == labels


def test_a_sweep_is_compared_over_common_seeds(tmp_path: Path) -> None:
    arm(tmp_path, 0.7)
    arm(tmp_path, 0.76, "vcmm")
    for strength in (0.0, 2.0):
        arm(tmp_path, 0.72, "vcmm", control={"strength": strength}, seeds=(0, 1))
    made = shown(tmp_path, "strength")
    line = made.panels[0].series[1]
    assert line.y[1] == pytest.approx(stats.fmean(values(0.76)[:2]))
    assert "2 seeds" in made.caption


def test_two_values_are_no_sweep(ablation: Path) -> None:
    assert figure(ablation, "strength") is None
    assert figure(ablation, "sensitivity") is None


# The map of fixed momenta


def test_the_map_has_every_cell_with_the_seeds_that_all_have(ablation: Path) -> None:
    made = shown(ablation, "heat")
    (panel,) = made.panels
    (one,) = panel.series
    assert list(panel.x_names) == list(panel.y_names) == ["0.8", "0.9", "0.95"]
    assert (panel.x_label, panel.y_label) == ("momentum of accelerometer", "momentum of gyroscope")
    cells = dict(zip(zip(one.x, one.y, strict=True), one.values, strict=True))
    assert len(cells) == 9
    assert cells[2, 0] == pytest.approx(100 * (0.72 + 0.015 + NOISE[0] + OTHER[0]))  # seed 0 alone
    assert list(one.dots) == [(2, 0)]
    assert "One seed" in made.caption
    assert f"joint {values(0.70)[0]:.1f} %" in made.caption
    assert f"joint + vcmm {values(0.76, turn=1)[0]:.1f} %" in made.caption


def test_of_three_modalities_the_pair_with_most_cells_is_shown(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    write(tmp_path, modalities=names)
    grid = [(0.7, 0.8, 0.9), (0.7, 0.9, 0.9), (0.8, 0.8, 0.9), (0.8, 0.9, 0.9), (0.8, 0.9, 0.99)]
    for each in grid:
        control = {"betas": dict(zip(names, each, strict=True))}
        write(tmp_path, "joint", "fixed", control=control, modalities=names, test=sum(each) / 4)
    made = shown(tmp_path, "heat")
    assert made.panels[0].x_label == "momentum of a"
    assert made.panels[0].y_label == "momentum of b"
    assert ", the others being c 0.9." in made.caption
    assert len(made.panels[0].series[0].values) == 4


def test_a_line_of_momenta_is_no_map(tmp_path: Path) -> None:
    write(tmp_path)
    for beta in (0.7, 0.8, 0.9, 0.95):
        write(tmp_path, "joint", "fixed", control=betas(beta, 0.9))
    assert figure(tmp_path, "heat") is None


def test_a_cell_that_was_not_trained_stays_empty(tmp_path: Path) -> None:
    write(tmp_path)
    for a, g in ((0.7, 0.7), (0.7, 0.9), (0.9, 0.7), (0.9, 0.8)):
        write(tmp_path, "joint", "fixed", control=betas(a, g), test=a)
    (trace,) = chart(shown(tmp_path, "heat").panels[0])["data"]
    assert trace["z"] == [[70, 90], [None, 90], [70, None]]
    assert trace["text"] == [["70.0", "90.0"], ["", "90.0"], ["70.0", ""]]
    json.dumps(trace, allow_nan=False)


# The probe against the encoder


def recorded(root: Path) -> Path:
    study(root, {("joint", "none"): STUDY["joint", "none"]})
    arm(root, 0.7, "vcmm")
    arm(root, 0.7, "vcmm", control={"encoder_every": 2}, seeds=(0,))
    return root


def test_a_mark_is_a_step_that_both_recorded(tmp_path: Path) -> None:
    drift, noise = shown(recorded(tmp_path), "encoder").panels
    assert [one.label for one in drift.series] == ["accelerometer", "gyroscope"]
    steps = np.arange(2, 61, 2)
    assert len(noise.series[0].x) == len(steps)
    assert noise.title.startswith("R: r = 1.000, raw 1.000")  # one is a multiple of the other
    wave = [1e-4 / steps, 2e-7 / steps * (1 + 0.2 * np.sin(steps))]
    expected = np.corrcoef(*wave)[0, 1]
    other = np.corrcoef(1e-4 / steps, 2e-7 / steps * (1 + 0.2 * np.sin(steps + 1)))[0, 1]
    assert drift.title.endswith(f"raw {(expected + other) / 2:.3f}")
    assert drift.log_x
    assert drift.log_y


def test_pearson_is_that_of_numpy() -> None:
    source = np.random.default_rng(0)
    points = [(float(x), float(x + y)) for x, y in source.normal(size=(50, 2))]
    assert pearson(points) == pytest.approx(np.corrcoef(np.array(points).T)[0, 1])
    assert pearson([(1.0, 2.0)] * 5) is None
    assert pearson(points[:2]) is None


def test_running_means_start_at_the_first_point() -> None:
    first, second = smoothed([(1.0, 0.0), (2.0, 1.0)])
    assert first == (1, 0)
    assert second == pytest.approx((1.05, 0.05))
    assert smoothed([]) == []


def test_without_a_recorder_there_is_no_such_figure(ablation: Path) -> None:
    assert figure(ablation, "encoder") is None


# Compute


def test_what_is_to_be_expected_of_the_best_of_some_trials() -> None:
    trials = [(0.3, 50.0), (0.9, 70.0), (0.5, 80.0), (0.7, 60.0)]
    for k, found in enumerate(expected(trials), 1):
        draws = [max(draw)[1] for draw in combinations(trials, k)]
        assert found == pytest.approx(stats.fmean(draws))


def test_compute_counts_all_trials(tmp_path: Path) -> None:
    (panel,) = shown(searched(tmp_path), "budget").panels
    lines = {one.label.split(" ")[0]: one for one in panel.series}
    assert set(lines) == {"joint", "ogm"}
    assert list(lines["joint"].x) == pytest.approx([1, 2, 3])
    best = 100 * (0.72 + NOISE[0] + OTHER[len("joint") % 3])
    assert lines["joint"].y[-1] == pytest.approx(best)


def test_another_batch_size_is_no_trial(tmp_path: Path) -> None:
    for size in (16, 32, 64):
        arm(tmp_path, 0.7, batch_size=size)
        arm(tmp_path, 0.7, "vcmm", batch_size=size)
    arm(tmp_path, 0.7, method="multi_loss")
    (setting,) = settings(load(tmp_path))
    assert setting.near
    assert figure(tmp_path, "budget") is None


# Validation and ranks


def test_validation_is_of_joint_without_and_with_vcmm(ablation: Path) -> None:
    panels = shown(ablation, "validation").panels
    assert [panel.title for panel in panels] == ["accelerometer", "gyroscope"]
    assert [[one.label for one in panel.series] for panel in panels] == [
        ["joint", "joint + vcmm"]
    ] * 2
    assert panels[0].series[0].y[-1] == pytest.approx(stats.fmean(values(0.70)) - 5)


def sets(root: Path) -> list[Setting]:
    for index, name in enumerate(("watch", "digits", "mfeat")):
        for place, method in enumerate(("joint", "ogm", "mla")):
            arm(root, 0.6 + 0.02 * place + 0.1 * index, method=method, data={"name": name})
    return settings(load(root))


def test_ranks_have_half_the_critical_difference_to_either_side(tmp_path: Path) -> None:
    found = sets(tmp_path)
    labels = [one.label for setting in found for one in setting.arms]
    made = critical(found, "valid", looks(labels, "joint"))
    assert made is not None
    (panel,) = made.panels
    assert [one.label for one in panel.series] == ["joint", "ogm", "mla"]
    assert [one.x[0] for one in panel.series] == [3, 2, 1]
    width = ranking({"a": [3, 3, 3], "b": [2, 2, 2], "c": [1, 1, 1]}).critical
    last = panel.series[0]
    assert (last.low[0], last.high[0]) == pytest.approx((3 - width / 2, 3 + width / 2))
    assert not panel.from_zero
    assert "rangemode" not in chart(panel)["layout"]["xaxis"]
    assert len({one.look for one in panel.series}) == 3
    assert critical(found[:1], "valid", {}) is None
