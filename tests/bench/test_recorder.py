"""The recorder: by the formulas, like the probe, and without a trace in what is trained."""

from __future__ import annotations

import copy
import gc
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcmm.bench import run as running
from vcmm.bench.build import Training, build, momenta
from vcmm.bench.events import Event
from vcmm.bench.execution import Execution
from vcmm.bench.methods import METHODS
from vcmm.bench.model import Multimodal
from vcmm.bench.recorder import encoder_sums
from vcmm.bench.run import run
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.types import Batch

from . import toys
from .test_build import labelled
from .toys import differences, records, rows, tiny

PLACES = ("encoder_R", "encoder_Q", "probe_R", "probe_Q")


@pytest.fixture(scope="module", autouse=True)
def _few_objects() -> Iterator[None]:
    toys.warm()
    yield
    gc.unfreeze()


def recorded(every: int, modalities: int = 2, kind: str = "vector", **axes: object) -> Spec:
    controller = Choice("vcmm", encoder_every=every)
    return tiny(modalities, kind, controller=controller, **axes)


def batches(training: Training, size: int, count: int) -> list[Batch]:
    whole = range(len(training.data.splits["train"]))
    return [
        training.data.batch(
            "train", torch.tensor([whole[(i * size + j) % len(whole)] for j in range(size)])
        )
        for i in range(count)
    ]


# No trace


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("every", [1, 3])
def test_what_is_trained_is_bitwise_the_same(name: str, every: int) -> None:
    one, plain = toys.trained(tiny(2, "sequence", method=name, controller="vcmm"))
    spec = recorded(every, 2, "sequence", method=name)
    other, beside = toys.trained(spec)
    assert beside == plain
    theirs = {k: v for k, v in other.method.state_dict().items() if "recorder" not in k}
    assert differences(one.method.state_dict(), theirs) == []
    states = (one.method.optimizer.state_dict(), other.method.optimizer.state_dict())
    assert differences(*states) == []
    assert momenta(one) == momenta(other)
    passes = ("forwards", "backwards", "updates")
    assert [one.method.counts[k] for k in passes] == [other.method.counts[k] for k in passes]
    assert other.recorder is not None
    assert other.recorder.measured or name == "unimodal"


def test_dropout_batch_norm_and_gradients_are_left_alone() -> None:
    training = toys.built(tiny(2, "sequence"))
    encoders = training.method.model.encoders.items()
    noisy = {m: nn.Sequential(encoder, nn.Dropout(0.5)) for m, encoder in encoders}
    model = Multimodal(noisy, training.method.model.fusion).train()
    batch = training.data.batch("train", torch.arange(9))
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    sums = encoder_sums(model, F.cross_entropy, batch, ["m1", "m2"])
    assert differences(before, model.state_dict()) == []
    assert torch.equal(random, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert all(one.gradients.abs().sum() > 0 for one in sums.values())
    model(batch.inputs)  # which would have changed both
    assert differences(before, model.state_dict())
    assert not torch.equal(random, torch.get_rng_state())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_compiled_encoders_are_recorded_as_they_are_written() -> None:
    spec = recorded(2, 2, "sequence")
    trained: list[Training] = []
    for one in (replace(spec, controller=Choice("vcmm")), spec):
        trained.append(build(one, toys.data_of(one), Execution(compiled=True)))
        toys.losses(toys.events(trained[-1], one))
    plain, other = (made.method.state_dict() for made in trained)
    beside = {k: v for k, v in other.items() if "recorder" not in k}
    assert differences(plain, beside) == []
    assert trained[1].recorder is not None
    assert trained[1].recorder.measured


def test_a_frozen_encoder_has_nothing_to_measure() -> None:
    training = toys.built(tiny(2))
    model, batch = training.method.model, training.data.batch("train", torch.arange(9))
    model.encoders["m1"].requires_grad_(False)
    assert set(encoder_sums(model, F.cross_entropy, batch, ["m1", "m2"])) == {"m2"}
    assert encoder_sums(model, F.cross_entropy, batch, ["m1"]) == {}


# What is measured


@pytest.mark.parametrize("size", [2, 7, 16])
def test_the_halves_together_are_the_gradient_of_joint_training(size: int) -> None:
    training = toys.built(tiny(3, "sequence"))
    model = training.method.model.train()
    batch = training.data.batch("train", torch.arange(size))
    sums = encoder_sums(model, F.cross_entropy, batch, ["m1", "m3"])
    F.cross_entropy(model(batch.inputs).fused, batch.target).backward()
    for modality in ("m1", "m3"):
        found = sums[modality].gradients.sum(dim=(0, 1)) / sums[modality].weights.sum()
        wanted = torch.cat([p.grad.flatten() for p in model.encoders[modality].parameters()])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def slowly(model: Multimodal, batch: Batch, modality: str) -> tuple[Tensor, Tensor, Tensor]:
    """g_A, g_B and g of an encoder, each from a model and a forward of its own."""
    found: list[Tensor] = []
    n = len(batch.target)
    for chosen in (range(0, n, 2), range(1, n, 2), range(n)):
        one = copy.deepcopy(model).double().train()
        fused = one({m: x.double() for m, x in batch.inputs.items()}).fused
        losses = [F.cross_entropy(fused[i], batch.target[i]) for i in chosen]
        (sum(losses) / len(losses)).backward()  # type: ignore[union-attr]
        parameters = one.encoders[modality].parameters()
        found.append(torch.cat([p.grad.flatten() for p in parameters]))
    return found[0], found[1], found[2]


@pytest.mark.parametrize("size", [16, 15])
def test_the_numbers_are_those_of_the_formulas(size: int) -> None:
    training = toys.built(recorded(2, 2, "sequence"))
    recorder = training.recorder
    assert recorder is not None
    gradients: list[tuple[Tensor, Tensor, Tensor]] = []
    noise: list[float] = []
    w = ((size + 1) // 2) * (size // 2) / size**2
    for batch in batches(training, size, 4):
        gradients.append(slowly(training.method.model, batch, "m2"))
        training.method.train().step(batch)
        noise.append(w * (gradients[-1][0] - gradients[-1][1]).square().mean().item())
        found = recorder.taken()
        if len(gradients) % 2:
            assert found == {}
            continue
        assert set(found) == {f"{m}/{place}" for m in ("m1", "m2") for place in PLACES}
        assert found["m2/encoder_R"] == pytest.approx(noise[-1], rel=1e-4)
        change = (gradients[-1][2] - gradients[-2][2]).square().mean().item()
        least = 1e-4 * gradients[-1][2].square().mean().item()
        drift = max(change - noise[-1] - noise[-2], least)
        assert found["m2/encoder_Q"] == pytest.approx(drift, rel=1e-3, abs=1e-4 * change)


@pytest.mark.parametrize("fusion", ["mean", "concat", "gated"])
def test_the_probe_is_the_one_that_the_controller_goes_by(fusion: str) -> None:
    """Smoothed as the controller does it, what is recorded is what the controller shows."""
    spec = recorded(1, 2, fusion=fusion)
    training = toys.built(spec)
    assert training.recorder is not None
    smoothed: dict[str, float] = {}
    for batch in batches(training, 16, 6):
        training.method.train().step(batch)
        found = training.recorder.taken()
        shown = momenta(training)
        for modality in ("m1", "m2"):
            noise = found[f"{modality}/probe_R"]
            if modality + "R" not in smoothed:
                smoothed[modality + "R"], smoothed[modality + "Q"] = noise, noise * 0.01 / 0.9
            else:
                for name in "RQ":
                    new = found[f"{modality}/probe_{name}"]
                    smoothed[modality + name] = 0.95 * smoothed[modality + name] + 0.05 * new
            for name in "RQ":
                wanted = pytest.approx(smoothed[modality + name], rel=1e-4)
                assert shown[f"{modality}/{name}"] == wanted


def test_several_labels_are_recorded_too() -> None:
    training, _ = toys.trained(recorded(1), labelled())
    assert training.recorder is not None
    found = training.recorder.taken()
    assert set(found) == {f"{m}/{place}" for m in ("near", "far") for place in PLACES}
    assert all(value > 0 for value in found.values())


# The record


def test_measured_steps_are_written_whatever_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "ROWS", 2)
    plain = run(tiny(controller="vcmm"), tmp_path)
    spec = recorded(3)
    path = run(spec, tmp_path)
    assert [row["step"] for row in rows(plain / "steps.jsonl")] == [1, 4, 8]
    found = {row["step"]: row["values"] for row in rows(path / "steps.jsonl")}
    assert list(found) == [1, 3, 4, 6, 8]
    for step, values in found.items():
        assert any("encoder_" in name for name in values) == (step % 3 == 0)
    for row in rows(plain / "steps.jsonl"):
        same = {k: v for k, v in found[row["step"]].items() if k.rpartition("/")[2] not in PLACES}
        assert row["values"] == same
    assert (plain / "evals.jsonl").read_bytes() == (path / "evals.jsonl").read_bytes()


def test_passes_are_counted_apart_and_memory_is_that_of_the_training(tmp_path: Path) -> None:
    plain, path = run(tiny(controller="vcmm"), tmp_path), run(recorded(3), tmp_path)
    for ours, theirs in zip(rows(path / "cost.jsonl"), rows(plain / "cost.jsonl"), strict=True):
        apart = {k: ours.pop(k) for k in list(ours) if k.startswith("recorded")}
        for row in (ours, theirs):
            row.pop("seconds", None)
        assert ours == theirs
        steps = {0: 2, 1: 3}.get(ours.get("epoch"))  # 2 and 3; 5, 6 and 8
        assert apart == (
            {} if steps is None else {"recorded_forwards": steps, "recorded_backwards": 2 * steps}
        )


class Stopped(Exception):
    pass


@pytest.mark.parametrize("every", [1, 2, 3])
def test_in_pieces_it_is_the_same_as_a_whole(every: int, tmp_path: Path) -> None:
    spec = recorded(every, 2, "sequence")
    whole = run(spec, tmp_path / "whole")
    path: Path | None = None
    attempts = 0
    while path is None:
        told = 0

        def stop(event: Event) -> None:
            nonlocal told
            told += 1
            if told > 3:
                raise Stopped

        attempts += 1
        try:
            path = run(spec, tmp_path / "pieces", watch=stop, checkpoint_every=0)
        except Stopped:
            continue
    assert attempts > 3
    assert records(path) == records(whole)


def test_a_number_of_steps_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="encoder_every is -1"):
        recorded(-1)
