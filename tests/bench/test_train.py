"""The loop: what it tells, what a method gets to see, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcmm.bench.build import Training
from vcmm.bench.method import Method
from vcmm.bench.spec import Spec
from vcmm.bench.train import (
    EpochEnded,
    Progress,
    Stepped,
    batches,
    require_whole_groups,
    steps_per_epoch,
)
from vcmm.bench.types import Batch, Data

from .toys import BATCH, SAMPLES, STEPS, built, data_of, differences, events, source, tiny, trained


@pytest.fixture
def spec() -> Spec:
    return tiny(controller="vcmm", schedule="cosine")


def visited(training: Training, spec: Spec) -> list[list[int]]:
    """The rows of each batch."""
    seen: list[list[int]] = []
    step = training.method.step

    def spy(batch: Batch) -> Any:
        seen.append(batch.index.tolist())
        return step(batch)

    training.method.step = spy
    for _ in events(training, spec):
        pass
    return seen


# What is told


def test_every_step_and_every_epoch_is_told_with_the_progress_of_that_moment(spec: Spec) -> None:
    progress = Progress()
    told: list[tuple[type, int, int]] = []
    for event in events(built(spec), spec, progress):
        told.append((type(event), event.epoch, event.step))
        if isinstance(event, Stepped):
            assert (progress.epoch, progress.step) == (event.epoch, event.step)
            assert progress.batch == event.step - event.epoch * STEPS
            assert progress.order is not None
            assert sorted(progress.order.tolist()) == list(range(SAMPLES))
        else:  # the next epoch has not begun
            assert (progress.epoch, progress.batch) == (event.epoch + 1, 0)
            assert progress.order is None
    first = [(Stepped, 0, step) for step in range(1, STEPS + 1)]
    second = [(Stepped, 1, step) for step in range(STEPS + 1, 2 * STEPS + 1)]
    assert told == [*first, (EpochEnded, 0, STEPS), *second, (EpochEnded, 1, 2 * STEPS)]


def test_a_step_is_told_with_its_own_loss_rate_and_samples(spec: Spec) -> None:
    training = built(spec)
    rates: list[float] = []
    used: list[float] = []
    hook = training.method.optimizer.register_step_pre_hook(
        # Before the controller's, which writes the momenta.
        lambda optimizer, args, kwargs: used.append(optimizer.param_groups[0]["lr"])
    )
    training.method.optimizer._optimizer_step_pre_hooks.move_to_end(hook.id, last=False)
    for event in events(training, spec):
        if isinstance(event, Stepped):
            rates.append(event.lr)
            assert event.samples == (SAMPLES % BATCH if event.step % STEPS == 0 else BATCH)
            assert event.values.keys() == {"loss"}
            assert not event.values["loss"].requires_grad
    assert rates == used
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 0.01
    assert len(set(rates)) == len(rates)


def test_nothing_happens_until_it_is_asked_for(spec: Spec) -> None:
    training = built(spec)
    before = [parameter.clone() for parameter in training.method.parameters()]
    loop = events(training, spec)
    assert training.method.counts == {}
    assert all(map(torch.equal, before, training.method.parameters()))
    next(loop)
    assert training.method.counts["updates"] == 1
    assert not all(map(torch.equal, before, training.method.parameters()))


def test_it_goes_on_from_where_progress_says(spec: Spec) -> None:
    whole, expected = trained(spec)
    for stop in range(2 * (STEPS + 1) + 1):
        progress = Progress()
        training = built(spec)
        loop = events(training, spec, progress)
        told = [event for _, event in zip(range(stop), loop, strict=False)]
        told += events(training, spec, progress)  # another generator, the same training
        values = [e.values["loss"].item() for e in told if isinstance(e, Stepped)]
        assert values == [row["loss"] for row in expected]
        assert differences(training.method.state_dict(), whole.method.state_dict()) == []


def test_a_training_that_is_over_tells_nothing(spec: Spec) -> None:
    training = built(spec)
    progress = Progress()
    list(events(training, spec, progress))
    assert list(events(training, spec, progress)) == []


# What a method gets to see


class Watchful(Method):
    """Notes what it is given."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.given: list[Data] = []
        self.asked: list[int] = []

    def begin_epoch(self, epoch: int, data: Data) -> None:
        assert self.training
        assert epoch == len(self.given)
        self.given.append(data)

    def sampler(self, epoch: int) -> Tensor | None:
        assert epoch == len(self.asked) == len(self.given) - 1
        self.asked.append(epoch)
        return None

    def step(self, batch: Batch) -> dict[str, Tensor]:
        assert self.training
        return super().step(batch)


def with_method(kind: type[Method], spec: Spec, data: Data | None = None) -> Training:
    """A training of another method."""
    training = built(spec, data)
    old = training.method
    method = kind(old.model, old.optimizer)
    return Training(method, training.schedule, None, training.data, training.steps)


def test_a_method_is_given_train_and_nothing_else(spec: Spec) -> None:
    spec = tiny()
    training = with_method(Watchful, spec)
    for event in events(training, spec):
        if isinstance(event, EpochEnded):
            training.method.eval()  # as whoever consumes events may do
    method = training.method
    assert isinstance(method, Watchful)
    assert method.asked == [0, 1]
    for data in method.given:
        assert set(data.splits) == {"train"}
        assert data.splits["train"] is training.data.splits["train"]
        for split in ("valid", "test"):
            with pytest.raises(KeyError):
                data.batch(split, torch.arange(2))
    assert set(training.data.splits) == {"train", "valid", "test"}


class Choosy(Method):
    """Visits the even rows only, backwards."""

    def sampler(self, epoch: int) -> Tensor | None:
        return torch.arange(0, SAMPLES, 2).flip(0)


def test_a_method_may_choose_the_order() -> None:
    spec = tiny()
    seen = visited(with_method(Choosy, spec), spec)
    assert [index for rows in seen[:2] for index in rows] == list(range(SAMPLES - 2, -1, -2))
    assert len(seen) == 2 * 2


# The order of samples


def test_every_epoch_visits_every_sample_once_in_an_order_of_its_own() -> None:
    spec = tiny()
    seen = visited(built(spec), spec)
    epochs = [[index for rows in part for index in rows] for part in (seen[:STEPS], seen[STEPS:])]
    assert all(sorted(order) == list(range(SAMPLES)) for order in epochs)
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])


def test_the_order_is_that_of_the_seed_whatever_is_trained() -> None:
    def order(seed: int, modalities: int = 2, **axes: Any) -> list[list[int]]:
        spec = tiny(modalities, seed=seed, **axes)
        return visited(built(spec), spec)

    expected = order(3)
    assert order(3, method="ensemble", controller="vcmm") == expected
    assert order(3, modalities=6, fusion="concat", optimizer="sgd") == expected
    assert order(3, kind="image", method="unimodal") == expected
    assert order(4) != expected


def test_a_last_batch_of_one_sample_is_left_out() -> None:
    spec = tiny(data=source(samples=2 * BATCH + 1), kind="sequence")
    seen = visited(built(spec), spec)
    assert [len(rows) for rows in seen] == [BATCH] * 4
    first, second = ({index for rows in part for index in rows} for part in (seen[:2], seen[2:]))
    assert len(first) == len(second) == 2 * BATCH
    assert first != second, "it is not the same sample that is left out in every epoch"


@pytest.mark.parametrize(
    ("samples", "size", "sizes"),
    [
        (4, 2, [2, 2]),
        (5, 2, [2, 2]),
        (5, 3, [3, 2]),
        (3, 5, [3]),
        (1, 5, [1]),
        (6, 5, [5]),
        (7, 5, [5, 2]),
    ],
)
def test_batches(samples: int, size: int, sizes: list[int]) -> None:
    order = torch.arange(samples).flip(0)
    made = batches(order, size)
    assert [len(rows) for rows in made] == sizes
    assert torch.cat(made).tolist() == order[: sum(sizes)].tolist()
    assert steps_per_epoch(samples, size) == len(sizes)


def test_a_schedule_reaches_its_end_with_the_last_step() -> None:
    """So the number of steps that it was made for is the number that was taken."""
    spec = tiny(data=source(samples=2 * BATCH + 1), schedule="cosine")
    training = built(spec)
    steps = sum(isinstance(event, Stepped) for event in events(training, spec))
    assert steps == training.steps == 4
    assert training.schedule.last_epoch == steps
    assert training.method.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-15)


# Who trains which parameter


class Forgetful(Method):
    """Has a module that nobody trains."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.extra = nn.Linear(2, 2)


class Careful(Forgetful):
    """Hands it to the optimizer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.adopt(self.extra, self.model.modalities[0])


class Late(Forgetful):
    """Hands it over, but grows another one on the way and forgets that."""

    def begin_epoch(self, epoch: int, data: Data) -> None:
        if epoch == 0:
            self.adopt(self.extra)
        else:
            self.more = nn.Linear(1, 1, bias=False)


class Apart(Forgetful):
    """Trains it with an optimizer of its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.others["extra"] = torch.optim.SGD(self.extra.parameters(), lr=0.1)


class Still(Forgetful):
    """Does not train it at all, and says so."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.extra.requires_grad_(False)


class Greedy(Careful):
    """Hands it over twice."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.others["again"] = torch.optim.SGD(self.extra.parameters(), lr=0.1)


def test_a_parameter_that_nobody_trains_is_an_error_before_the_first_step() -> None:
    spec = tiny()
    training = with_method(Forgetful, spec)
    with pytest.raises(RuntimeError, match=r"Forgetful: parameter 'extra\.weight' is in 0 groups"):
        next(iter(events(training, spec)))
    assert training.method.counts == {}
    with pytest.raises(RuntimeError, match=r"self\.adopt\(module\)"):
        require_whole_groups(training.method)


def test_a_parameter_that_is_trained_twice_is_an_error() -> None:
    spec = tiny()
    with pytest.raises(RuntimeError, match=r"'extra\.weight' is in 2 groups.*more than once"):
        next(iter(events(with_method(Greedy, spec), spec)))


@pytest.mark.parametrize("kind", [Careful, Apart, Still])
def test_a_parameter_in_one_group_or_frozen_is_fine(kind: type[Method]) -> None:
    spec = tiny()
    assert len(list(events(with_method(kind, spec), spec))) == 2 * (STEPS + 1)


def test_it_is_checked_in_every_epoch() -> None:
    spec = tiny()
    loop: Iterator[Any] = iter(events(with_method(Late, spec), spec))
    for _ in range(STEPS + 1):
        next(loop)
    with pytest.raises(RuntimeError, match=r"'more\.weight' is in 0 groups"):
        next(loop)


def test_an_adopted_module_joins_the_group_that_is_there() -> None:
    spec = tiny()
    method = with_method(Careful, spec).method
    assert isinstance(method, Careful)
    groups = {group["modality"]: group["params"] for group in method.optimizer.param_groups}
    assert any(parameter is method.extra.weight for parameter in groups["m1"])
    assert len(method.optimizer.param_groups) == len(built(spec).method.optimizer.param_groups)


def test_data_is_not_copied_or_changed() -> None:
    spec = tiny()
    data = data_of(spec)
    before = {m: x.copy() for m, x in data.splits["train"].inputs.items()}
    trained(spec, data)
    for modality, array in data.splits["train"].inputs.items():
        assert (array == before[modality]).all()
