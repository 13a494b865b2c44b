"""How runs are executed: what of it changes numbers, and that it is told apart in records."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcmm.bench import records
from vcmm.bench.arms import settings
from vcmm.bench.build import Training, build
from vcmm.bench.encoders import encoder as encoders
from vcmm.bench.events import Event
from vcmm.bench.execution import Execution, cores
from vcmm.bench.run import run
from vcmm.bench.spec import RESULT_VERSION, Choice, Spec, canonical, run_hash
from vcmm.bench.types import Output

from . import toys
from .toys import rows, tiny

IMAGES = tiny(
    2,
    "image",
    data=toys.source(2, "image", size=16),
    encoder=Choice("resnet18", width=4),
    controller="vcmm",
)
BFLOAT16 = Execution(precision="bfloat16")


# What is said of it


@pytest.mark.parametrize(
    ("given", "numerics"),
    [
        ({}, ""),
        ({"precision": "bfloat16"}, "bfloat16"),
        ({"channels_last": True}, "channels_last"),
        ({"compiled": True}, "compiled"),
        ({"compiled": True, "precision": "bfloat16"}, "bfloat16 compiled"),
        (
            {"compiled": True, "channels_last": True, "precision": "bfloat16"},
            "bfloat16 channels_last compiled",
        ),
    ],
)
def test_what_changes_numbers_is_part_of_the_identity(given: Any, numerics: str) -> None:
    execution = Execution(**given)
    assert execution.numerics == numerics
    usual = {"threads": 1, "device": "cpu"}
    assert execution.identity() == usual | ({"numerics": numerics} if numerics else {})


@pytest.mark.parametrize("loaders", [None, 0, 1, 7])
def test_loaders_change_nothing(loaders: int | None) -> None:
    assert Execution(loaders=loaders).identity() == Execution().identity()


def test_there_are_as_many_loaders_as_threads_and_two_at_least() -> None:
    assert [Execution(threads=n).workers for n in (1, 2, 16)] == [2, 2, 16]
    assert [Execution(loaders=n, threads=4).workers for n in (0, 1, 7)] == [0, 1, 7]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threads": 0}, "threads is 0; it must be 1 or more"),
        ({"loaders": -1}, "loaders is -1; it must be 0 or more"),
        ({"precision": "float16"}, "precision is 'float16'; it must be float32 or bfloat16"),
    ],
)
def test_what_cannot_be_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Execution(**given)


def test_the_hash_of_a_default_run_does_not_speak_of_arithmetic() -> None:
    spec = tiny()
    said = {"spec": spec.to_json(), "data": "d", "threads": 1, "device": "cpu"}
    text = canonical({**said, "version": RESULT_VERSION})
    assert run_hash(spec, "d") == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert run_hash(spec, "d", Execution(loaders=5)) == run_hash(spec, "d")
    others = [BFLOAT16, Execution(channels_last=True), Execution(compiled=True)]
    assert len({run_hash(spec, "d", one) for one in (Execution(), *others)}) == 4


# bfloat16


def convolved(training: Training) -> set[torch.dtype]:
    """The types that convolutions of all encoders come to in a step; the step is taken."""
    found: set[torch.dtype] = set()

    def note(_: nn.Module, __: Any, made: Tensor) -> None:
        found.add(made.dtype)

    layers = [one for one in training.method.modules() if isinstance(one, nn.Conv2d)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    training.method.train().step(training.data.batch("train", torch.arange(16)))
    for hook in hooks:
        hook.remove()
    return found


def test_only_encoders_compute_in_bfloat16() -> None:
    training = build(IMAGES, toys.data_of(IMAGES), BFLOAT16)
    seen: list[Output] = []
    training.method.watchers.append(lambda output, batch: seen.append(output))
    assert convolved(training) == {torch.bfloat16}
    (output,) = seen
    for made in (*output.features.values(), *output.logits.values(), output.fused):
        assert made.dtype == torch.float32
    assert {p.dtype for p in training.method.parameters()} == {torch.float32}
    kept = training.method.optimizer.state.values()
    assert {v.dtype for s in kept for v in s.values() if isinstance(v, Tensor)} == {torch.float32}
    assert convolved(build(IMAGES, toys.data_of(IMAGES))) == {torch.float32}


def losses(path: Path) -> list[float]:
    return [row["values"]["loss"] for row in rows(path / "steps.jsonl")]


@pytest.mark.slow
def test_a_run_in_bfloat16_is_another_run_that_is_never_mixed_in(tmp_path: Path) -> None:
    paths = [run(IMAGES, tmp_path, execution=one) for one in (Execution(), BFLOAT16)]
    said = [json.loads((path / "spec.json").read_text()) for path in paths]
    assert "numerics" not in said[0]
    assert said[1]["numerics"] == "bfloat16"
    assert json.loads((paths[1] / "env.json").read_text())["execution"]["precision"] == "bfloat16"
    plain, rounded = map(losses, paths)
    assert plain != rounded
    assert rounded[0] == pytest.approx(plain[0], rel=0.02)
    loaded = records.load(tmp_path)
    assert sorted(one.numerics for one in loaded) == ["", "bfloat16"]
    found = settings(loaded)
    assert [len(one.runs) for one in found] == [1, 1]
    said = [one.title.rpartition(", ")[2] for one in found]
    assert said == ["numerics bfloat16", "numerics float32"]
    # The same again comes to the same bytes.
    again = run(IMAGES, tmp_path / "again", execution=BFLOAT16)
    assert toys.records(again) == toys.records(paths[1])


def test_copies_of_an_encoder_compute_as_it_does() -> None:
    """G-Blend tries copies of the method, and G2D's teachers are copies of the model."""
    spec = replace(IMAGES, method=toys.method("g2d"), controller=Choice("none"))
    training = build(spec, toys.data_of(spec), replace(BFLOAT16, compiled=True))
    students = training.method.model.encoders
    teachers: Any = training.method.teachers
    for modality, student in students.items():
        teacher = teachers.encoders[modality]
        assert teacher is not student
        assert teacher.precision == student.precision == torch.bfloat16
        assert teacher.compiled_for == student.compiled_for == spec.batch_size


# Layout


@pytest.mark.slow
def test_the_layout_is_that_of_the_weights_and_changes_no_more_than_rounding(
    tmp_path: Path,
) -> None:
    there = Execution(channels_last=True)
    training = build(IMAGES, toys.data_of(IMAGES), there)
    kernels = [p for p in training.method.parameters() if p.ndim == 4 and p.shape[2] > 1]
    assert kernels
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)
    plain, laid = (run(IMAGES, tmp_path, execution=one) for one in (Execution(), there))
    assert losses(laid)[:3] == pytest.approx(losses(plain)[:3], rel=1e-4)


# Compiled code


def test_only_whole_batches_of_training_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what ran before would decide which code computes the next batch."""
    sizes: list[tuple[int, bool]] = []

    def compiled(kind: type[encoders.Encoder]) -> Any:
        def forward(encoder: encoders.Encoder, inputs: Tensor) -> Tensor:
            sizes.append((len(inputs), encoder.training))
            return kind.forward(encoder, inputs)

        return forward

    spec = tiny()
    plain = run(spec, tmp_path)
    monkeypatch.setattr(encoders, "compiled", compiled)
    run(spec, tmp_path / "plain")
    assert not sizes
    path = run(spec, tmp_path, execution=Execution(compiled=True))
    assert set(sizes) == {(toys.BATCH, True)}
    peak = 2  # steps that measure memory, at the end
    assert len(sizes) == 2 * (spec.epochs * (toys.SAMPLES // toys.BATCH) + peak)
    assert losses(path) == losses(plain)
    assert json.loads((path / "spec.json").read_text())["numerics"] == "compiled"


class Interrupted(BaseException):
    """As a kill would be: nobody catches it."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_compiled_encoders_come_to_the_same_and_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    spec: Spec = tiny(controller="vcmm", encoder=Choice("mlp", width=8, outputs=8))
    execution = Execution(compiled=True)
    plain = run(spec, tmp_path / "plain")
    whole = run(spec, tmp_path / "whole", execution=execution)
    assert losses(whole) == pytest.approx(losses(plain), rel=1e-4)
    assert toys.records(whole) != toys.records(plain)  # the spec says so, if nothing else does

    def watch(event: Event) -> None:
        if event.step == toys.STEPS - 1:  # the next batch is the small one
            raise Interrupted

    with pytest.raises(Interrupted):
        run(spec, tmp_path / "pieces", execution=execution, watch=watch, checkpoint_every=0)
    torch.compiler.reset()  # as in a new process
    told: list[Event] = []
    pieces = run(spec, tmp_path / "pieces", execution=execution, watch=told.append)
    assert told[0].step == toys.STEPS - 2
    assert toys.records(pieces) == toys.records(whole)


def test_a_run_on_a_gpu_goes_on_on_a_machine_with_other_cores() -> None:
    few, many = (Execution(device="cuda", threads=threads) for threads in (8, 16))
    assert few.identity() == many.identity()
    assert Execution(threads=8).identity() != Execution(threads=16).identity()


def test_a_gpu_is_fed_by_more_than_torchs_threads() -> None:
    assert Execution(threads=3).workers == 3
    assert Execution(device="cuda").workers == max(2, min(8, cores()))
    assert Execution(device="cuda", loaders=0).workers == 0
