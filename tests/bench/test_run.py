"""A run's folder: what is in it, that it is the same bytes again, and that it survives anything."""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcmm.bench import folder
from vcmm.bench.controllers import CONTROLLERS
from vcmm.bench.data import DATA
from vcmm.bench.encoders import ENCODERS
from vcmm.bench.encoders.mlp import MLP
from vcmm.bench.events import Event
from vcmm.bench.execution import Execution
from vcmm.bench.method import Method, Terms
from vcmm.bench.methods import METHODS
from vcmm.bench.optimizers import OPTIMIZERS
from vcmm.bench.run import run
from vcmm.bench.schedules import SCHEDULES
from vcmm.bench.spec import RESULT_VERSION, Choice, Spec
from vcmm.bench.types import Batch, Data, Form, Output

from . import toys
from .toys import records, rows, tiny

EPOCHS, SAMPLES, STEPS = 2, toys.SAMPLES, toys.STEPS
FILES = ["cost.jsonl", "done", "env.json", "evals.jsonl", "spec.json", "steps.jsonl"]


def snapshot(path: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and folder below, with all that changes when it is touched."""
    found = {p: p.stat() for p in [path, *path.rglob("*")]}
    return {str(p): (s.st_ino, s.st_mtime_ns, s.st_size) for p, s in found.items()}


@pytest.fixture(scope="module", autouse=True)
def _few_objects() -> Iterator[None]:
    toys.warm()
    yield
    gc.unfreeze()


# What is written


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Spec, Path]:
    """One run that went through undisturbed."""
    spec = tiny(controller="vcmm", seed=3)
    return spec, run(spec, tmp_path_factory.mktemp("runs"))


def test_a_run_consists_of_these_files_and_nothing_is_left_beside_it(
    finished: tuple[Spec, Path],
) -> None:
    _, path = finished
    assert sorted(os.listdir(path)) == FILES
    assert sorted(os.listdir(path.parent)) == [".work", path.name]
    assert os.listdir(path.parent / ".work") == []
    assert len(path.name) == 16
    assert set(path.name) <= set("0123456789abcdef")


def test_the_spec_that_was_run_can_be_read_back(finished: tuple[Spec, Path]) -> None:
    spec, path = finished
    outer = json.loads((path / "spec.json").read_text())
    assert Spec.from_json(outer.pop("spec")) == spec
    data = toys.data_of(spec)
    assert outer == {
        "result_version": RESULT_VERSION,
        "data_hash": data.hash,
        "threads": 1,
        "device": "cpu",
        "metric": "accuracy",
    }


def test_steps_are_written_with_the_learning_rate_and_the_momenta_they_were_taken_with(
    finished: tuple[Spec, Path],
) -> None:
    _, path = finished
    found = rows(path / "steps.jsonl")
    assert [row["step"] for row in found] == list(range(1, EPOCHS * STEPS + 1))
    assert [row["epoch"] for row in found] == [0] * STEPS + [1] * STEPS
    own = {f"m{i}/{name}" for i in (1, 2) for name in ("beta", "R", "Q", "rho", "gain")}
    unmeasured = {"m1/unmeasured", "m2/unmeasured"}
    for done, row in enumerate(found):
        assert set(row) == {"step", "epoch", "values"}
        values = row["values"]
        assert set(values) == {"lr", "loss"} | own | unmeasured
        cosine = 0.01 * (1 + math.cos(math.pi * done / (EPOCHS * STEPS))) / 2
        assert values["lr"] == pytest.approx(cosine, rel=1e-12)
        assert 0.7 <= values["m1/beta"] <= 0.99
    assert found[0]["values"]["m1/beta"] == 0.9  # nothing is known of drift yet


def test_every_epoch_is_judged_on_both_splits_and_probed_at_the_end(
    finished: tuple[Spec, Path],
) -> None:
    _, path = finished
    found = rows(path / "evals.jsonl")
    whole = {"accuracy", "macro_f1", "map", "ece", "loss", "modality_gap"}
    whole |= {"m1/accuracy", "m2/accuracy"}
    expected = [(epoch, split) for epoch in range(EPOCHS) for split in ("valid", "test")]
    assert [(row["epoch"], row["split"]) for row in found] == expected
    for row in found:
        probes = {"m1/probe", "m2/probe"} if row["epoch"] == EPOCHS - 1 else set()
        assert set(row["values"]) == whole | probes
        assert row["step"] == (row["epoch"] + 1) * STEPS
        assert all(type(value) is float for value in row["values"].values())


@pytest.mark.parametrize("modalities", [2, 3])
def test_what_it_cost_is_counted(tmp_path: Path, modalities: int) -> None:
    *epochs, memory = rows(run(tiny(modalities), tmp_path) / "cost.jsonl")
    for epoch, row in enumerate(epochs):
        assert row.pop("seconds") > 0
        assert row == {
            "attempt": 1,
            "epoch": epoch,
            "steps": STEPS,
            "samples": SAMPLES,
            "forwards": STEPS,  # of training alone; judging is not what the method costs
            "backwards": STEPS,
            "updates": STEPS,
        }
    assert len(epochs) == EPOCHS
    assert memory.pop("peak_bytes") > 0
    assert memory == {"attempt": 1}


def test_where_it_ran_is_written(finished: tuple[Spec, Path]) -> None:
    _, path = finished
    found = json.loads((path / "env.json").read_text())
    assert found["torch"] == torch.__version__
    assert found["attempts"] == found["threads"] == 1
    assert found["device"] == "cpu"
    assert found["started"] <= found["finished"]
    names = {"python", "numpy", "vcmm", "commit", "platform", "cpu", "cores", "host"}
    assert names <= found.keys()


def test_the_sums_are_those_of_the_files(finished: tuple[Spec, Path]) -> None:
    _, path = finished
    sums = json.loads((path / "done").read_text())
    assert sums.keys() == {"spec.json", "steps.jsonl", "evals.jsonl"}
    for name, found in sums.items():
        assert sha256((path / name).read_bytes()).hexdigest() == found


def test_about_four_hundred_steps_of_a_long_run_are_written(tmp_path: Path) -> None:
    spec = tiny(data=toys.source(samples=1604), batch_size=2, epochs=1)
    path = run(spec, tmp_path, checkpoint_every=1e9)
    steps = [row["step"] for row in rows(path / "steps.jsonl")]
    assert steps == [1, *range(2, 803, 2)]


# The same again


def test_a_second_call_touches_nothing(finished: tuple[Spec, Path]) -> None:
    spec, path = finished
    before = snapshot(path.parent)
    told: list[Event] = []
    assert run(spec, path.parent, watch=told.append) == path
    assert [event.kind for event in told] == ["cached"]
    assert snapshot(path.parent) == before


@pytest.mark.slow
def test_two_fresh_processes_write_the_same_bytes(
    finished: tuple[Spec, Path], tmp_path: Path
) -> None:
    spec, path = finished
    code = """
import json, sys
import torch
from vcmm.bench.run import run
from vcmm.bench.spec import Spec
torch.manual_seed(int(sys.argv[3]))  # what a process did before must not matter
torch.rand(int(sys.argv[3]))
run(Spec.from_json(json.loads(sys.argv[1])), sys.argv[2])
"""
    running: list[subprocess.Popen[bytes]] = []
    for salt in ("1", "2"):
        command = [sys.executable, "-c", code, json.dumps(spec.to_json()), tmp_path / salt, salt]
        running.append(subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": salt}))
    assert [process.wait() for process in running] == [0, 0]
    for salt in ("1", "2"):
        assert records(tmp_path / salt / path.name) == records(path)


def test_a_run_does_not_depend_on_what_the_caller_did_to_torch(
    finished: tuple[Spec, Path], tmp_path: Path
) -> None:
    spec, path = finished
    torch.manual_seed(99)
    torch.rand(17)
    assert records(run(spec, tmp_path)) == records(path)


def test_a_run_leaves_torch_as_the_caller_had_it(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    run(tiny(epochs=1), tmp_path, execution=Execution(threads=before[0] + 1))
    after = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    assert after == before
    assert torch.equal(torch.rand(3), expected)


def test_whatever_numbers_depend_on_is_part_of_the_name(
    finished: tuple[Spec, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, path = finished
    from vcmm.bench import spec as module

    data = toys.data_of(spec)
    names = {
        module.run_hash(spec, data.hash),
        module.run_hash(spec, data.hash, Execution(threads=2)),
        module.run_hash(spec, data.hash, Execution(device="cuda")),
        module.run_hash(spec, "another"),
        module.run_hash(tiny(controller="vcmm", seed=4), data.hash),
    }
    monkeypatch.setattr(module, "RESULT_VERSION", RESULT_VERSION + 1)
    names.add(module.run_hash(spec, data.hash))
    assert len(names) == 6
    assert path.name in names


# Interrupted


class Interrupted(BaseException):
    """Ctrl-C at a moment that a test chooses."""


def interrupted_at(moment: int) -> Callable[[Event], None]:
    """Watches, and interrupts at that event."""
    seen = count()

    def watch(event: Event) -> None:
        if next(seen) == moment:
            raise Interrupted

    return watch


def run_in_pieces(spec: Spec, root: Path, piece: int, **settings: Any) -> tuple[Path, int]:
    """Interrupted after every so many events, in each process-like attempt, until it is done."""
    for attempt in count(1):
        assert attempt < 100, "it does not get on"
        try:
            return run(spec, root, watch=interrupted_at(piece), **settings), attempt
        except Interrupted:
            pass
    raise AssertionError


@pytest.fixture
def final_states(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The last checkpoint of every run, taken before it goes."""
    states: list[dict[str, Any]] = []
    publish = folder.publish

    def spy(root: Path, name: str, work: Path) -> Path:
        states.append(torch.load(work / "checkpoint.pt", weights_only=True))
        return publish(root, name, work)

    monkeypatch.setattr(folder, "publish", spy)
    return states


VARIED = [
    *({"controller": name} for name in CONTROLLERS),
    *({"optimizer": Choice(name)} for name in OPTIMIZERS),
    *({"schedule": Choice(name)} for name in SCHEDULES),
    {"schedule": Choice("one_cycle", momenta=(0.8, 0.95))},
    {"optimizer": "sgd", "schedule": "step", "kind": "sequence"},
    {"optimizer": "adamw", "kind": "image", "modalities": 3},
]


@pytest.mark.parametrize("axes", VARIED, ids=str)
def test_interrupted_again_and_again_it_ends_bitwise_the_same(
    tmp_path: Path, axes: dict[str, Any], final_states: list[dict[str, Any]]
) -> None:
    spec = tiny(**{"controller": "vcmm", **axes})
    assert_resumes(spec, tmp_path, final_states)


class Dropping(MLP):
    """Draws from torch's own randomness in every step."""

    def __init__(self, form: Form, *, width: int = 4, outputs: int = 8) -> None:
        super().__init__(form, width=width, outputs=outputs)
        self.layers.append(nn.Dropout(0.3))


class Restless(Method):
    """Uses every seam that has something to remember."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.adopted = nn.Linear(1, 1)
        self.adopt(self.adopted)
        self.apart = nn.BatchNorm1d(1)
        self.others["apart"] = torch.optim.Adam(self.apart.parameters(), lr=0.1)
        self.register_buffer("level", torch.zeros(()))

    def begin_epoch(self, epoch: int, data: Data) -> None:
        rows = torch.randperm(toys.SAMPLES, generator=self.generator("look"))[:8]
        seen = [output.fused.square().mean() for output, _ in self.survey(data, rows)]
        self.level = 0.5 * self.level + torch.stack(seen).mean()

    def sampler(self, epoch: int) -> Tensor | None:
        return torch.randperm(toys.SAMPLES - 10, generator=self.generator("order"))

    def loss(self, output: Output, batch: Batch) -> Terms:
        fused = self.criterion(output.fused, batch.target)
        learned = self.apart(self.adopted(output.fused.mean(dim=1, keepdim=True)))
        return {"fused": fused, "learned": 0.1 * self.level * learned.square().mean()}

    def modulate(self, output: Output, batch: Batch) -> None:
        for parameter in self.model.parameters():
            noise = torch.randn(parameter.shape, generator=self.generator("noise"))
            parameter.grad = parameter.grad + 0.01 * noise

    def update(self, output: Output, batch: Batch) -> None:
        super().update(output, batch)
        self.others["apart"].step()
        self.others["apart"].zero_grad()


def test_randomness_and_the_memory_of_a_method_survive_interruptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, final_states: list[dict[str, Any]]
) -> None:
    monkeypatch.setitem(ENCODERS, "dropping", Dropping)
    monkeypatch.setitem(METHODS, "restless", Restless)
    spec = tiny(encoder="dropping", method="restless", controller="vcmm", epochs=3)
    assert_resumes(spec, tmp_path, final_states)


def assert_resumes(spec: Spec, tmp_path: Path, final_states: list[dict[str, Any]]) -> None:
    """In pieces it is bitwise what it is as a whole."""
    whole = run(spec, tmp_path / "whole", checkpoint_every=0)
    # Event 0 is "started"; the step that event 3 tells of is not saved yet, and so is lost again.
    pieces, attempts = run_in_pieces(spec, tmp_path / "pieces", 3, checkpoint_every=0)
    assert attempts > 4
    assert records(pieces) == records(whole)
    one, other = final_states
    told = ("attempt", "started", "seconds", "sizes")
    for state in final_states:
        for name in told:
            state.pop(name)
    assert toys.differences(one, other) == []


def test_interrupted_before_the_first_and_after_the_last_step(tmp_path: Path) -> None:
    spec = tiny(controller="vcmm")
    whole = run(spec, tmp_path / "whole")
    last = EPOCHS * (STEPS + 1)
    for moment in (0, 1, STEPS, STEPS + 1, STEPS + 2, last - 1, last):
        root = tmp_path / str(moment)
        with pytest.raises(Interrupted):
            run(spec, root, watch=interrupted_at(moment), checkpoint_every=0)
        path = run(spec, root)
        assert records(path) == records(whole)
        attempts = json.loads((path / "env.json").read_text())["attempts"]
        # Nothing was saved before the first step was told of.
        assert attempts == (1 if moment < 2 else 2)


def test_without_a_checkpoint_it_begins_anew(tmp_path: Path) -> None:
    spec = tiny(controller="vcmm")
    whole = run(spec, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(spec, tmp_path / "pieces", watch=interrupted_at(6), checkpoint_every=1e9)
    assert not (tmp_path / "pieces" / ".work" / whole.name / "checkpoint.pt").exists()
    told: list[Event] = []
    path = run(spec, tmp_path / "pieces", watch=told.append)
    assert (told[0].kind, told[0].step) == ("started", 0)
    assert records(path) == records(whole)


def test_cost_of_an_interrupted_run_is_counted_once(tmp_path: Path) -> None:
    path, _ = run_in_pieces(tiny(), tmp_path, 3, checkpoint_every=0)
    *epochs, memory = rows(path / "cost.jsonl")
    for row in epochs:
        assert [row[name] for name in ("steps", "samples", "updates")] == [STEPS, SAMPLES, STEPS]
        assert row["forwards"] == row["backwards"] == STEPS
    attempts = json.loads((path / "env.json").read_text())["attempts"]
    assert memory["attempt"] == attempts == epochs[-1]["attempt"] > epochs[0]["attempt"] > 1


def test_what_is_left_behind_of_an_attempt_does_not_get_into_the_next_one(tmp_path: Path) -> None:
    """The exception holds on to the first attempt's frames, so to its files, until the end."""
    spec = tiny(controller="vcmm")
    whole = run(spec, tmp_path / "whole")
    with pytest.raises(Interrupted) as held:
        run(spec, tmp_path / "again", watch=interrupted_at(7), checkpoint_every=1e9)

    def let_go(event: Event) -> None:
        nonlocal held
        if event.step == 3:
            del held

    assert records(run(spec, tmp_path / "again", watch=let_go)) == records(whole)


def test_a_checkpoint_holds_nothing_that_loading_could_execute(tmp_path: Path) -> None:
    spec = tiny(controller="frozen", schedule=Choice("one_cycle", momenta=(0.8, 0.95)))
    with pytest.raises(Interrupted):
        run(spec, tmp_path, watch=interrupted_at(4), checkpoint_every=0)
    (work,) = (path for path in (tmp_path / ".work").iterdir() if path.is_dir())
    state = torch.load(work / "checkpoint.pt", weights_only=True)
    assert state["progress"]["step"] == 3
    assert not (work / "checkpoint.tmp").exists()


# Failing


def test_a_failing_run_says_why_and_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny(controller="vcmm")
    whole = run(spec, tmp_path / "whole")
    update, taken = Method.update, count(1)

    def failing(*args: Any) -> None:
        if next(taken) == 6:
            raise OSError("the disk is full of sand")
        update(*args)

    with monkeypatch.context() as patched:
        patched.setattr(Method, "update", failing)
        with pytest.raises(OSError, match="full of sand"):
            run(spec, tmp_path / "failing", checkpoint_every=0)
    work = tmp_path / "failing" / ".work" / whole.name
    text = (work / "error.txt").read_text()
    assert text.startswith("Traceback")
    assert "OSError: the disk is full of sand" in text
    assert json.loads((work / "spec.json").read_text()) == json.loads(
        (whole / "spec.json").read_text()
    )
    assert not folder.is_done(tmp_path / "failing", whole.name)
    told: list[Event] = []

    def watch(event: Event) -> None:
        told.append(event)
        # It has not failed while it is running again.
        assert event.kind != "started" or not (work / "error.txt").exists()

    path = run(spec, tmp_path / "failing", watch=watch)
    assert (told[0].kind, told[0].step) == ("started", 5)
    assert records(path) == records(whole)
    assert sorted(os.listdir(path)) == FILES


def test_a_model_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    spec = tiny(encoder=Choice("conv2d"))
    with pytest.raises(ValueError, match=r"m1.*takes a modality of kind image"):
        run(spec, tmp_path)
    (error,) = (tmp_path / ".work").glob("*/error.txt")
    assert "takes a modality of kind image" in error.read_text()
    assert (error.parent / "spec.json").exists()


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("lr", [1e6, 1e25])
def test_a_training_that_diverges_is_recorded_in_json(
    tmp_path: Path, controller: str, optimizer: str, lr: float
) -> None:
    spec = tiny(
        controller=controller,
        optimizer=Choice(optimizer, lr=lr),
        schedule="constant",
        kind="vector",
    )
    path = run(spec, tmp_path, checkpoint_every=1e9)
    steps, evals = rows(path / "steps.jsonl"), rows(path / "evals.jsonl")
    assert len(steps) == EPOCHS * STEPS
    assert len(evals) == EPOCHS * 2
    losses = [row["values"].get("loss", math.inf) for row in steps]
    assert max(losses) > 1e3, "it has not diverged, so nothing was tested"
    for row in [*steps, *evals]:
        assert all(math.isfinite(value) for value in row["values"].values())


def test_a_split_full_of_nan_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*, samples: int = 50) -> Data:
        return toys.poisoned(toys.data_of(tiny()), "valid", "test")

    monkeypatch.setitem(DATA, "poisoned", load)
    path = run(tiny(data=Choice("poisoned")), tmp_path)
    for row in rows(path / "evals.jsonl"):
        assert "loss" not in row["values"]


# Who watches


def test_events_tell_the_whole_story(tmp_path: Path) -> None:
    spec = tiny()
    told: list[Event] = []
    path = run(spec, tmp_path, watch=told.append)
    epoch = ["step"] * STEPS + ["epoch"]
    assert [event.kind for event in told] == ["started", *epoch * EPOCHS, "done"]
    assert {event.run for event in told} == {path.name}
    assert all(event.spec == spec.to_json() for event in told)
    assert all(event.epochs == EPOCHS for event in told)
    assert all(event.steps == EPOCHS * STEPS for event in told)
    shown = [event.values for event in told if event.kind == "epoch"]
    valid = [row["values"] for row in rows(path / "evals.jsonl") if row["split"] == "valid"]
    assert shown == valid
    steps = [event.values for event in told if event.kind == "step"]
    assert steps == [row["values"] for row in rows(path / "steps.jsonl")]


def test_an_encoder_given_to_one_modality_is_used_for_it(tmp_path: Path) -> None:
    spec = tiny(encoders={"m2": Choice("mlp", width=4, depth=3, outputs=8)})
    training = toys.built(spec)
    layers = {m: len(e.layers) for m, e in training.method.model.encoders.items()}
    assert all(isinstance(e, MLP) for e in training.method.model.encoders.values())
    assert layers == {"m1": 5, "m2": 7}
    assert run(spec, tmp_path).name != run(tiny(), tmp_path).name
