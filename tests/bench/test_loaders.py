"""Threads that decode and augment ahead change nothing: not a byte of a record, not a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vcmm.bench import judge
from vcmm.bench.build import build
from vcmm.bench.data import load
from vcmm.bench.events import Event
from vcmm.bench.execution import Execution
from vcmm.bench.run import run
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.train import fit
from vcmm.bench.types import Data

from . import toys
from .media import small
from .test_ahead import loaders

pytestmark = pytest.mark.slow

BATCH, STEPS = 4, 4  # 16 clips to train on
Seen = list[tuple[list[int], dict[str, Tensor]]]  # rows and inputs of batches


@pytest.fixture(scope="module", autouse=True)
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small.cremad(tmp_path_factory.mktemp("loaders"), patch, "stft-3s")
        yield


def spec(method: str = "joint", controller: str = "vcmm", seed: int = 0) -> Spec:
    return Spec(
        data=Choice("cremad", side=small.SIDE, size=small.SIZE, frames=2, pick="random"),
        encoder=Choice("resnet18", width=4),
        method=Choice(method),
        controller=Choice(controller),
        epochs=2,
        batch_size=BATCH,
        seed=seed,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The records of a run without loaders."""
    path = run(spec(), tmp_path_factory.mktemp("whole"), execution=Execution(loaders=0))
    return toys.records(path)


@pytest.mark.parametrize("number", [1, 3])
def test_records_are_the_same_bytes(whole: dict[str, bytes], tmp_path: Path, number: int) -> None:
    assert toys.records(run(spec(), tmp_path, execution=Execution(loaders=number))) == whole
    assert not loaders()


class Interrupted(BaseException):
    """As a kill would be: nobody catches it."""


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 0), (0, 1)])
def test_in_the_middle_of_an_epoch_it_goes_on_to_the_same_bytes(
    whole: dict[str, bytes], tmp_path: Path, before: int, after: int
) -> None:
    def watch(event: Event) -> None:
        if event.kind == "step" and event.step == STEPS + 2:
            raise Interrupted

    with pytest.raises(Interrupted) as error:
        run(
            spec(),
            tmp_path,
            execution=Execution(loaders=before),
            watch=watch,
            checkpoint_every=0,
        )
    assert error.value.__traceback__ is not None  # whoever looks at it keeps no thread alive
    assert not loaders()
    told: list[Event] = []
    path = run(spec(), tmp_path, execution=Execution(loaders=after), watch=told.append)
    assert (told[0].epoch, told[0].step) == (1, STEPS + 1)
    assert toys.records(path) == whole


def seen(wanted: Spec, number: int = 2) -> Seen:
    """The rows of every batch that a method trains on, and what they look like."""
    training = build(wanted, load("cremad", **wanted.data.options))
    found: Seen = []
    training.method.watchers.append(lambda _, b: found.append((b.index.tolist(), b.inputs)))
    told = fit(
        training.method,
        training.data,
        training.schedule,
        epochs=wanted.epochs,
        batch_size=BATCH,
        seed=wanted.seed,
        loaders=number,
    )
    assert len(list(told)) == 2 * (STEPS + 1)
    return found


def same(a: Seen, b: Seen) -> bool:
    assert [rows for rows, _ in a] == [rows for rows, _ in b]
    return not toys.differences([inputs for _, inputs in a], [inputs for _, inputs in b])


def test_every_method_sees_the_same_augmented_samples() -> None:
    joint = seen(spec(controller="none"))
    for method, controller in (("joint", "vcmm"), ("multi_loss", "none"), ("ogm", "none")):
        assert same(seen(spec(method, controller)), joint), method
    assert same(seen(spec(controller="none"), 0), joint)
    # What is drawn is drawn: another epoch or another seed shows the same row otherwise.
    (first, early), *_ = joint
    rows, late = next(one for one in joint[STEPS:] if first[0] in one[0])
    place = rows.index(first[0])
    assert not torch.equal(early["visual"][0], late["visual"][place])
    assert torch.equal(early["audio"][0], late["audio"][place])  # it is not augmented
    other = seen(spec(controller="none", seed=1))
    assert [rows for rows, _ in other] != [rows for rows, _ in joint]


def test_who_judges_sees_every_sample_once_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    training = build(spec(), load("cremad", **spec().data.options))
    asked: list[tuple[str, int | None]] = []
    batch = Data.batch

    def noted(self: Data, split: str, index: Tensor, draw: int | None = None):  # type: ignore[no-untyped-def]
        asked.append((threading.current_thread().name, draw))
        return batch(self, split, index, draw)

    monkeypatch.setattr(Data, "batch", noted)
    monkeypatch.setattr(judge, "BYTES", 1)  # a sample at a time
    alone = judge.evaluate(training.method, training.data, "test")
    assert {name for name, _ in asked} == {"MainThread"}
    asked.clear()
    assert judge.evaluate(training.method, training.data, "test", 3) == alone
    assert len(asked) == len(training.data.splits["test"])
    assert all(name.startswith("batches") and draw is None for name, draw in asked)


def test_a_sample_that_cannot_be_read_fails_the_run_and_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Data.batch

    def broken(self: Data, split: str, index: Tensor, draw: int | None = None):  # type: ignore[no-untyped-def]
        if draw is not None and threading.current_thread().name.startswith("batches"):
            raise OSError("the disk is gone")
        return batch(self, split, index, draw)

    monkeypatch.setattr(Data, "batch", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        run(spec(), tmp_path, execution=Execution(loaders=2))
    assert not loaders()
    (story,) = tmp_path.glob(".work/*/error.txt")
    assert "the disk is gone" in story.read_text()
