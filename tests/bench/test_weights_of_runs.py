"""Runs that start from files of weights: known by what the files hold, wherever they lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from vcmm.bench import records
from vcmm.bench.arms import settings
from vcmm.bench.build import build_model
from vcmm.bench.encoders.weights import digest
from vcmm.bench.run import run, weights_of
from vcmm.bench.spec import Choice, Spec

from . import toys


def images(path: Path | None, seed: int = 0) -> Spec:
    weights = None if path is None else str(path)
    return toys.tiny(
        2,
        "image",
        data=toys.source(2, "image", size=16),
        encoder=Choice("resnet18", width=2),
        encoders={"m2": Choice("resnet18", width=2, weights=weights)},
        epochs=1,
        seed=seed,
    )


def saved(path: Path, seed: int) -> Path:
    """Weights that some training began with."""
    spec = images(None, seed)
    torch.save(build_model(spec, toys.data_of(spec)).encoders["m2"].state_dict(), path)
    return path


@pytest.mark.slow
def test_another_file_at_the_same_place_is_another_run_in_another_table(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    spec = images(saved(tmp_path / "weights.pt", 3))
    first = run(spec, runs)
    said = json.loads((first / "spec.json").read_text())
    assert (
        said["weights"]
        == weights_of(spec)
        == {str(tmp_path / "weights.pt"): digest(tmp_path / "weights.pt")}
    )
    # The same file elsewhere is the same run, and another seed of it stands beside.
    moved = Path(shutil.copy(tmp_path / "weights.pt", tmp_path / "other.pt"))
    assert run(images(moved), runs) == first
    beside = run(images(moved, 1), runs)
    (setting,) = settings(records.load(runs))
    assert [len(arm.runs) for arm in setting.arms] == [2]
    # Another file in its place is not.
    saved(tmp_path / "weights.pt", 4)
    second = run(spec, runs)
    assert len({first, second, beside}) == 3
    assert (first / "steps.jsonl").read_bytes() != (second / "steps.jsonl").read_bytes()
    assert sorted(len(one.runs) for one in settings(records.load(runs))) == [1, 2]
    plain = run(images(None), runs)
    assert "weights" not in json.loads((plain / "spec.json").read_text())
    assert len(settings(records.load(runs))) == 3
