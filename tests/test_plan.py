"""A step that was worked out at its observation is the step that would be taken without that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from vcmm import VCMM, Fixed, Frozen, Kalman, MomentumController, Policy, modal_groups
from vcmm.step import Step

MODALITIES = ("audio", "video")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda groups: torch.optim.Adam(groups, lr=1e-2, fused=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1),
    "adamw without decay": lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=1e-2),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, weight_decay=1e-3),
}
POLICIES: dict[str, Callable[[], Policy]] = {
    "kalman": Kalman,
    "fixed": lambda: Fixed(audio=0.95, video=0.8),
    "frozen": lambda: Frozen(Kalman(), after=4, average=2),
    "warm": lambda: Kalman(warmup=3),
}


class Loop:
    """A training of two small networks, the same one whenever it is made."""

    def __init__(self, optimizer: str, policy: str) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleDict(
            {m: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)) for m in MODALITIES}
        ).double()
        self.optimizer = OPTIMIZERS[optimizer](modal_groups(self.model, **self.model))
        self.controller = MomentumController(self.optimizer, POLICIES[policy]())
        self.chance = torch.Generator().manual_seed(1)

    def observe(self) -> None:
        target = torch.randint(3, (8,), generator=self.chance)
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        loss = torch.zeros(())
        for modality, network in self.model.items():
            x = torch.randn(8, 4, generator=self.chance, dtype=torch.float64)
            h = network[:2](x)
            seen[modality] = (h, network[2](h))
            loss = loss + nn.functional.cross_entropy(seen[modality][1], target)
        loss.backward()
        self.controller.observe(target, **seen)

    def result(self) -> list[float]:
        values = [p.detach().flatten() for p in self.model.parameters()]
        return [*torch.cat(values).tolist(), *self.controller.metrics().values()]


def nothing(loop: Loop) -> None:
    pass


def other_rate(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.7 * group["lr"]


def other_base(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (0.85, group["betas"][1])
        else:
            group["momentum"] = 0.85


def other_decay(loop: Loop) -> None:
    """Also where there was none, so that nothing was to be written for it."""
    for group in loop.optimizer.param_groups:
        group["weight_decay"] = 0.05 + group["weight_decay"] / 2


def other_setting(loop: Loop) -> None:
    policy = loop.controller.policy
    if isinstance(policy, Fixed):
        policy.betas["audio"] = 0.7


def lost_gradient(loop: Loop) -> None:
    loop.model["audio"][0].bias.grad = None


def lost_modality(loop: Loop) -> None:
    for parameter in loop.model["video"].parameters():
        parameter.grad = None


def cleared_state(loop: Loop) -> None:
    loop.optimizer.state.clear()


def cleared_entry(loop: Loop) -> None:
    loop.optimizer.state.pop(loop.model["audio"][2].weight, None)


def emptied_entry(loop: Loop) -> None:
    loop.optimizer.state[loop.model["video"][0].weight].clear()


def reloaded(loop: Loop) -> None:
    loop.optimizer.load_state_dict(loop.optimizer.state_dict())


def reloaded_controller(loop: Loop) -> None:
    loop.controller.load_state_dict(loop.controller.state_dict())


def second_batch(loop: Loop) -> None:
    loop.observe()


def dropped(loop: Loop) -> None:
    loop.controller.discard()


def attached_again(loop: Loop) -> None:
    loop.controller.detach()
    loop.controller.attach()


def raised(loop: Loop) -> None:
    parameter = loop.model["audio"][0].weight
    kept = parameter.grad
    handle = loop.optimizer.register_step_pre_hook(_fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        loop.optimizer.step()
    handle.remove()
    assert parameter.grad is kept


def _fail(*_: Any) -> None:
    raise RuntimeError("on purpose")


def grown(loop: Loop) -> None:
    """A layer more, which has a gradient from now on."""
    name = f"more{len(loop.optimizer.param_groups)}"
    parameter = nn.Parameter(torch.ones(2, dtype=torch.float64))
    parameter.grad = torch.ones_like(parameter)
    loop.model["audio"].register_parameter(name, parameter)
    loop.optimizer.add_param_group({"params": [parameter], "modality": "audio", "name": name})
    group = loop.optimizer.param_groups[-1]
    first = loop.optimizer.param_groups[0]
    group.update({key: first[key] for key in ("betas", "momentum") if key in first})


def lengthened(loop: Loop) -> None:
    """A parameter more in a group that is there."""
    parameter = nn.Parameter(torch.ones(2, dtype=torch.float64))
    parameter.grad = torch.ones_like(parameter)
    loop.model["audio"].register_parameter(f"more{len(list(loop.model.parameters()))}", parameter)
    loop.optimizer.param_groups[0]["params"].append(parameter)


EVENTS = (
    nothing,
    other_rate,
    other_base,
    other_decay,
    other_setting,
    lost_gradient,
    lost_modality,
    cleared_state,
    cleared_entry,
    emptied_entry,
    reloaded,
    reloaded_controller,
    second_batch,
    dropped,
    attached_again,
    raised,
    grown,
    lengthened,
)


def trained(loop: Loop, events: list[Callable[[Loop], None]]) -> Iterator[list[float]]:
    for event in events:
        loop.observe()
        event(loop)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        yield loop.result()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_ordinary_training_takes_its_steps_as_they_were_planned(
    optimizer: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(optimizer, policy)
    # The first step makes the cohorts, and shows that one batch makes a step.
    for _ in trained(loop, [nothing] * 2):
        pass
    monkeypatch.setattr(Step, "write", _fail)
    for _ in trained(loop, [nothing, other_rate_after(loop)] * 4):
        pass


def other_rate_after(loop: Loop) -> Callable[[Loop], None]:
    """A schedule acts after a step, so before the next observation."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 0.9**step)
    loop.optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return nothing


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@settings(max_examples=15)
@given(events=st.lists(st.sampled_from(EVENTS), min_size=3, max_size=8))
def test_whatever_comes_between_the_step_is_the_one_without_a_plan(
    optimizer: str, policy: str, events: list[Callable[[Loop], None]]
) -> None:
    if optimizer == "sgd":  # torch's SGD keeps no entry that could be emptied before its first step
        events = [nothing, *events]
    events = [nothing, *events]
    planned, plain = Loop(optimizer, policy), Loop(optimizer, policy)
    plain.controller._planned = lambda groups: plain.controller._pool.anticipate(on_device=True)
    for step, (a, b) in enumerate(
        zip(trained(planned, events), trained(plain, events), strict=True)
    ):
        same = [x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True)]
        assert all(same), f"step {step}, after {events[step].__name__}"


def test_a_policy_that_cannot_say_ahead_is_asked_in_the_step() -> None:
    class Own(Policy):
        calls = 0

        def update(self, probes: Any, base: Any) -> dict[str, float]:
            self.calls += 1
            return {"audio": 0.8 + 0.01 * self.calls}

    loop = Loop("adam", "kalman")
    loop.controller.policy = own = Own()
    for _ in trained(loop, [nothing] * 4):
        pass
    assert own.calls == 4
    assert loop.controller.betas["audio"] == pytest.approx(0.84)


def test_a_policy_that_changes_its_mind_is_followed() -> None:
    class Fickle(Policy):
        """Says one thing ahead and another in the step."""

        def update(self, probes: Any, base: Any) -> dict[str, float]:
            return {"audio": 0.8}

        def anticipate(self, probes: Any, base: Any) -> dict[str, float]:
            return {"audio": 0.95}

    loop, fixed = Loop("adam", "kalman"), Loop("adam", "kalman")
    loop.controller.policy = Fickle()
    fixed.controller.policy = Fixed(audio=0.8)
    for a, b in zip(trained(loop, [nothing] * 5), trained(fixed, [nothing] * 5), strict=True):
        assert a == b


def test_an_overflow_that_the_kernel_sees_is_looked_for_in_a_planned_step_too() -> None:
    loop = Loop("adam", "kalman")
    for _ in trained(loop, [nothing] * 3):
        pass
    before = loop.result()[:10]
    loop.observe()
    loop.optimizer.grad_scale = torch.ones(())
    loop.optimizer.found_inf = torch.ones(())
    loop.optimizer.step()
    assert loop.result()[:10] == before
    assert loop.controller.metrics()["discarded"] == 1


def test_the_facade_plans_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({m: nn.Linear(4, 3) for m in MODALITIES})
    optimizer = torch.optim.Adam(modal_groups(model, **model), fused=True)
    controller = VCMM(optimizer)
    for step in range(4):
        if step == 2:
            monkeypatch.setattr(Step, "write", _fail)
        x, target = torch.randn(6, 4), torch.randint(3, (6,))
        seen = {m: (x, model[m](x)) for m in MODALITIES}
        sum(nn.functional.cross_entropy(z, target) for _, z in seen.values()).backward()
        controller.observe(target, **seen)
        optimizer.step()
        optimizer.zero_grad()
