"""The benchmark runs, and says what it should in the form that it should; never how fast."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
CPU = torch.device("cpu")
LADDER = ((6, 0.6, 2), (500, 1.2, 1))


@pytest.fixture(scope="module")
def overhead() -> Any:
    """The script as a module, its neighbours on the path as they are when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        before = set(sys.modules)
        import overhead

        yield overhead
        for name in ({"overhead", "measure", "models"} - before) & set(sys.modules):
            del sys.modules[name]


@pytest.fixture(scope="module")
def measure(overhead: ModuleType) -> Any:
    return sys.modules["measure"]


@pytest.fixture(scope="module")
def models(overhead: ModuleType) -> Any:
    return sys.modules["models"]


@pytest.fixture(scope="module")
def sizes(overhead: Any) -> Any:
    return overhead.Sizes(
        step_widths=((2, 1.02), (3, None)),
        train_width=2,
        samples=8,
        pixels=32,
        features=16,
        ladder=LADDER,
    )


@pytest.fixture(scope="module")
def plan(measure: Any) -> Any:
    return measure.Plan(least=3, most=3, seconds=0, precision=0)


def sane(row: Any) -> bool:
    return 0 < row.low <= row.median <= row.high < math.inf


def test_the_model_is_a_resnet_18_per_modality(models: Any) -> None:
    encoder = models.ResNet18(channels=3)
    # torchvision's resnet18 has 11 689 512 parameters, 513 000 of them in its classifier.
    assert sum(p.numel() for p in encoder.parameters()) == 11_689_512 - 513_000
    assert len(list(encoder.parameters())) == 60
    model = models.TwoEncoders()
    assert {name: e.stem[0].in_channels for name, e in model.encoders.items()} == models.MODALITIES
    claimed = {p for parts in model.claims().values() for part in parts for p in part.parameters()}
    assert claimed == set(model.parameters())


def test_the_step_is_measured_over_11_million_parameters(models: Any, overhead: Any) -> None:
    model = models.TwoEncoders(overhead.Sizes().step_widths[0][0])
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(11e6, rel=0.01)


def test_features_and_logits_have_the_sizes_that_the_bars_name(models: Any) -> None:
    model = models.TwoEncoders(width=2, classes=5)
    images = {name: torch.randn(3, c, 32, 32) for name, c in models.MODALITIES.items()}
    fused, seen = model(images)
    assert fused.shape == (3, 5)
    for name, (features, logits) in seen.items():
        assert features.shape == (3, model.encoders[name].outputs)
        assert torch.equal(logits, model.heads[name](features))
    torch.testing.assert_close(fused, sum(z for _, z in seen.values()) / 2)
    assert models.ResNet18(1).outputs == 512


def test_the_interval_encloses_the_median_of_most_samples(measure: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(400):
        median, low, high = measure.spread(torch.randn(41, generator=generator).tolist())
        assert low <= median <= high
        hits += low <= 0 <= high
    assert 0.93 <= hits / 400 <= 0.98


def test_a_comparison_alternates_in_random_order_and_pairs_what_was_measured_together(
    measure: Any,
) -> None:
    calls: list[str] = []

    def side(name: str) -> Any:
        def run() -> float:
            calls.append(name)
            return float(len(calls))

        return run

    plan = measure.Plan(least=50, most=50, seconds=0, precision=0)
    ours, plain = measure.compare(side("a"), side("b"), plan)
    assert len(ours) == len(plain) == 50
    assert all(abs(a - b) == 1 for a, b in zip(ours, plain, strict=True))  # neighbours in time
    pairs = {"".join(calls[i : i + 2]) for i in range(4, len(calls), 2)}
    assert pairs == {"ab", "ba"}


def test_measuring_goes_on_until_the_interval_is_narrow_whatever_the_ratio(measure: Any) -> None:
    plan = measure.Plan(least=5, most=1000, seconds=3600, precision=0.5)

    def wide(step: int) -> float:
        return 1.0 if step % 2 else 9.0

    noisy = iter(wide(i) for i in range(10_000))
    ours, _ = measure.compare(lambda: next(noisy), lambda: 1.0, plan)
    assert len(ours) == 1000
    for factor in (0.5, 2.0):
        ours, _ = measure.compare(lambda f=factor: f, lambda: 1.0, plan)
        assert len(ours) == 5


def test_every_row_of_ratios_has_its_bar(overhead: Any, sizes: Any, plan: Any) -> None:
    step, control, wider, _ = overhead.optimizer_steps(sizes, plan, CPU)
    (train,) = overhead.training_step(sizes, plan, CPU)
    (memory,) = overhead.training_memory(sizes, CPU)
    assert all(sane(row) for row in (step, control, train, memory))
    assert [row.bar for row in (step, control, train, memory)] == [1.02, None, 1.01, 1.001]
    assert control.met is None
    assert 0 < step.detail["parameters"] < wider.detail["parameters"]
    assert wider.bar is None
    # At any size the controller allocates a little.
    assert memory.detail["with_mb"] > memory.detail["without_mb"] > 0


def test_every_row_in_milliseconds_and_megabytes_has_its_bar(
    overhead: Any, sizes: Any, plan: Any
) -> None:
    rows = list(overhead.alone(sizes, plan, CPU))
    assert all(sane(row) for row in rows)
    assert [row.bar for row in rows] == [bar for _, bar, _ in LADDER]
    (memory,) = overhead.alone_memory(sizes, CPU)
    kept = 4 * 2 * sizes.samples * (500 + sizes.features) / 1e6
    # The rows of this step and of the last one are held at once, and little more than that again.
    assert 2 * kept < memory.median < 6 * kept
    assert overhead.Sizes().ladder[-1][:2] == (100_000, 80.0)


def test_a_controller_that_stands_still_is_not_measured(overhead: Any) -> None:
    vcmm, _ = overhead.small(overhead.Sizes(), 6, CPU)
    with pytest.raises(RuntimeError, match="does not move"):
        overhead.require_live(vcmm)


def test_a_line_says_whether_the_bar_is_met_and_how_surely(overhead: Any) -> None:
    def line(low: float, median: float, high: float, bar: float | None = 1.02) -> str:
        return overhead.Row("what", median, low, high, "x", bar, 9).line(20)

    assert line(1.0, 1.01, 1.015).endswith("yes")
    assert line(1.0, 1.01, 1.03).endswith("yes, within noise")
    assert line(1.0, 1.025, 1.03).endswith("NO, within noise")
    assert line(1.021, 1.025, 1.03).endswith("NO")
    assert line(1.0, 1.025, 1.03, None).endswith("-")


def test_the_table_and_the_file_say_where_and_when(
    overhead: Any,
    sizes: Any,
    plan: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = torch.get_num_threads()
    quick = overhead.Plans(step=plan, train=plan, alone=plan, imports=plan)
    monkeypatch.setattr(overhead, "QUICK", quick)
    monkeypatch.setattr(overhead, "imports", lambda plan: iter(()))  # each import takes a second
    path = tmp_path / "overhead.json"
    arguments = ["--device", "cpu", "--quick", "--threads", str(threads), "--json", str(path)]
    overhead.main(arguments, sizes)

    result = json.loads(path.read_text())
    assert result["machine"].keys() >= {"cpu", "cores", "torch", "date", "load", "python"}
    assert result["machine"]["torch"] == torch.__version__
    assert result["settings"]["threads"] == threads
    assert result["settings"]["quick"] is True
    assert result["settings"]["sizes"]["features"] == sizes.features
    printed = capsys.readouterr().out.splitlines()
    assert len(result["rows"]) == 9
    for row in result["rows"]:
        assert any(row["what"] in line for line in printed)
        assert row["met"] == (None if row["bar"] is None else row["median"] <= row["bar"])


def test_imports_are_timed_in_processes_of_their_own(
    overhead: Any, measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="0.5\n")

    monkeypatch.setattr(subprocess, "run", run)
    plan = measure.Plan(least=4, most=4, seconds=0, precision=0)
    (row,) = overhead.imports(plan)
    assert (row.median, row.bar, row.samples) == (1.0, 1.05, 4)
    timed = {command[2].split("; ")[2] for command in commands}
    assert timed == {"from vcmm import *", "import torch"}
    assert all(command[0] == sys.executable for command in commands)
    assert any(a != b for a, b in pairwise(commands))
