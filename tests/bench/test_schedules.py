from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from vcmm.bench.schedules import SCHEDULES
from vcmm.bench.spec import Choice
from vcmm.bench.train import Stepped

from . import toys
from .toys import tiny

LR, EPOCHS, STEPS = 0.2, 10, 4
TOTAL = EPOCHS * STEPS


def optimizer(**options: Any) -> Optimizer:
    """Two groups of different rates, so that nothing is true of the first alone."""
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    return torch.optim.Adam(
        [{"params": [first]}, {"params": [second], "lr": LR / 10}], LR, **options
    )


def rates(name: str, **options: Any) -> list[float]:
    """With which every step is taken; of the second group they must be a tenth."""
    made = optimizer()
    schedule = SCHEDULES[name](made, EPOCHS, STEPS, **options)
    found: list[float] = []
    for _ in range(TOTAL):
        first, second = (group["lr"] for group in made.param_groups)
        if not options.get("least"):
            assert second == pytest.approx(first / 10, rel=1e-9, abs=1e-12)
        found.append(first)
        made.step()
        schedule.step()
    return found


def test_constant() -> None:
    assert set(rates("constant")) == {LR}


def test_steps_come_after_whole_epochs() -> None:
    found = rates("step", every=3, factor=0.5)
    expected = [LR * 0.5 ** (step // STEPS // 3) for step in range(TOTAL)]
    assert found == pytest.approx(expected, rel=1e-12)
    assert set(rates("step")) == {LR}  # by default, long after the end
    for every in (0, -1):
        with pytest.raises(ValueError, match=f"step: every is {every}; it must be 1 epoch or more"):
            rates("step", every=every)


@pytest.mark.parametrize("least", [0.0, 0.01])
def test_half_a_cosine(least: float) -> None:
    found = rates("cosine", least=least)
    expected = [
        least + (LR - least) * (1 + math.cos(math.pi * step / TOTAL)) / 2 for step in range(TOTAL)
    ]
    assert found == pytest.approx(expected, rel=1e-9)


def anneal(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


@pytest.mark.parametrize("rise", [0.3, 0.5, 0.0])
def test_one_cycle_goes_up_to_the_rate_and_down_to_next_to_nothing(rise: float) -> None:
    found = rates("one_cycle", rise=rise)
    top = rise * TOTAL - 1
    for step, rate in enumerate(found):
        expected = (
            anneal(LR / 25, LR, step / top)
            if step <= top
            else anneal(LR, LR / 25 / 1e4, (step - top) / (TOTAL - 1 - top))
        )
        assert rate == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert max(found) == pytest.approx(LR, rel=0.01)
    assert found[-1] == pytest.approx(LR / 25 / 1e4)


@pytest.mark.parametrize("rise", [-0.1, 1.0, 1.5, 1 / TOTAL])
def test_a_rise_that_cannot_be_divided_by_is_refused(rise: float) -> None:
    with pytest.raises(ValueError, match="one_cycle: rise is"):
        rates("one_cycle", rise=rise)


@pytest.mark.parametrize("rise", [0.01, 0.3, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_one_cycle_of_a_few_steps_comes_to_its_end(rise: float, steps: int) -> None:
    made = optimizer()
    schedule = SCHEDULES["one_cycle"](made, 1, steps, rise=rise)
    for _ in range(steps):
        made.step()
        schedule.step()


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_momenta_take_the_opposite_way_and_are_what_a_controller_starts_from(name: str) -> None:
    spec = tiny(
        2,
        fusion="concat",
        optimizer=name,
        schedule=Choice("one_cycle", momenta=(0.8, 0.95)),
        controller=Choice("vcmm", warmup=3),
        epochs=3,
    )
    plain = toys.built(
        toys.tiny(2, fusion="concat", optimizer=name, schedule=spec.schedule, epochs=3)
    )
    ours = toys.built(spec)

    def base(training: Any) -> list[float]:
        spelled = [
            group["betas"][0] if "betas" in group else group["momentum"]
            for group in training.method.optimizer.param_groups
        ]
        assert len(set(spelled)) == 1
        return spelled[:1]

    expected, found, controlled = base(plain), base(ours), list[Any]()
    steps = (toys.events(plain, spec), toys.events(ours, spec))
    for one, two in zip(*steps, strict=True):
        if isinstance(one, Stepped) and isinstance(two, Stepped):
            expected += base(plain)
            found += base(ours)
            controlled.append(ours.method.optimizer.param_groups[0].get("vcmm_beta"))
    assert expected == found
    assert expected[0] == 0.95
    assert min(expected) == pytest.approx(0.8, abs=0.02)
    # In its warm-up the controller keeps the base, which is the one of that very step.
    warm = [beta for beta in controlled[:3] if beta is not None]
    assert warm == pytest.approx(found[: len(warm)])
    assert controlled[-1] != pytest.approx(found[len(controlled) - 1], rel=1e-6)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_rate_never_carries_a_controllers_factor(name: str, optimizer: str) -> None:
    schedule = Choice("step", every=1) if name == "step" else Choice(name)
    found: list[list[list[float]]] = []
    for controller in ("none", "vcmm"):
        spec = tiny(2, optimizer=optimizer, schedule=schedule, controller=controller, epochs=3)
        training = toys.built(spec)
        seen = [
            [group["lr"] for group in training.method.optimizer.param_groups]
            for event in toys.events(training, spec)
            if isinstance(event, Stepped)
        ]
        found.append(seen)
    assert found[0] == found[1]
    assert len({rate for row in found[0] for rate in row}) > (name != "constant")


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_schedule_resumes_from_what_is_safe_to_load(name: str, tmp_path: Any) -> None:
    options = {"momenta": (0.8, 0.95)} if name == "one_cycle" else {}
    one, two = optimizer(), optimizer()
    first, second = (SCHEDULES[name](made, EPOCHS, STEPS, **options) for made in (one, two))
    for _ in range(17):
        one.step()
        first.step()
    state = {"schedule": first.state_dict(), "optimizer": one.state_dict()}
    torch.save(state, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    two.load_state_dict(state["optimizer"])
    second.load_state_dict(state["schedule"])
    for _ in range(TOTAL - 17):
        for made, schedule in ((one, first), (two, second)):
            made.step()
            schedule.step()
        for a, b in zip(one.param_groups, two.param_groups, strict=True):
            assert (a["lr"], a["betas"]) == (b["lr"], b["betas"])
