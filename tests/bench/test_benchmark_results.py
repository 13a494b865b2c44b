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
    monkeypatch.setattr(results, "DATA", {"toy": (tiny, 2)})
    monkeypatch.setattr(results, "METHODS", dict.fromkeys(("joint", "ogm", "unimodal")))
    monkeypatch.setattr(results, "PLAIN", ("joint",))
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
    arms = 2 + 3 + 1  # each modality alone; joint, with both kinds of VCMM; OGM
    assert len(runs) == arms * (2 + 1)  # two rates, and another seed with the better one

    script.main(["write", *arguments])
    page = out.read_text()
    rows = {line.split(" | ")[0][2:]: line for line in page.splitlines() if "[" in line[:200]}
    labels = {"unimodal: m1", "unimodal: m2", "joint", "joint + vcmm", "ogm"}
    assert labels | {"joint + vcmm (floor_after_smoothing)"} <= rows.keys()
    done = script.finished(root)
    made, rates = script.setting("toy", done)
    for arm in made.arms:
        tried = {
            run.spec["optimizer"]["lr"]: script.best_on_valid(run)
            for spec, run in done.items()
            if spec.seed == 0
            and spec.method.name == arm.method
            and run.spec["method"] == arm.spec["method"]
            and run.spec["controller"] == arm.spec["controller"]
        }
        assert tried[rates[arm.label]] == max(tried.values())
        assert f"| {rates[arm.label]:g} | 2 |" in rows[arm.label]
    assert "reference" in rows["joint"]


def test_windows_keep_their_share_of_the_training(script: Any) -> None:
    assert script.windows(200)["aug"] == {"every": 20}
    assert script.windows(300)["g2d"]["ends"] == 150
    assert script.windows(100)["ogm"] == {"ends": 50}
    assert all(value >= 1 for options in script.windows(1).values() for value in options.values())
