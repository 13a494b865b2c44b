"""Fact 2: between steps the optimizer looks as if nobody were there, also when a step raises."""

import copy
import itertools
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from vcmm import VCMM, Fixed, MomentumController, Policy, modal_groups

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam": ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "Adam-amsgrad": ("Adam", {"lr": 0.01, "amsgrad": True}),
    "AdamW": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW-fused": ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "fused": True}),
    "Adamax": ("Adamax", {"lr": 0.01, "weight_decay": 0.1}),
    "RAdam": ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "NAdam": ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "SGD": ("SGD", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}),
    "SGD-foreach": ("SGD", {"lr": 0.01, "momentum": 0.9, "foreach": True}),
    "Muon": ("Muon", {"lr": 0.01, "momentum": 0.9}),
}
NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            not hasattr(torch.optim, cls), reason=f"this torch has no optimizer {cls}"
        ),
    )
    for name, (cls, _) in OPTIMIZERS.items()
]
UNCORRECTED = {"NAdam", "Muon"}  # whose lr is never written
HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
Schedule = Callable[[Optimizer], Any]


class Wave(Policy):
    """Betas that never stand still, and a record of the bases that they were asked for."""

    def __init__(self) -> None:
        self.t = 0
        self.bases: list[dict[str, float]] = []

    def update(self, probes: Any, base: Mapping[str, Any]) -> dict[str, float]:
        self.t += 1
        self.bases.append(dict(base))
        return {"a": 0.85 + 0.1 * math.sin(self.t), "b": 0.8 + 0.1 * math.cos(self.t)}


class Interrupted(Exception):
    pass


def make_model(seed: int = 0) -> nn.ModuleDict:
    torch.manual_seed(seed)
    # Matrices alone, because Muon takes nothing else.
    return nn.ModuleDict(
        {
            "a": nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3, bias=False)),
            "b": nn.Linear(3, 2, bias=False),
            "shared": nn.Linear(2, 2, bias=False),
        }
    )


def make_optimizer(name: str, model: nn.ModuleDict, **settings: Any) -> Optimizer:
    cls, given = OPTIMIZERS[name]
    groups = modal_groups(model, a=model["a"], b=model["b"])
    return getattr(torch.optim, cls)(groups, **{**given, **settings})


def make(
    name: str, policy: Policy | None = None, **settings: Any
) -> tuple[nn.ModuleDict, Optimizer, MomentumController]:
    model = make_model()
    optimizer = make_optimizer(name, model, **settings)
    return model, optimizer, MomentumController(optimizer, policy or Wave())


def set_gradients(model: nn.Module, t: int) -> None:
    generator = torch.Generator().manual_seed(t)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def run(model: nn.Module, optimizer: Optimizer, steps: Iterator[int] | range) -> None:
    for t in steps:
        set_gradients(model, t)
        optimizer.step()


def observation() -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(0)
    pair = torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)
    return torch.tensor([0, 1, 1, 0]), {"a": pair}


def entries(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{k: v for k, v in g.items() if k != "vcmm_beta"} for g in optimizer.param_groups]


def assert_same_objects(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert list(old) == list(new)
        for key in old:
            assert old[key] is new[key], key


def assert_bitwise(one: nn.Module, other: nn.Module) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def fail_once(optimizer: Optimizer) -> None:
    """A user's hook after the controller's: the groups are written, the kernel never runs."""

    def hook(*_: Any) -> None:
        handle.remove()
        raise Interrupted

    handle = optimizer.register_step_pre_hook(hook)


def interrupt(optimizer: Optimizer) -> None:
    fail_once(optimizer)
    with pytest.raises(Interrupted):
        optimizer.step()


def spoil(parameter: Tensor) -> None:
    """A gradient that no loop can add."""
    assert parameter.grad is not None
    parameter.grad.data = torch.zeros(7)


def refuse(name: str, parameter: Tensor) -> None:
    """A gradient that the optimizer refuses before it has moved anything."""
    if name == "SGD":
        spoil(parameter)
    else:
        assert parameter.grad is not None
        parameter.grad = parameter.grad.to_sparse()


# A step that is taken


@pytest.mark.parametrize("name", NAMES)
def test_fact_02_every_entry_is_the_same_object_after_a_step(name: str) -> None:
    model, optimizer, _ = make(name)
    groups, lists = optimizer.param_groups, [g["params"] for g in optimizer.param_groups]
    dicts = list(groups)
    during: list[list[dict[str, Any]]] = []
    optimizer.register_step_pre_hook(lambda *_: during.append(entries(optimizer)))
    momentum = "betas" if "betas" in groups[0] else "momentum"
    for t in range(6):
        before = entries(optimizer)
        run(model, optimizer, range(t, t + 1))
        assert_same_objects(before, entries(optimizer))
        for index in (0, 1):  # or there would have been nothing to put back
            assert during[-1][index][momentum] != before[index][momentum]
            if name not in UNCORRECTED and t > 0:
                assert during[-1][index]["lr"] != before[index]["lr"]
            if name in {"AdamW", "AdamW-fused", "RAdam"} and t > 0:
                assert during[-1][index]["weight_decay"] != before[index]["weight_decay"]
            if name.startswith("SGD"):
                assert during[-1][index]["dampening"] != before[index]["dampening"]
        assert_same_objects(before[2:], during[-1][2:])  # the shared group is not touched
    assert optimizer.param_groups is groups
    assert all(g is d for g, d in zip(optimizer.param_groups, dicts, strict=True))
    assert all(g["params"] is ps for g, ps in zip(optimizer.param_groups, lists, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_fact_02_a_group_that_was_split_is_whole_after_the_step(name: str) -> None:
    model, optimizer, _ = make(name)
    groups, dicts = optimizer.param_groups, list(optimizer.param_groups)
    lists = [g["params"] for g in groups]
    members = [list(g["params"]) for g in groups]
    late = model["a"][1].weight
    counts: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: counts.append(len(optimizer.param_groups)))
    before = entries(optimizer)
    for t in range(5):
        set_gradients(model, t)
        if t < 2:
            late.grad = None
        optimizer.step()
        assert_same_objects(before, entries(optimizer))
    assert counts == [3, 3, 4, 4, 4]
    assert optimizer.param_groups is groups
    assert all(g is d for g, d in zip(groups, dicts, strict=True))
    assert all(g["params"] is ps for g, ps in zip(groups, lists, strict=True))
    for group, own in zip(groups, members, strict=True):
        assert [id(p) for p in group["params"]] == [id(p) for p in own]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "AdamW-fused", "SGD"])
def test_fact_02_a_tensor_lr_is_neither_replaced_nor_written_to(name: str) -> None:
    lr = torch.tensor(0.01)
    settings = {} if name == "AdamW-fused" else {"foreach": False}
    model, optimizer, _ = make(name, lr=lr, **settings)
    during: list[Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: during.append(optimizer.param_groups[0]["lr"]))
    before, version = entries(optimizer), lr._version
    run(model, optimizer, range(4))
    assert_same_objects(before, entries(optimizer))
    assert lr._version == version
    assert lr.item() == torch.tensor(0.01).item()
    # One tensor for all steps, so that a compiled step need not be compiled anew.
    assert during[-1] is not lr
    assert len({id(t) for t in during}) == 1


# A step that raises


@pytest.mark.parametrize("failure", ["later pre-hook", "kernel", "earlier post-hook"])
@pytest.mark.parametrize("name", NAMES)
def test_fact_02_a_step_that_raises_is_undone_at_the_next_entry(name: str, failure: str) -> None:
    if name == "AdamW-fused" and failure == "kernel":
        pytest.skip("a fused kernel does not look at shapes")
    model = make_model()
    optimizer = make_optimizer(name, model)
    armed: list[bool] = []

    def post_hook(*_: Any) -> None:
        if armed:
            raise Interrupted

    optimizer.register_step_post_hook(post_hook)
    controller = MomentumController(optimizer, Wave())
    run(model, optimizer, range(2))
    before = entries(optimizer)
    set_gradients(model, 2)
    if failure == "later pre-hook":
        interrupt(optimizer)
    elif failure == "kernel":
        spoil(model["shared"].weight)
        with pytest.raises((RuntimeError, ValueError), match=r"size|shape|2D"):
            optimizer.step()
    else:
        armed.append(True)
        with pytest.raises(Interrupted):
            optimizer.step()
    momentum = "betas" if "betas" in before[0] else "momentum"
    assert optimizer.param_groups[0][momentum] != before[0][momentum]
    _ = controller.betas
    assert_same_objects(before, entries(optimizer))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "RAdam", "NAdam"])
def test_fact_02_a_sparse_gradient_that_the_kernel_refuses_leaks_nothing(name: str) -> None:
    model, optimizer, controller = make(name)
    before = entries(optimizer)
    set_gradients(model, 0)
    weight = model["b"].weight
    assert weight.grad is not None
    weight.grad = weight.grad.to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    _ = controller.betas
    assert_same_objects(before, entries(optimizer))


def enter_observe(optimizer: Optimizer, controller: MomentumController) -> None:
    target, pairs = observation()
    controller.observe(target, **pairs)


def enter_step(optimizer: Optimizer, controller: MomentumController) -> None:
    optimizer.step()


def enter_applied(optimizer: Optimizer, controller: MomentumController) -> None:
    with controller.applied():
        optimizer.step()


def enter_loading(optimizer: Optimizer, controller: MomentumController) -> None:
    controller.load_state_dict(pickle.loads(pickle.dumps(SAVED.pop())))


SAVED: list[dict[str, Any]] = []
ENTRIES: dict[str, Callable[[Optimizer, MomentumController], Any]] = {
    "betas": lambda optimizer, controller: controller.betas,
    "metrics": lambda optimizer, controller: controller.metrics(),
    "controller.state_dict": lambda optimizer, controller: controller.state_dict(),
    "controller.load_state_dict": enter_loading,
    "optimizer.state_dict": lambda optimizer, controller: optimizer.state_dict(),
    "observe": enter_observe,
    "step": enter_step,
    "applied": enter_applied,
    "detach": lambda optimizer, controller: controller.detach(),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_fact_02_what_a_scheduler_did_to_a_leaked_lr_survives_the_undoing(entry: str) -> None:
    model, optimizer, controller = make("AdamW")
    run(model, optimizer, range(3))
    SAVED[:] = [controller.state_dict()]
    before = entries(optimizer)
    interrupt(optimizer)
    leaked = [g["lr"] for g in optimizer.param_groups]
    assert leaked[0] != before[0]["lr"]
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    ENTRIES[entry](optimizer, controller)
    for old, group in zip(before, optimizer.param_groups, strict=True):
        assert group["lr"] == pytest.approx(0.5 * old["lr"], rel=1e-15)
        assert group["betas"] is old["betas"]
        assert group["weight_decay"] is old["weight_decay"]


@pytest.mark.parametrize("name", NAMES)
def test_fact_02_a_copy_made_after_a_failure_is_of_the_optimizer_as_it_was(name: str) -> None:
    smooth_model, smooth, _ = make(name)
    run(smooth_model, smooth, range(6))

    original = make(name)
    run(*original[:2], range(3))
    before = [{**g, "params": 0} for g in entries(original[1])]
    set_gradients(original[0], 3)
    interrupt(original[1])
    model, optimizer, _ = copy.deepcopy(original)
    assert [{**g, "params": 0} for g in entries(optimizer)] == before
    for copied_model, copied in ((model, optimizer), original[:2]):
        run(copied_model, copied, range(3, 6))
        assert_bitwise(copied_model, smooth_model)


def test_fact_02_a_changed_decay_survives_the_undoing_as_well() -> None:
    model, optimizer, controller = make("AdamW")
    run(model, optimizer, range(3))
    interrupt(optimizer)
    assert optimizer.param_groups[0]["weight_decay"] != 0.1
    optimizer.param_groups[0]["weight_decay"] *= 3
    _ = controller.betas
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(0.3, rel=1e-14)


def test_fact_02_a_tensor_lr_that_a_scheduler_filled_after_a_failure_survives() -> None:
    lr = torch.tensor(0.01, dtype=torch.float64)
    model, optimizer, controller = make("Adam", lr=lr, foreach=False)
    run(model, optimizer, range(3))
    interrupt(optimizer)
    leaked = optimizer.param_groups[0]["lr"]
    assert leaked is not lr
    leaked.mul_(0.5)
    _ = controller.betas
    assert optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == pytest.approx(0.005, rel=1e-15)


def test_fact_02_momentum_that_a_scheduler_wrote_after_a_failure_survives() -> None:
    model, optimizer, controller = make("Adam")
    run(model, optimizer, range(3))
    interrupt(optimizer)
    for group in optimizer.param_groups:
        group["betas"] = (0.8, 0.99)
    assert controller.optimizer.state_dict()["param_groups"][0]["betas"] == (0.8, 0.99)
    run(model, optimizer, range(3, 5))  # the step tried again, and one for which Wave is asked
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.99)
    assert isinstance(controller.policy, Wave)
    assert controller.policy.bases[-1] == {"a": 0.8, "b": 0.8}


def test_fact_02_a_scheduler_finds_its_groups_after_a_split_step_raised() -> None:
    model = make_model()
    optimizer = make_optimizer("Adam", model)
    for group, lr in zip(optimizer.param_groups, (0.1, 0.2, 0.3), strict=True):
        group["lr"] = lr
    schedule = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    controller = MomentumController(optimizer, Wave())
    whole = list(optimizer.param_groups)
    set_gradients(model, 0)
    model["a"][1].weight.grad = None
    optimizer.step()
    set_gradients(model, 1)
    interrupt(optimizer)  # with the group of "a" in two cohorts
    schedule.step()
    _ = controller.betas
    assert all(g is w for g, w in zip(optimizer.param_groups, whole, strict=True))
    lrs = [g["lr"] for g in optimizer.param_groups]
    assert lrs == pytest.approx([0.05, 0.1, 0.15], rel=1e-14)


@pytest.mark.parametrize("failing", [0, 3])
@pytest.mark.parametrize("failure", ["later pre-hook", "kernel"])
@pytest.mark.parametrize("name", NAMES)
def test_fact_02_a_step_taken_anew_after_it_raised_is_as_if_nothing_had_happened(
    name: str, failure: str, failing: int
) -> None:
    if name in {"SGD-foreach", "Muon"} and failure == "kernel":
        pytest.skip("this kernel has moved or made its buffers before it can raise")
    smooth_model, smooth, _ = make(name)
    run(smooth_model, smooth, range(6))

    model, optimizer, _ = make(name)
    run(model, optimizer, range(failing))
    before = copy.deepcopy(model)
    set_gradients(model, failing)
    if failure == "later pre-hook":
        interrupt(optimizer)
    else:
        refuse(name, model["a"][0 if name == "SGD" else 1].weight)
        with pytest.raises((RuntimeError, ValueError)):
            optimizer.step()
    assert_bitwise(model, before)
    # The policy has been asked for this step; it is not asked again.
    run(model, optimizer, range(failing, 6))
    assert_bitwise(model, smooth_model)


@pytest.mark.parametrize("name", NAMES)
def test_fact_02_a_step_whose_post_hook_raised_was_taken_and_counts(name: str) -> None:
    smooth_model, smooth, _ = make(name)
    run(smooth_model, smooth, range(6))

    model = make_model()
    optimizer = make_optimizer(name, model)
    armed: list[bool] = []

    def post_hook(*_: Any) -> None:  # registered first, so the controller's own never runs
        if armed:
            armed.clear()
            raise Interrupted

    optimizer.register_step_post_hook(post_hook)
    MomentumController(optimizer, Wave())
    run(model, optimizer, range(2))
    armed.append(True)
    set_gradients(model, 2)
    with pytest.raises(Interrupted):
        optimizer.step()
    run(model, optimizer, range(3, 6))
    assert_bitwise(model, smooth_model)


@pytest.mark.parametrize("spoilt", ["first", "last"])
@pytest.mark.parametrize("taken", [0, 2])
def test_fact_02_a_step_that_raised_is_not_mistaken_for_one_without_hooks(
    taken: int, spoilt: str
) -> None:
    model, optimizer, controller = make("Adam", foreach=False)
    run(model, optimizer, range(taken))
    set_gradients(model, taken)
    spoil(model["a"][0].weight if spoilt == "first" else model["shared"].weight)
    with pytest.raises(RuntimeError, match=r"size|shape"):
        optimizer.step()
    set_gradients(model, taken)
    target, pairs = observation()
    controller.observe(target, **pairs)  # the watchdog has nothing to say
    optimizer.step()


def test_fact_02_the_body_of_applied_may_raise() -> None:
    model, optimizer, controller = make("AdamW")
    run(model, optimizer, range(2))
    before = entries(optimizer)
    during: list[Any] = []
    with pytest.raises(Interrupted), controller.applied():  # noqa: PT012
        during.append(optimizer.param_groups[0]["lr"])
        raise Interrupted
    assert during[0] != before[0]["lr"]
    assert_same_objects(before, entries(optimizer))
    # The hooks serve again: the next step needs no applied().
    seen: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    run(model, optimizer, range(2, 3))
    assert seen[0] != before[0]["lr"]


# What others read, and what the controller reads


@pytest.mark.parametrize("name", NAMES)
def test_fact_02_a_saved_optimizer_holds_its_own_settings_after_a_failure(name: str) -> None:
    model, optimizer, _ = make(name)
    run(model, optimizer, range(2))
    before = [{**g, "params": 0} for g in entries(optimizer)]
    interrupt(optimizer)
    saved = optimizer.state_dict()["param_groups"]
    kept = [{k: v for k, v in g.items() if k != "vcmm_beta"} for g in saved]
    assert [{**g, "params": 0} for g in kept] == before


def test_fact_02_the_base_is_read_live_from_a_scheduler_that_cycles_betas() -> None:
    policy = Wave()
    model, optimizer, _ = make("Adam", policy)
    schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    expected: list[dict[str, float]] = []
    for t in range(20):
        expected.append(
            {g["modality"]: g["betas"][0] for g in optimizer.param_groups if g["modality"]}
        )
        run(model, optimizer, range(t, t + 1))
        if t < 19:
            schedule.step()
    assert policy.bases == expected
    assert len({base["a"] for base in expected}) > 10


def test_fact_02_an_unmoved_modality_follows_the_live_base() -> None:
    model, optimizer, controller = make("Adam", Fixed(a=0.95))
    run(model, optimizer, range(2))
    assert controller.betas == {"a": 0.95, "b": 0.9}
    for group in optimizer.param_groups:
        group["betas"] = (0.85, 0.999)
    assert controller.betas == {"a": 0.95, "b": 0.85}
    run(model, optimizer, range(2, 3))
    assert optimizer.param_groups[1]["vcmm_beta"] == 0.85


@pytest.mark.parametrize("name", NAMES)
def test_fact_02_the_current_beta_is_visible_in_groups_and_metrics(name: str) -> None:
    model, optimizer, controller = make(name)
    during: list[float] = []
    optimizer.register_step_pre_hook(
        lambda *_: during.append(optimizer.param_groups[0]["vcmm_beta"])
    )
    for t in range(3):
        run(model, optimizer, range(t, t + 1))
        expected = Wave.update(_at(t), {}, {"a": 0.9})
        assert controller.betas == expected
        assert controller.metrics() | {"a/beta": expected["a"], "b/beta": expected["b"]} == (
            controller.metrics()
        )
        shown = [g.get("vcmm_beta") for g in optimizer.param_groups]
        assert shown == [expected["a"], expected["b"], None]
        assert during[-1] == expected["a"]


def _at(t: int) -> Wave:
    wave = Wave()
    wave.t = t
    return wave


# Schedulers


def plateau(optimizer: Optimizer) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=3)


def sequential(optimizer: Optimizer) -> Any:
    return lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20),
            lr_scheduler.CosineAnnealingLR(optimizer, T_max=180),
        ],
        milestones=[20],
    )


SCHEDULES: dict[str, Schedule] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=7, gamma=0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=200),
    "CosineAnnealingLR-restarting": lambda o: lr_scheduler.CosineAnnealingLR(
        o, T_max=40, eta_min=1e-4
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=201),
    "ReduceLROnPlateau": plateau,
    "LambdaLR-from-zero": lambda o: lr_scheduler.LambdaLR(o, lambda t: min(t / 10, 1.0)),
    "SequentialLR": sequential,
}


def schedule_values(name: str, schedule: Schedule, controlled: bool, **settings: Any) -> list[Any]:
    """What the groups hold, and what the scheduler says, over 200 steps."""
    model = make_model()
    optimizer = make_optimizer(name, model, **settings)
    if controlled:
        MomentumController(optimizer, Wave())
    scheduler = schedule(optimizer)
    keys = ("lr", "weight_decay", "betas", "momentum", "dampening")
    values: list[Any] = []
    for t in range(200):
        # The same small gradient: only the settings are looked at here.
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.step()
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(1.0 if t % 11 else 1.0 / (t + 1))
        else:
            scheduler.step()
        said = [float(lr) for lr in scheduler.get_last_lr()]
        held = [
            {k: float(g[k]) if isinstance(g[k], Tensor) else g[k] for k in keys if k in g}
            for g in optimizer.param_groups
        ]
        values.append((said, held))
    return values


# Before torch 2.7 SequentialLR itself passes the argument that torch deprecates.
@pytest.mark.filterwarnings("ignore:The epoch parameter in")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_fact_02_a_schedule_over_200_steps_sees_no_factor(name: str, schedule: str) -> None:
    plain = schedule_values(name, SCHEDULES[schedule], controlled=False)
    controlled = schedule_values(name, SCHEDULES[schedule], controlled=True)
    assert controlled == plain
    assert len({said[0] for said, _ in plain}) > 5  # there was a schedule


@pytest.mark.parametrize("schedule", ["StepLR", "CosineAnnealingLR", "LambdaLR-from-zero"])
def test_fact_02_a_schedule_of_a_tensor_lr_sees_no_factor(schedule: str) -> None:
    plain, controlled = (
        schedule_values("Adam", SCHEDULES[schedule], on, lr=torch.tensor(0.01), foreach=False)
        for on in (False, True)
    )
    assert controlled == plain


def test_fact_02_a_warm_up_from_lr_zero_is_exact_from_the_first_step() -> None:
    """At lr 0 nothing moves, but the moments and P do; 0 has no ratio to scale back by."""
    model, optimizer, controller = make("AdamW")
    schedule = lr_scheduler.LambdaLR(optimizer, lambda t: t / 4)
    assert optimizer.param_groups[0]["lr"] == 0
    start = copy.deepcopy(model)
    run(model, optimizer, range(1))
    assert_bitwise(model, start)
    interrupt(optimizer)
    assert controller.betas
    assert optimizer.param_groups[0]["lr"] == 0
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.0025


# detach()


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_fact_02_detach_leaves_the_optimizer_as_it_was(name: str, interrupted: bool) -> None:
    model = make_model()
    optimizer = make_optimizer(name, model)
    before = entries(optimizer)
    saved_keys = set(optimizer.state_dict())
    hooks = {hook: list(getattr(optimizer, hook).values()) for hook in HOOKS}
    controller = MomentumController(optimizer, Wave())
    assert all(len(getattr(optimizer, hook)) == len(hooks[hook]) + 1 for hook in HOOKS)
    run(model, optimizer, range(4))
    if interrupted:
        set_gradients(model, 4)
        interrupt(optimizer)
    controller.detach()
    assert {hook: list(getattr(optimizer, hook).values()) for hook in HOOKS} == hooks
    assert_same_objects(before, [dict(g) for g in optimizer.param_groups])
    assert set(optimizer.state_dict()) == saved_keys

    plain_model = make_model(seed=1)
    plain_model.load_state_dict(model.state_dict())
    plain = make_optimizer(name, plain_model)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(model, optimizer, range(4, 10))
    run(plain_model, plain, range(4, 10))
    assert_bitwise(model, plain_model)


def test_fact_02_detach_twice_is_detach_once() -> None:
    _, optimizer, controller = make("Adam")
    controller.detach()
    controller.detach()
    assert not any(len(getattr(optimizer, hook)) for hook in HOOKS)


# A group that is not written at all


def watch_written(optimizer: Optimizer) -> list[list[bool]]:
    """Per step and group, whether any entry is another object while the kernel runs.

    Looked at by a hook before the kernel and by one after it, so by whoever could see it.
    """
    before = entries(optimizer)
    written: list[list[bool]] = []

    def look(*_: Any) -> None:
        now = entries(optimizer)
        written.append(
            [
                any(old[key] is not new[key] for key in old)
                for old, new in itertools.zip_longest(before, now, fillvalue={})
            ]
        )

    optimizer.register_step_pre_hook(look)
    return written


@pytest.mark.parametrize("name", NAMES)
def test_fact_12_a_group_at_its_base_is_not_written(name: str) -> None:
    model, optimizer, _ = make(name, Fixed(a=OPTIMIZERS[name][1].get("momentum", 0.9), b=0.95))
    written = watch_written(optimizer)
    run(model, optimizer, range(3))
    assert written == [[False, True, False]] * 3


@pytest.mark.parametrize("name", NAMES)
def test_fact_12_without_control_no_group_is_written_and_the_run_is_the_plain_one(
    name: str,
) -> None:
    plain_model = make_model()
    run(plain_model, make_optimizer(name, plain_model), range(5))

    model = make_model()
    optimizer = make_optimizer(name, model)
    controller = VCMM(optimizer, strength=0.0)
    written = watch_written(optimizer)
    target, pairs = observation()
    for t in range(5):
        controller.observe(target, a=pairs["a"], b=pairs["a"])
        run(model, optimizer, range(t, t + 1))
    assert written == [[False, False, False]] * 5
    assert_bitwise(model, plain_model)


def test_fact_12_a_group_that_came_back_to_its_base_is_still_corrected() -> None:
    class Once(Policy):
        steps = 0

        def update(self, probes: Any, base: Any) -> dict[str, float]:
            self.steps += 1
            return {"a": 0.7 if self.steps == 2 else 0.9}

    model, optimizer, _ = make("Adam", Once())
    written = watch_written(optimizer)
    run(model, optimizer, range(4))
    assert written == [[t > 0, False, False] for t in range(4)]
