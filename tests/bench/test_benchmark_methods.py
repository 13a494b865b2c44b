"""The benchmark of step times runs, and says what it should; never how fast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vcmm.bench.methods import METHODS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        before = set(sys.modules)
        import methods

        yield methods
        for name in ({"methods", "overhead", "measure", "models"} - before) & set(sys.modules):
            del sys.modules[name]


@pytest.mark.slow
def test_every_method_has_a_row_and_its_passes(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = script.Sizes(width=2, samples=4, pixels=32)
    plan = script.Plan(least=1, most=1, seconds=0, precision=0)
    path = tmp_path / "methods.json"
    script.main(["--threads", "1", "--json", str(path)], sizes, plan)
    result = json.loads(path.read_text())
    rows = {row["method"]: row for row in result["rows"]}
    assert rows.keys() == METHODS.keys() - {"joint", "unimodal"}
    passes = {name: row["passes"] for name, row in rows.items()}
    assert passes["multi_loss"] == passes["ogm"] == 1
    assert passes["agm"] == 2
    assert passes["g2d"] == 1.5  # the teachers' forward
    assert passes["mla"] == passes["mmpareto"] == 1.5
    work = {name: row["work"] for name, row in rows.items()}
    assert work["ogm"] == 1
    assert work["agm"] == 2
    assert work["g2d"] == pytest.approx(4 / 3)
    assert work["mla"] == work["mmpareto"] == pytest.approx(5 / 3)
    assert all(row["median"] > 0 for row in rows.values())
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in rows)


@pytest.mark.parametrize(
    ("name", "terms"),
    [("pmr", {"fused", "prototypes", "entropy"}), ("g2d", {"fused", "distill", "features"})],
)
def test_what_is_measured_is_a_step_of_the_method_and_not_of_joint_training(
    script: Any, name: str, terms: set[str]
) -> None:
    """Before its first epoch a method without prototypes or teachers is joint training."""
    sizes = script.Sizes(width=2, samples=8, pixels=32)
    method, batch = script.made(name, sizes, torch.device("cpu"))
    assert len(batch.target) == 8
    assert method.step(batch).keys() == {"loss", *(f"loss/{term}" for term in terms)}


def test_a_row_says_whether_the_bar_is_met(script: Any) -> None:
    def said(low: float, median: float, high: float, work: float = 1.0) -> str:
        return script.Row("x", median, low, high, 1.0, work, 9).line()

    assert said(1.0, 1.04, 1.06).endswith("yes")
    assert said(1.04, 1.06, 1.08).endswith("within noise")
    assert said(1.06, 1.07, 1.08).endswith("NO")
    assert said(1.4, 1.5, 1.6, 1.5).endswith("yes")
