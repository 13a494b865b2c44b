"""Runs on a CUDA device: the same bytes twice and after an interruption, in bfloat16 too."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vcmm.bench.events import Event
from vcmm.bench.execution import Execution
from vcmm.bench.run import run
from vcmm.bench.spec import Choice, Spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

FAST = {"device": "cuda", "precision": "bfloat16", "channels_last": True}
SPEC = Spec(
    data=Choice("synthetic", kind="image", samples=72, size=32, classes=3),
    encoder=Choice("resnet18", width=16),
    controller=Choice("vcmm"),
    epochs=2,
    batch_size=16,  # and a last batch of eight
)
STEPS = 5


class Interrupted(BaseException):
    """As a kill would be: nobody catches it."""


@pytest.fixture(autouse=True)
def _as_a_process_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS looks at it once


def records(path: Path) -> dict[str, bytes]:
    names = ("spec.json", "steps.jsonl", "evals.jsonl", "done")
    return {name: (path / name).read_bytes() for name in names}


def losses(path: Path) -> list[float]:
    lines = (path / "steps.jsonl").read_text().splitlines()
    return [json.loads(line)["values"]["loss"] for line in lines]


def in_pieces(tmp_path: Path, execution: Execution) -> Path:
    """A run that was interrupted in the middle of its second epoch."""

    def watch(event: Event) -> None:
        if event.kind == "step" and event.step == STEPS + 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(SPEC, tmp_path, execution=execution, watch=watch, checkpoint_every=0)
    torch.compiler.reset()  # as in a new process
    told: list[Event] = []
    path = run(SPEC, tmp_path, execution=execution, watch=told.append)
    assert told[0].step == STEPS + 2
    return path


@pytest.mark.parametrize("more", [{}, {"precision": "float32"}, {"channels_last": False}])
def test_a_run_is_the_same_bytes_twice_and_in_pieces(tmp_path: Path, more: Any) -> None:
    execution = Execution(**{**FAST, **more})
    once = run(SPEC, tmp_path / "once", execution=execution)
    assert records(run(SPEC, tmp_path / "twice", execution=execution)) == records(once)
    assert records(in_pieces(tmp_path / "pieces", execution)) == records(once)
    said = json.loads((once / "spec.json").read_text())
    assert (said["device"], said["numerics"]) == ("cuda", execution.numerics)
    assert json.loads((once / "env.json").read_text())["device"].startswith("cuda")


def test_it_learns_what_a_cpu_learns(tmp_path: Path) -> None:
    here = losses(run(SPEC, tmp_path))
    there = losses(run(SPEC, tmp_path, execution=Execution(device="cuda")))
    fast = losses(run(SPEC, tmp_path, execution=Execution(**FAST)))
    assert there[0] == pytest.approx(here[0], rel=1e-2)  # convolutions may compute in TF32
    assert fast[0] == pytest.approx(here[0], rel=5e-2)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_compiled_encoders_finish_and_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    execution = Execution(**FAST, compiled=True)
    whole = run(SPEC, tmp_path / "whole", execution=execution)
    plain = run(SPEC, tmp_path / "plain", execution=Execution(**FAST))
    assert losses(whole)[0] == pytest.approx(losses(plain)[0], rel=5e-2)
    assert records(in_pieces(tmp_path / "pieces", execution)) == records(whole)
