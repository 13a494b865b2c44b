"""No method sees anything but train: the other splits could be poisoned, and nobody would notice.

Beyond that, the order of samples is the same for all methods that do not choose it themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vcmm.bench import judge
from vcmm.bench.data import DATA
from vcmm.bench.method import Method
from vcmm.bench.methods import METHODS
from vcmm.bench.run import run
from vcmm.bench.spec import Choice
from vcmm.bench.types import Batch, Data

from .. import toys
from ..toys import built, data_of, events, losses, mined, poisoned, tiny, trained
from .cases import every_method, every_number


@every_method
@every_number
def test_it_never_touches_a_row_of_valid_or_test(name: str, modalities: int) -> None:
    spec = tiny(modalities, method=name, controller="vcmm")
    data = mined(data_of(spec), "valid", "test")
    training, steps = trained(spec, data)
    assert steps == trained(spec)[1]
    for split in ("valid", "test"):
        with pytest.raises(AssertionError, match="must not be looked at"):
            judge.evaluate(training.method, training.data, split)


@every_method
def test_it_is_handed_train_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny(method=name)
    training = built(spec)
    handed: list[Data] = []
    begin_epoch = training.method.begin_epoch

    def spy(epoch: int, data: Data) -> None:
        assert epoch == len(handed)
        handed.append(data)
        begin_epoch(epoch, data)

    training.method.begin_epoch = spy
    losses(events(training, spec))
    assert [set(data.splits) for data in handed] == [{"train"}] * spec.epochs


@every_method
def test_the_record_of_its_steps_does_not_depend_on_valid_and_test(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*, poison: bool) -> Data:
        data = data_of(tiny())
        return poisoned(data, "valid", "test") if poison else data

    monkeypatch.setitem(DATA, "suspect", load)

    def records(poison: bool) -> tuple[bytes, bytes]:
        data = Choice("suspect", poison=poison)
        path = run(tiny(data=data, method=name, controller="vcmm"), tmp_path)
        return (path / "steps.jsonl").read_bytes(), (path / "evals.jsonl").read_bytes()

    steps, evals = records(poison=False)
    poisoned_steps, poisoned_evals = records(poison=True)
    assert steps == poisoned_steps
    assert evals != poisoned_evals


SHUFFLED = sorted(name for name in METHODS if METHODS[name].sampler is Method.sampler)


@pytest.mark.parametrize("name", SHUFFLED)
def test_its_samples_come_in_the_order_of_joint_training(name: str) -> None:
    def order(method: str) -> list[list[int]]:
        spec = tiny(method=method)
        training = built(spec)
        seen: list[list[int]] = []
        step = training.method.step

        def spy(batch: Batch) -> Any:
            seen.append(batch.index.tolist())
            return step(batch)

        training.method.step = spy
        losses(events(training, spec))
        return seen

    joint, found = order("joint"), order(name)
    assert found == joint
    for epoch in (found[: toys.STEPS], found[toys.STEPS :]):
        assert sorted(index for rows in epoch for index in rows) == list(range(toys.SAMPLES))
