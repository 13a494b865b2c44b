"""`vcmm sweep` of suites that look at their own runs: what is found decides what comes next."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vcmm.bench.cli.protocol import expanded
from vcmm.bench.records import Run, load
from vcmm.bench.report import page
from vcmm.bench.spec import Choice
from vcmm.bench.suites import PAPER, SUITES
from vcmm.bench.suites.search import score

from .test_cli import TINY, Vcmm


@pytest.fixture
def vcmm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Vcmm:
    monkeypatch.setenv("COLUMNS", "100")
    # The page of a suite takes longer than all of its tiny runs, and is not what is looked at.
    monkeypatch.setattr(page, "write", lambda runs, out, **_: out / "index.html")
    return Vcmm(capsys)


def by_seed(runs: list[Run], seed: int) -> list[Run]:
    return [run for run in runs if run.seed == seed]


@pytest.mark.slow
def test_an_ablation_trains_on_with_what_its_search_has_found(
    vcmm: Vcmm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["vcmm.bench.suites.ablation"]  # the function has the same name
    monkeypatch.setattr(module, "CONTROLLERS", (Choice("none"),))  # one row beside the search
    command = ["sweep", "ablation", *TINY, "--betas", ".7,.9", "--seeds", "2", "--epochs", "2"]
    command += ["--batch-size", "16", "--optimizer.lr", "0.03", "--workers", "1"]
    command += ["--runs", str(tmp_path)]
    first = vcmm(*command, "--plain")
    assert first.code == 0, first.err
    assert "The next stage of the suite: " in first.out
    runs = load(tmp_path)
    fixed = [run for run in runs if run.spec["controller"]["name"] == "fixed"]
    tried = {tuple(run.spec["controller"]["betas"].values()): run for run in by_seed(fixed, 0)}
    assert set(tried) == {(a, b) for a in (0.7, 0.9) for b in (0.7, 0.9)}
    scores = {betas: score(run) for betas, run in tried.items()}
    later = [tuple(run.spec["controller"]["betas"].values()) for run in by_seed(fixed, 1)]
    equal = {betas: scores[betas] for betas in scores if len(set(betas)) == 1}
    assert max(scores[betas] for betas in later) == max(scores.values())
    assert max(equal.values()) in [scores[betas] for betas in later if betas in equal]
    assert len(by_seed(runs, 0)) == 1 + 4
    assert len(by_seed(runs, 1)) == 1 + len(later)

    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/done")}
    again = vcmm(*command, "--json")
    assert again.code == 0
    said = json.loads(again.out)
    assert said["failed"] == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/done")} == before


@pytest.mark.slow
def test_a_search_gives_every_arm_its_best_learning_rate(vcmm: Vcmm, tmp_path: Path) -> None:
    command = ["sweep", "compare", *TINY, "--methods", "joint", "--seeds", "2"]
    command += ["--epochs", "2", "--search", "2", "--workers", "1"]
    command += ["--runs", str(tmp_path), "--json"]
    said = vcmm(*command)
    assert said.code == 0, said.err
    arms: dict[str, list[Run]] = {}
    for run in load(tmp_path):
        arms.setdefault(json.dumps(run.spec["method"]), []).append(run)
    assert len(arms) == 3  # two modalities alone, and joint
    for runs in arms.values():
        trials, (final,) = by_seed(runs, 0), by_seed(runs, 1)
        rates = {run.spec["optimizer"]["lr"]: score(run) for run in trials}
        assert len(rates) == 2
        assert 1e-3 in rates
        assert rates[final.spec["optimizer"]["lr"]] == max(rates.values())


def test_a_search_of_nothing_is_a_mistake(vcmm: Vcmm) -> None:
    said = vcmm("sweep", "compare", "--search", "0")
    assert said.code == 2
    assert "--search" in said.err


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_of_the_paper_on_its_data_is_trained_as_in_the_paper(suite: str) -> None:
    named = expanded(["sweep", suite, "--data", "cremad", "--seeds", "1"])
    assert ("--epochs" in named) == (suite in PAPER)
    assert expanded(["sweep", suite, "--data", "watch"]) == ["sweep", suite, "--data", "watch"]
