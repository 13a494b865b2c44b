"""What docs/encoders.md says, and what the command line shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vcmm.bench.cli import main
from vcmm.bench.encoders import ENCODERS
from vcmm.bench.records import load

from .kit import form, trained

TEXT = (Path(__file__).parents[3] / "docs" / "encoders.md").read_text("utf-8")


def test_the_code_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(compile(code, "encoders.md", "exec"), space)


def test_the_table_has_every_encoder_and_its_features() -> None:
    table = TEXT[: TEXT.index("## What they are")]
    rows = re.findall(r"^\| (`.*?) \|.*\| (\d+) \|$", table, re.MULTILINE)
    told = {name: int(outputs) for names, outputs in rows for name in re.findall(r"`(\w+)`", names)}
    assert told.keys() == ENCODERS.keys()
    forms = {
        "i3d": form("video", 3, 8, 8, 8),
        "bert": form("tokens", 8),
        "conv1d": form("sequence", 2, 8),
    }
    with torch.device("meta"):
        made = {name: ENCODERS[name](forms.get(name, form("image", 1, 16, 16))) for name in told}
    assert {name: encoder.outputs for name, encoder in made.items()} == told


def vcmm(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str, int]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert isinstance(stop.value.code, int)
    return (*capsys.readouterr(), stop.value.code)


def test_list_shows_every_encoder_with_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    out, _, code = vcmm(capsys, "list", "encoders", "--json")
    found = {one["name"]: {option["name"] for option in one["options"]} for one in json.loads(out)}
    assert code == 0
    assert found.keys() == ENCODERS.keys()
    assert {name for name, options in found.items() if {"weights", "fresh"} <= options} == {
        *("ast", "bert", "i3d", "resnet18", "resnet34", "resnet50")
    }
    out, _, _ = vcmm(capsys, "list", "encoders")
    assert "weights = none   a name or none" in out


def test_a_run_starts_from_a_file_and_a_misfit_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split in ("train", "valid", "test"):
        arrays[f"y_{split}"] = target = np.arange(24) % 2
        for modality, channels in (("photo", 3), ("scan", 1)):
            values = chance.normal(target[:, None, None, None], 1, (24, 12, 12, channels))
            arrays[f"x_{modality}_{split}"] = values.astype(np.float32)
    np.savez("mine.npz", **arrays)
    torch.save(
        trained(ENCODERS["resnet18"](form("image", 3, 12, 12), width=4, classifier=9)), "w.pt"
    )
    scan = "--encoders.scan"
    call = [
        *("run", "--data", "mine.npz", "--epochs", 2, "--batch-size", 8),
        *("--encoder", "resnet18", "--encoder.width", 4, "--encoder.weights", "w.pt"),
        *("--encoders", "scan=resnet18", f"{scan}.width", 4, f"{scan}.weights", "w.pt"),
    ]
    _, err, code = vcmm(capsys, *call)
    assert code != 0
    assert "modality 'scan': weights 'w.pt' do not fit" in " ".join(err.split())
    assert "Traceback" not in err
    _, err, code = vcmm(capsys, *call, f"{scan}.fresh", "conv1,bn1")
    assert code == 0, err
    (made,) = load(tmp_path / "runs")
    assert made.spec["encoder"]["weights"] == "w.pt"
    assert made.spec["encoders"]["scan"]["fresh"] == ["conv1", "bn1"]
