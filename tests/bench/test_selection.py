"""Which epoch counts, and that looking at test is never silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcmm.bench.records import Run, load
from vcmm.bench.selection import RULES, SIGN, counted, final, selected, shown, warning

from .folders import reseal, write

VALID = [0.5, 0.8, 0.8, 0.7]  # two epochs are equal
TEST = [0.4, 0.5, 0.9, 0.6]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write(tmp_path, test=TEST, valid=VALID, epochs=4)
    return load(tmp_path)[0]


@pytest.mark.parametrize(("rule", "epoch"), [("valid", 1), ("last", 3), ("oracle", 2)])
def test_a_rule_selects_an_epoch(run: Run, rule: str, epoch: int) -> None:
    assert selected(run, rule) == epoch
    assert counted(run, rule)["accuracy"] == TEST[epoch]


def test_the_first_of_equal_epochs_counts_under_oracle_too(tmp_path: Path) -> None:
    write(tmp_path, test=[0.4, 0.9, 0.9], valid=[0.1, 0.1, 0.2], epochs=3)
    assert selected(load(tmp_path)[0], "oracle") == 1


def test_valid_never_reads_test(tmp_path: Path) -> None:
    """Whatever test says, the epoch is the same."""
    for seed, test in enumerate((TEST, TEST[::-1], [0.0] * 4)):
        write(tmp_path, seed=seed, test=test, valid=VALID, epochs=4)
    assert {selected(run, "valid") for run in load(tmp_path)} == {1}


def test_probes_are_taken_from_the_last_epoch(run: Run) -> None:
    assert final(run)["accelerometer/probe"] == TEST[-1]
    assert "accelerometer/probe" not in counted(run, "valid")


def test_multi_label_runs_are_judged_by_map(tmp_path: Path) -> None:
    write(tmp_path, test=TEST, valid=VALID, epochs=4, metric="map")
    (run,) = load(tmp_path)
    assert run.metric == "map"
    assert selected(run, "valid") == 1


def test_an_epoch_whose_metric_is_undefined_is_not_the_best(tmp_path: Path) -> None:
    folder = write(tmp_path, test=TEST, valid=VALID, epochs=4, metric="map")
    path = folder / "evals.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"map": 0.8, ', ""), encoding="utf-8")
    reseal(folder)
    assert selected(load(tmp_path)[0], "valid") == 3


def test_only_oracle_carries_a_warning() -> None:
    assert {rule for rule in RULES if warning(rule)} == {"oracle"}
    assert shown("oracle") == f"oracle {SIGN}"
    assert shown("valid") == "valid"
    assert SIGN in (warning("oracle") or "")


def test_another_rule_is_an_error(run: Run) -> None:
    with pytest.raises(ValueError, match="no selection 'best'; choose from valid, last, oracle"):
        selected(run, "best")


def test_a_run_without_valid_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "evals.jsonl"
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if '"test"' in line]
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    reseal(folder)
    (run,) = load(tmp_path)
    assert selected(run, "last") == 5
    with pytest.raises(ValueError, match=r"evals.jsonl has no split 'valid'; delete"):
        selected(run, "valid")
