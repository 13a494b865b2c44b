"""The results table and the imbalance of the modalities, from records whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vcmm.bench import analysis
from vcmm.bench.analysis import Row, Table, imbalance, results, table
from vcmm.bench.arms import settings
from vcmm.bench.records import load
from vcmm.bench.statistics import holm, interval, paired
from vcmm.bench.wording import cells

from .folders import EPOCHS, STUDY, study, write


def made(root: Path, selection: str = "valid") -> Table:
    (setting,) = settings(load(root))
    return table(setting, selection)


def row(found: Table, label: str) -> Row:
    (one,) = [row for row in found.rows if row.arm.label == label]
    return one


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study(tmp_path_factory.mktemp("runs"))


def test_metrics_are_over_seeds_at_the_selected_epoch(root: Path) -> None:
    found = row(made(root), "joint").metrics
    assert list(found)[:5] == ["accuracy", "macro_f1", "map", "ece", "loss"]
    assert found["accuracy"] == interval(STUDY["joint", "none"][:3])
    assert found["gyroscope/accuracy"].mean == pytest.approx(0.6)
    assert not [name for name in found if name.endswith("/probe")]


def test_differences_are_paired_by_seed_and_adjusted_together(root: Path) -> None:
    found = made(root)
    expected = {
        label: paired(dict(enumerate(STUDY[key][:3])), dict(enumerate(STUDY["joint", "none"][:3])))
        for label, key in {
            "unimodal: accelerometer": ("unimodal:accelerometer", "none"),
            "unimodal: gyroscope": ("unimodal:gyroscope", "none"),
            "joint + vcmm": ("joint", "vcmm"),
            "ensemble": ("ensemble", "none"),
            "multi_loss": ("multi_loss", "none"),
        }.items()
    }
    assert {r.arm.label: r.difference for r in found.rows if r.arm.label != "joint"} == expected
    adjusted = holm([None if one is None else one.p for one in expected.values()])
    assert [row(found, label).p_holm for label in expected] == adjusted
    assert {r.arm.label: r.verdict for r in found.rows} == {
        "unimodal: accelerometer": "better",
        "unimodal: gyroscope": "not distinguishable",
        "joint": None,
        "joint + vcmm": "better",
        "ensemble": "worse",
        "multi_loss": "not distinguishable",
    }


def test_only_common_seeds_are_compared(tmp_path: Path) -> None:
    for seed, accuracy in ((0, 0.70), (1, 0.72), (2, 0.71)):
        write(tmp_path, seed=seed, test=accuracy)
    for seed, accuracy in ((1, 0.75), (2, 0.73), (9, 0.2)):
        write(tmp_path, "joint", "vcmm", seed=seed, test=accuracy)
    found = row(made(tmp_path), "joint + vcmm")
    assert found.difference is not None
    assert found.difference.n == 2
    assert found.difference.mean == pytest.approx(0.025)
    assert found.metrics["accuracy"].n == 3


def test_one_seed_is_not_tested(tmp_path: Path) -> None:
    found = made(study(tmp_path, seeds=1))
    assert {r.verdict for r in found.rows} == {None, "not tested"}
    assert all(r.p_holm is None for r in found.rows)


def test_without_a_reference_nothing_is_compared(tmp_path: Path) -> None:
    write(tmp_path, "ensemble")
    (only,) = made(tmp_path).rows
    assert (only.difference, only.verdict, only.expense.seconds_ratio) == (None, None, None)


def test_the_rule_decides_which_epoch_the_numbers_are_from(tmp_path: Path) -> None:
    write(tmp_path, test=[0.4, 0.9, 0.6], valid=[0.8, 0.5, 0.7], epochs=3)
    means = {
        rule: made(tmp_path, rule).rows[0].metrics["accuracy"].mean
        for rule in ("valid", "last", "oracle")
    }
    assert means == {"valid": 0.4, "last": 0.6, "oracle": 0.9}


def test_costs_and_their_ratios(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, seed=seed, seconds=2.0, peak=100)
        write(tmp_path, "joint", "vcmm", seed=seed, seconds=2.5, peak=110)
    found = row(made(tmp_path), "joint + vcmm").expense
    assert found.seconds.mean == 2.5 * EPOCHS
    assert found.seconds_ratio == 1.25
    assert found.rate.mean == pytest.approx(1000 * 2.5 / 600)
    assert found.rate_ratio == pytest.approx(1.25)
    assert found.peak_bytes is not None
    assert found.peak_bytes.mean == 110
    assert found.peak_ratio == pytest.approx(1.1)
    assert (found.forwards, found.backwards) == (1.0, 1.0)


def test_memory_that_was_not_measured_is_absent(tmp_path: Path) -> None:
    write(tmp_path, peak=None)
    write(tmp_path, "ensemble", peak=10)
    found = made(tmp_path)
    assert row(found, "joint").expense.peak_bytes is None
    assert row(found, "ensemble").expense.peak_ratio is None


def test_a_modality_behind_its_own_potential_is_under_trained(root: Path) -> None:
    (setting,) = settings(load(root))
    ahead, behind = imbalance(setting)
    assert (ahead.modality, behind.modality) == ("accelerometer", "gyroscope")
    assert ahead.unimodal == interval(STUDY["unimodal:accelerometer", "none"][:3])
    assert ahead.probe == interval(STUDY["joint", "none"][:3])
    assert ahead.head is not None
    assert ahead.head.mean == pytest.approx(0.65)
    assert ahead.gap is not None
    assert ahead.gap.low is not None
    assert ahead.gap.low > 0
    assert ahead.verdict == "under-trained"
    assert behind.verdict == "not distinguishable"


def test_an_encoder_that_gained_by_company_is_said_so(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.70, 0.71, 0.69)):
        write(tmp_path, seed=seed, test=accuracy)
        write(
            tmp_path, "unimodal:accelerometer", seed=seed, test=accuracy - 0.1 - 0.01 * (seed % 2)
        )
    (setting,) = settings(load(tmp_path))
    assert [(one.modality, one.verdict) for one in imbalance(setting)] == [
        ("accelerometer", "better trained than alone"),
        ("gyroscope", "not tested"),
    ]


def test_results_are_json_and_name_the_oracle(root: Path) -> None:
    runs = load(root)
    for selection in ("valid", "oracle"):
        rows: list[dict[str, Any]] = json.loads(json.dumps(results(runs, selection)))
        assert len(rows) == len(STUDY)
        assert all(row["selection"] == selection for row in rows)
        warned = ["test split" in (row["warning"] or "") for row in rows]
        assert warned == [selection == "oracle"] * len(rows)
    assert [row["arm"] for row in rows if row["reference"]] == ["joint"]
    assert {run for row in rows for run in row["runs"]} == {run.hash for run in runs}


def test_rows_in_words(root: Path) -> None:
    by_arm = {row["arm"]: cells(row) for row in results(load(root))}
    assert by_arm["joint"]["accuracy"] == "70.0 ± 1.0 [67.5, 72.5]"
    assert by_arm["joint"]["verdict"] == "reference"
    helped = by_arm["joint + vcmm"]
    assert helped["difference to joint"] == "+4.0 [+3.5, +4.6]"
    assert helped["p (Holm)"] == "0.004"
    assert (helped["time"], helped["memory"]) == ("12 s (1.00×)", "100 MiB (1.00×)")
    assert len({tuple(row) for row in by_arm.values()}) == 1  # the same columns in every row


def test_names_of_metrics() -> None:
    assert analysis.metric_name("macro_f1") == "macro F1"
    assert analysis.metric_name("audio/accuracy") == "accuracy of audio's head"
    assert analysis.is_percent("audio/accuracy")
    assert not analysis.is_percent("loss")
