"""The page of results is written from records alone, with the learning rate that won on valid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from vcmm.bench.records import load
from vcmm.bench.spec import Choice

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import results

    tiny = Choice("synthetic", samples=60, size=6, classes=3)
    monkeypatch.setattr(results, "DATA", {"toy": (tiny, Choice("mlp", width=4), 2)})
    monkeypatch.setattr(results, "ARMS", ("ogm", "joint+vcmm"))
    monkeypatch.setattr(results, "RATES", (1e-3, 1e-1))
    monkeypatch.setattr(results, "SEEDS", range(2))
    yield results
    del sys.modules["results"]


@pytest.mark.slow
def test_it_searches_goes_on_where_it_was_and_writes_what_came_out(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = tmp_path / "runs", tmp_path / "results.md"
    monkeypatch.setattr(script, "OUT", out)
    arguments = ["--runs", str(root), "--data", "toy", "--workers", "1"]
    script.main(["train", *arguments, "--minutes", "0"])  # stops after what has begun
    begun = {run.hash for run in load(root)}
    script.main(["train", *arguments])
    runs = load(root)
    assert begun <= {run.hash for run in runs}
    # Each modality alone; joint by both fusions, and with both kinds of VCMM; OGM by its own.
    arms = 2 + 4 + 1
    assert len(runs) == arms * (2 + 1)  # two rates, and another seed with the better one

    script.main(["write", *arguments])
    page = out.read_text()
    rows = {
        line.split(" | ")[0][2:]: line
        for line in page.splitlines()
        if line.startswith("| ") and "[" in line
    }
    vcmm = {"joint + vcmm", "joint + vcmm (floor_after_smoothing=true)"}
    labels = {"unimodal: m1", "unimodal: m2", "joint", "joint by concat", "ogm by concat"}
    assert rows.keys() == labels | vcmm
    done = script.finished(root)
    made = script.setting("toy", done)
    for arm in made.arms:
        tried = {
            run.spec["optimizer"]["lr"]: script.best_on_valid(run)
            for run in done.values()
            if run.seed == 0
            and all(run.spec[axis] == arm.spec[axis] for axis in ("method", "fusion", "controller"))
        }
        rate = arm.spec["optimizer"]["lr"]
        assert tried[rate] == max(tried.values())
        assert f"| {rate:g} | 2 |" in rows[arm.label]
    assert "reference" in rows["joint"]
