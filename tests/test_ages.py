"""Parameters that have taken fewer steps than their neighbours have a shorter product of betas.

The yardstick is `vcmm.reference`, one object per parameter, which a step without a gradient leaves
alone. Every case runs on unmodified torch optimizers, in each implementation that torch has.
"""

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from vcmm import MomentumController, Policy, Probe, reference

RTOL = 1e-12
LR = 1e-2
BETA0 = 0.9
DECAY = 0.1

Betas = dict[str, float]


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """NAdam keeps its product of mu in the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Replay(Policy):
    """Step t has the momenta of the t-th entry. A modality that it leaves out keeps its base."""

    def __init__(self, betas: Iterable[Betas]) -> None:
        self.betas = iter(betas)

    def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, Any]:
        return next(self.betas)


Family = tuple[type[torch.optim.Optimizer], Callable[..., reference.Optimizer], dict[str, Any]]

OPTIMIZERS: dict[str, Family] = {
    "adam": (torch.optim.Adam, reference.Adam, {}),
    "adamw": (torch.optim.AdamW, reference.Adam, {"decoupled": True}),
    "amsgrad": (torch.optim.Adam, reference.Adam, {"amsgrad": True}),
    "adamax": (torch.optim.Adamax, reference.Adamax, {}),
    "radam": (torch.optim.RAdam, reference.RAdam, {}),
    "nadam": (torch.optim.NAdam, reference.NAdam, {}),
    "sgd": (torch.optim.SGD, reference.SGD, {}),
}
CASES = [
    (name, implementation)
    for name, (kind, _, _) in OPTIMIZERS.items()
    for implementation in ("loop", "foreach", "fused")
    if implementation != "fused" or "fused" in inspect.signature(kind).parameters
]
every_optimizer = pytest.mark.parametrize(("name", "implementation"), CASES)


def varying(steps: int, seed: int = 0) -> list[Betas]:
    generator = torch.Generator().manual_seed(seed)
    drawn = (0.70 + 0.29 * torch.rand(steps, 2, generator=generator)).tolist()
    return [{"audio": a, "video": v} for a, v in drawn]


class Pair:
    """A torch optimizer over two modalities and a shared group, and a reference per parameter."""

    def __init__(
        self,
        name: str,
        implementation: str,
        betas: Iterable[Betas] | None,
        lr: float | Tensor = LR,
    ) -> None:
        self.kind, self.slow_kind, self.flags = OPTIMIZERS[name]
        self.slow: dict[Tensor, reference.Optimizer] = {}
        self.start: dict[Tensor, Tensor] = {}
        self.generator = torch.Generator().manual_seed(0)
        groups = [self.group("audio", 3), self.group("video", 2), self.group(None, 1)]
        more: dict[str, Any] = {"fused": True}
        if implementation != "fused":
            more = {"foreach": implementation == "foreach"}
        if "amsgrad" in self.flags:
            more["amsgrad"] = True
        self.optimizer = self.kind(groups, lr=lr, weight_decay=DECAY, **self.memory, **more)
        if betas is not None:
            self.controller = MomentumController(self.optimizer, Replay(betas))

    @property
    def memory(self) -> dict[str, Any]:
        if self.kind is torch.optim.SGD:
            return {"momentum": BETA0}
        return {"betas": (BETA0, 0.99)}

    def group(self, modality: str | None, layers: int) -> dict[str, Any]:
        params = [
            torch.randn(3, 2, generator=self.generator, requires_grad=True) for _ in range(layers)
        ]
        for p in params:
            self.slow[p] = self.slow_kind(p, LR, weight_decay=DECAY, **self.memory, **self.flags)
            self.start[p] = p.detach().clone()
        return {"params": params, "name": modality or "shared", "modality": modality}

    def layers(self, index: int) -> list[Tensor]:
        return self.optimizer.param_groups[index]["params"]

    def step(self, betas: Betas, absent: Sequence[Tensor] = ()) -> None:
        """One step of both, in which `absent` parameters have no gradient."""
        left_out = {id(p) for p in absent}
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.grad = None
                if id(p) not in left_out:
                    p.grad = torch.randn(p.shape, generator=self.generator)
                self.slow[p].step(p.grad, betas.get(group["name"], BETA0))
        self.optimizer.step()

    def check(self) -> None:
        for p, slow in self.slow.items():
            way = slow.parameter - self.start[p]
            error = p.detach() - slow.parameter
            assert float(error.norm()) <= RTOL * float(way.norm())


@every_optimizer
def test_fact_05_layers_that_are_frozen_and_unfrozen(name: str, implementation: str) -> None:
    betas = varying(40)
    pair = Pair(name, implementation, betas)
    first, second, third = pair.layers(0)
    for t, beta in enumerate(betas):
        absent = [first] if t < 5 else []  # joins late
        absent += [second] if 10 <= t < 17 else []  # pauses
        absent += [third] if 12 <= t < 25 and t % 3 else []  # comes and goes
        pair.step(beta, absent)
        pair.check()
    assert [pair.slow[p].age for p in (first, second, third)] == [35, 33, 32]


@every_optimizer
def test_fact_05_requires_grad_off_and_on_through_backward(name: str, implementation: str) -> None:
    """As a user freezes: by requires_grad_, with zero_grad and a real backward pass."""
    betas = varying(20)
    pair = Pair(name, implementation, betas)
    layer = pair.layers(1)[0]
    for t, beta in enumerate(betas):
        layer.requires_grad_(not 4 <= t < 9)
        pair.optimizer.zero_grad()
        loss = torch.zeros(())
        for p in pair.slow:
            target = torch.randn(p.shape, generator=pair.generator)
            loss = loss + (p - target).square().sum()
        loss.backward()
        for group in pair.optimizer.param_groups:
            for p in group["params"]:
                pair.slow[p].step(p.grad, beta.get(group["name"], BETA0))
        pair.optimizer.step()
        pair.check()
    assert pair.slow[layer].age == 15


@every_optimizer
def test_fact_05_modalities_that_are_trained_in_turn(name: str, implementation: str) -> None:
    betas = varying(30)
    pair = Pair(name, implementation, betas)
    for t, beta in enumerate(betas):
        pair.step(beta, absent=pair.layers(t % 2))
        pair.check()
    assert {pair.slow[p].age for p in pair.layers(0) + pair.layers(1)} == {15}
    assert pair.slow[pair.layers(2)[0]].age == 30


@every_optimizer
def test_fact_05_a_modality_without_any_gradient_for_a_while(
    name: str, implementation: str
) -> None:
    """Not even the tagged groups as a whole need a gradient: then nothing ages."""
    betas = varying(12)
    pair = Pair(name, implementation, betas)
    for t, beta in enumerate(betas):
        pair.step(beta, absent=pair.layers(0) + pair.layers(1) if t in (3, 4) else ())
        pair.check()
    assert {pair.slow[p].age for p in pair.layers(0)} == {10}


@every_optimizer
@pytest.mark.parametrize("modality", ["audio", "text"])
def test_fact_05_parameters_added_later(name: str, implementation: str, modality: str) -> None:
    """To a modality that is there already, or as a new one."""
    betas = [{**beta, "text": 1.69 - beta["audio"]} for beta in varying(24)]
    pair = Pair(name, implementation, None)
    MomentumController(
        pair.optimizer,
        Replay([{m: b for m, b in beta.items() if m != "text"} for beta in betas[:9]] + betas[9:]),
    )
    for t, beta in enumerate(betas):
        if t == 9:
            added = pair.group(modality, 2)
            pair.optimizer.add_param_group(added)
            if modality != "text":
                # A policy must not name a modality that no group carries.
                pair.optimizer.add_param_group(pair.group("text", 1))
        pair.step(beta)
        pair.check()
    assert {pair.slow[p].age for p in pair.layers(3)} == {15}


@every_optimizer
def test_fact_05_clearing_the_state_restarts_every_age(name: str, implementation: str) -> None:
    betas = varying(24)
    pair = Pair(name, implementation, betas)
    for t, beta in enumerate(betas):
        if t in (7, 15):
            pair.optimizer.state.clear()
            for slow in pair.slow.values():
                slow.reset()
        pair.step(beta)
        pair.check()
    assert {slow.age for slow in pair.slow.values()} == {9}


@every_optimizer
def test_fact_05_a_state_that_is_cleared_just_after_it_was_loaded_restarts_every_age(
    name: str, implementation: str
) -> None:
    """As when training is resumed where a phase ends, and the next phase begins."""
    betas = varying(16)
    pair = Pair(name, implementation, betas)
    for t, beta in enumerate(betas):
        if t == 8:
            pair.optimizer.load_state_dict(pair.optimizer.state_dict())
            pair.optimizer.state.clear()
            for slow in pair.slow.values():
                slow.reset()
        pair.step(beta)
        pair.check()
    assert {slow.age for slow in pair.slow.values()} == {8}


@every_optimizer
def test_fact_05_dropping_one_parameters_state_restarts_its_age(
    name: str, implementation: str
) -> None:
    betas = varying(24)
    pair = Pair(name, implementation, betas)
    restarted = pair.layers(0)[1]
    for t, beta in enumerate(betas):
        if t == 11:
            del pair.optimizer.state[restarted]
            pair.slow[restarted].reset()
        pair.step(beta)
        pair.check()
    assert [pair.slow[p].age for p in pair.layers(0)] == [24, 13, 24]


@every_optimizer
def test_fact_05_a_restart_with_fresh_moments_starts_at_the_base_again(
    name: str, implementation: str
) -> None:
    """After clear() no beta has moved yet: the next phase at the base is plain torch, bitwise."""
    betas = varying(6)
    pair = Pair(name, implementation, [*betas, *([{}] * 6)])
    for beta in betas:
        pair.step(beta)
    pair.optimizer.state.clear()
    plain = Pair(name, implementation, None)
    for mine, theirs in zip(pair.slow, plain.slow, strict=True):
        theirs.data.copy_(mine.detach())
    plain.generator.set_state(pair.generator.get_state())
    for _ in range(6):
        pair.step({})
        plain.step({})
    assert all(torch.equal(p, q) for p, q in zip(pair.slow, plain.slow, strict=True))


@pytest.mark.parametrize("implementation", ["loop", "fused"])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_fact_05_ages_with_a_tensor_learning_rate(name: str, implementation: str) -> None:
    """Every cohort needs a tensor of its own, and decoupled decay must meet each layer once."""
    betas = varying(20)
    lr = torch.tensor(LR)
    pair = Pair(name, implementation, betas, lr=lr)
    for t, beta in enumerate(betas):
        absent = pair.layers(0)[:1] if t in (3, 4, 9) else []
        absent += pair.layers(0)[1:2] if t in (4, 12) else []
        pair.step(beta, absent)
        pair.check()
        assert all(group["lr"] is lr for group in pair.optimizer.param_groups)
    assert float(lr) == LR


# The groups during and after such a step


@every_optimizer
def test_fact_05_the_groups_are_the_same_objects_afterwards(name: str, implementation: str) -> None:
    betas = varying(8)
    pair = Pair(name, implementation, betas)
    optimizer = pair.optimizer
    seen: list[int] = []
    # Registered after the controller's, so it sees the groups as the kernels are going to.
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(len(o.param_groups)))
    groups, objects = optimizer.param_groups, list(optimizer.param_groups)
    params = [group["params"] for group in groups]
    members = [[id(p) for p in group["params"]] for group in groups]
    settings = [
        {k: v for k, v in group.items() if k not in ("params", "vcmm_beta")} for group in groups
    ]
    for t, beta in enumerate(betas):
        absent = [pair.layers(0)[0], pair.layers(1)[1]] if t in (2, 4) else []
        absent += [pair.layers(0)[2]] if t == 5 else []
        pair.step(beta, absent)
        assert optimizer.param_groups is groups
        assert all(a is b for a, b in zip(groups, objects, strict=True))
        assert all(group["params"] is p for group, p in zip(groups, params, strict=True))
        assert [[id(p) for p in group["params"]] for group in groups] == members
        assert [
            {k: v for k, v in group.items() if k not in ("params", "vcmm_beta")} for group in groups
        ] == settings
        assert [group.get("vcmm_beta") for group in groups] == [
            beta["audio"],
            beta["video"],
            None,
        ]
    # One group per age of those with a gradient: at t = 6 audio has three ages and video two.
    assert seen == [3, 3, 3, 5, 3, 5, 6, 6]


@every_optimizer
def test_fact_05_the_groups_come_back_when_a_step_with_several_ages_fails(
    name: str, implementation: str
) -> None:
    """And the step that was not taken has aged nobody: the next one is exact."""
    betas = varying(8)
    now: Betas = {}  # the same for the failed attempt and the next, whether or not one asks again
    pair = Pair(name, implementation, itertools.repeat(now))
    optimizer, objects = pair.optimizer, list(pair.optimizer.param_groups)
    for beta in betas[:4]:
        now.update(beta)
        pair.step(beta, absent=pair.layers(0)[:1] if beta is betas[1] else [])
    now.update(betas[4])
    for p in pair.slow:
        p.grad = torch.ones_like(p)
    split = 0
    with contextlib.suppress(KeyboardInterrupt), pair.controller.applied():
        split = len(optimizer.param_groups)
        raise KeyboardInterrupt
    assert split == 4
    assert all(a is b for a, b in zip(optimizer.param_groups, objects, strict=True))
    for beta in betas[4:]:
        now.update(beta)
        pair.step(beta)
        pair.check()


@every_optimizer
def test_fact_05_a_failed_first_step_leaves_a_newborn_newborn(
    name: str, implementation: str
) -> None:
    """SGD's zero seed may stay behind, but it is not a history: the retry is the first step."""
    betas = varying(6)
    now = dict(betas[0])
    pair = Pair(name, implementation, itertools.repeat(now))
    for p in pair.slow:
        p.grad = torch.ones_like(p)
    with contextlib.suppress(KeyboardInterrupt), pair.controller.applied():
        raise KeyboardInterrupt
    for beta in betas:
        now.update(beta)
        pair.step(beta)
        pair.check()


# An optimizer that has history, but no controller yet


@every_optimizer
def test_fact_13_attached_late_the_product_starts_at_beta0_to_the_t(
    name: str, implementation: str
) -> None:
    """SGD counts no steps; after 300 of them its 1 - beta0^t is 1 to rounding."""
    history = 300 if name == "sgd" else 5
    pair = Pair(name, implementation, None)
    for _ in range(history):
        pair.step({})
    betas = varying(20)
    MomentumController(pair.optimizer, Replay(betas))
    for beta in betas:
        pair.step(beta)
        pair.check()
    assert {slow.age for slow in pair.slow.values()} == {history + 20}


@pytest.mark.parametrize("implementation", ["loop", "foreach", "fused"])
def test_fact_13_sgd_attached_early_has_nothing_left_to_correct(implementation: str) -> None:
    """How often a bare SGD was stepped nobody knows, so its past is taken as long: c_t = 1."""
    pair = Pair("sgd", implementation, None)
    for _ in range(5):
        pair.step({})
    betas = varying(20)
    MomentumController(pair.optimizer, Replay(betas))
    for slow in pair.slow.values():
        slow.exact = False
    for beta in betas:
        pair.step(beta)
        pair.check()


@every_optimizer
def test_fact_13_attached_late_to_parameters_of_different_ages(
    name: str, implementation: str
) -> None:
    """Each parameter's own count is read, not the group's; one of them has not started at all."""
    if name == "sgd":
        pytest.skip("SGD counts no steps")
    pair = Pair(name, implementation, None)
    first, second, _ = pair.layers(0)
    for t in range(7):
        pair.step({}, absent=[first, second] if t < 4 else [first])
    betas = varying(15)
    MomentumController(pair.optimizer, Replay(betas))
    for beta in betas:
        pair.step(beta)
        pair.check()
    assert [pair.slow[p].age for p in pair.layers(0)] == [15, 18, 22]


# A base momentum that a scheduler moves


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=LR, total_steps=steps, base_momentum=0.80, max_momentum=0.95
    )


def live_base(optimizer: torch.optim.Optimizer) -> float:
    group = optimizer.param_groups[0]
    return float(group["betas"][0]) if "betas" in group else float(group["momentum"])


class Offset(Policy):
    """A policy that follows its base, whatever it is, at a distance. Audio stays at it."""

    def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"audio": base["audio"], "video": 1 - 2 * (1 - base["video"])}


@pytest.mark.parametrize(("name", "implementation"), [c for c in CASES if c[0] != "sgd"])
def test_fact_02_a_scheduler_that_cycles_betas_moves_the_anchor(
    name: str, implementation: str
) -> None:
    steps = 40
    pair = Pair(name, implementation, None)
    schedule = one_cycle(pair.optimizer, steps)
    MomentumController(pair.optimizer, Offset())
    bases: list[float] = []
    for p in pair.layers(0) + pair.layers(2):  # these stay plain torch: 1 - beta_t^t
        pair.slow[p].exact = False
    for _ in range(steps - 1):
        base = live_base(pair.optimizer)
        bases.append(base)
        for group in pair.optimizer.param_groups:
            for p in group["params"]:
                pair.slow[p].lr = group["lr"]
        beta = {"audio": base, "video": 1 - 2 * (1 - base), "shared": base}
        pair.step(beta)
        schedule.step()
        pair.check()
        # The scheduler has set a new base, and has found nothing of ours in its way.
        assert {group["betas"][0] for group in pair.optimizer.param_groups} == {
            live_base(pair.optimizer)
        }
    assert min(bases) < 0.81
    assert max(bases) > 0.94


@pytest.mark.parametrize("implementation", ["loop", "foreach", "fused"])
def test_fact_02_a_scheduler_that_cycles_sgds_momentum_moves_the_anchor(
    implementation: str,
) -> None:
    """b_t = beta_t b + (1 - beta_t) / (1 - base_t) g, c_t = (1 - prod base) / (1 - prod beta)."""
    steps = 40
    pair = Pair("sgd", implementation, None)
    optimizer = pair.optimizer
    schedule = one_cycle(optimizer, steps)
    MomentumController(optimizer, Offset())
    buffers = {p: torch.zeros_like(p) for p in pair.slow}
    expected = {p: p.detach().clone() for p in pair.slow}
    product, base_product = 1.0, 1.0
    for _ in range(steps - 1):
        base, lr = live_base(optimizer), optimizer.param_groups[0]["lr"]
        own = 1 - 2 * (1 - base)
        product, base_product = product * own, base_product * base
        for group in optimizer.param_groups:
            moved = group["name"] == "video"
            beta = own if moved else base
            scale = (1 - base_product) / (1 - product) if moved else 1.0
            for p in group["params"]:
                p.grad = torch.randn(p.shape, generator=pair.generator)
                g = p.grad + DECAY * expected[p]
                buffers[p] = beta * buffers[p] + (1 - beta) / (1 - base) * g
                expected[p] = expected[p] - lr * scale * buffers[p]
        optimizer.step()
        schedule.step()
    for p, x in expected.items():
        way = x - pair.start[p]
        assert float((p.detach() - x).norm()) <= RTOL * float(way.norm())


@every_optimizer
def test_fact_12_following_a_cycled_base_exactly_is_plain_torch_bitwise(
    name: str, implementation: str
) -> None:
    """While every beta so far equalled its live beta0, a group is not written at all."""

    class Follow(Policy):
        def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, Any]:
            return dict(base)

    mine, plain = Pair(name, implementation, None), Pair(name, implementation, None)
    MomentumController(mine.optimizer, Follow())
    schedules = [one_cycle(pair.optimizer, 20) for pair in (mine, plain)]
    for t in range(19):
        for pair, schedule in zip((mine, plain), schedules, strict=True):
            # torch's fused SGD cannot start one buffer while others run, with us or without.
            pair.step({}, absent=[pair.layers(0)[1]] if t % 4 == 2 else [])
            schedule.step()
    for p, q in zip(mine.slow, plain.slow, strict=True):
        assert torch.equal(p, q)
        state, other = mine.optimizer.state[p], plain.optimizer.state[q]
        assert state.keys() == other.keys()
        assert all(torch.equal(state[key], other[key]) for key in other)
    assert not math.isclose(live_base(mine.optimizer), BETA0)
