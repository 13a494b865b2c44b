"""Fact 3: `optimizer.step(closure)`, where the gradients do not exist yet when the hook fires."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vcmm import VCMM, MomentumController, Policy, modal_groups

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam": ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW-fused": ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "fused": True}),
    "Adam-foreach": ("Adam", {"lr": 0.01, "foreach": True}),
    "Adamax": ("Adamax", {"lr": 0.01}),
    "RAdam": ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "NAdam": ("NAdam", {"lr": 0.01}),
    "SGD": ("SGD", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}),
}
STEPS = 6


class Interrupted(Exception):
    pass


class Wave(Policy):
    def __init__(self) -> None:
        self.t = 0

    def update(self, probes: Any, base: Mapping[str, Any]) -> dict[str, float]:
        self.t += 1
        return {"a": 0.85 + 0.1 * math.sin(self.t), "b": 0.8 + 0.1 * math.cos(self.t)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ModuleDict({"encoder": nn.Linear(4, 5), "head": nn.Linear(5, 3)})
        self.b = nn.ModuleDict({"encoder": nn.Linear(2, 6), "head": nn.Linear(6, 3)})
        self.shared = nn.Linear(3, 3)

    def forward(self, x: dict[str, Tensor]) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        for name, part in (("a", self.a), ("b", self.b)):
            h = torch.tanh(part["encoder"](x[name]))
            seen[name] = h, part["head"](h)
        return self.shared(sum(z for _, z in seen.values())), seen


def make(name: str, policy: Policy | None = None) -> tuple[Net, Optimizer, MomentumController]:
    torch.manual_seed(0)
    model = Net()
    cls, settings = OPTIMIZERS[name]
    groups = modal_groups(model, a=model.a, b=model.b)
    optimizer = getattr(torch.optim, cls)(groups, **settings)
    if policy is not None:
        return model, optimizer, MomentumController(optimizer, policy)
    return model, optimizer, VCMM(optimizer)


def batch(t: int) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(t)
    x = {"a": torch.randn(8, 4, generator=generator), "b": torch.randn(8, 2, generator=generator)}
    return x, torch.randint(3, (8,), generator=generator)


def evaluate(
    model: Net,
    optimizer: Optimizer,
    controller: MomentumController,
    t: int,
    order: str = "after",
    observing: bool = True,
) -> Tensor:
    """What a training loop does before `optimizer.step()`, or what its closure does."""
    x, y = batch(t)
    optimizer.zero_grad()
    fused, seen = model(x)
    loss = nn.functional.cross_entropy(fused, y)
    if observing and order == "before":
        controller.observe(y, **seen)
    loss.backward()
    if observing and order == "after":
        controller.observe(y, **seen)
    return loss


def plain_loop(name: str, policy: Policy | None = None) -> tuple[Net, list[dict[str, float]]]:
    model, optimizer, controller = make(name, policy)
    metrics: list[dict[str, float]] = []
    for t in range(STEPS):
        evaluate(model, optimizer, controller, t)
        optimizer.step()
        metrics.append(controller.metrics())
    return model, metrics


def by_position(optimizer: Optimizer, closure: Callable[[], Any]) -> Any:
    return optimizer.step(closure)


def by_keyword(optimizer: Optimizer, closure: Callable[[], Any]) -> Any:
    return optimizer.step(closure=closure)


def assert_bitwise(one: nn.Module, other: nn.Module) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def entries(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{k: v for k, v in g.items() if k != "vcmm_beta"} for g in optimizer.param_groups]


def assert_same_objects(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    for old, new in zip(before, after, strict=True):
        assert list(old) == list(new)
        assert all(old[key] is new[key] for key in old)


# The closure's step is the loop's step


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("call", [by_position, by_keyword])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fact_03_a_step_with_a_closure_is_the_step_without_bitwise(
    name: str, call: Callable[[Optimizer, Callable[[], Any]], Any], order: str
) -> None:
    expected, metrics = plain_loop(name)
    model, optimizer, controller = make(name)
    for t in range(STEPS):
        before = entries(optimizer)
        call(optimizer, lambda t=t: evaluate(model, optimizer, controller, t, order))
        assert_same_objects(before, entries(optimizer))
        assert controller.metrics() == metrics[t]
    assert_bitwise(model, expected)
    assert metrics[-1]["a/beta"] != metrics[-1]["b/beta"] != 0.9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fact_03_a_policy_without_observations_sees_the_gradients_of_the_closure(
    name: str,
) -> None:
    expected, _ = plain_loop(name, Wave())
    model, optimizer, controller = make(name, Wave())
    for t in range(STEPS):
        optimizer.step(lambda t=t: evaluate(model, optimizer, controller, t, observing=False))
    assert_bitwise(model, expected)


def test_fact_03_observations_before_the_step_and_a_closure_that_only_goes_backward() -> None:
    expected, metrics = plain_loop("Adam")
    model, optimizer, controller = make("Adam")
    for t in range(STEPS):
        x, y = batch(t)
        fused, seen = model(x)
        controller.observe(y, **seen)

        def closure(fused: Tensor = fused, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(fused, y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert controller.metrics() == metrics[-1]
    assert_bitwise(model, expected)


def test_fact_03_parameters_that_get_a_gradient_in_the_closure_alone_do_age() -> None:
    """Were the ages taken when the pre-hook fires, no parameter would have a gradient yet."""
    expected, optimizer, controller = make("AdamW", Wave())
    for t in range(STEPS):
        evaluate(expected, optimizer, controller, t, observing=False)
        if t % 2:
            for parameter in expected.a["encoder"].parameters():
                parameter.grad = None
        optimizer.step()

    model, optimizer, controller = make("AdamW", Wave())
    for t in range(STEPS):
        optimizer.zero_grad()

        def closure(t: int = t) -> Tensor:
            loss = evaluate(model, optimizer, controller, t, observing=False)
            if t % 2:
                for parameter in model.a["encoder"].parameters():
                    parameter.grad = None
            return loss

        optimizer.step(closure)
    assert_bitwise(model, expected)


def test_fact_03_the_closure_runs_before_the_groups_are_written() -> None:
    model, optimizer, controller = make("AdamW", Wave())
    seen: list[list[dict[str, Any]]] = []
    before = entries(optimizer)
    for t in range(3):

        def closure(t: int = t) -> Tensor:
            seen.append(entries(optimizer))
            assert torch.is_grad_enabled()
            return evaluate(model, optimizer, controller, t)

        optimizer.step(closure)
    for during in seen:
        assert_same_objects(before, during)


def test_fact_03_what_the_closure_returns_passes_through() -> None:
    model, optimizer, controller = make("Adam")
    losses: list[Tensor] = []

    def closure() -> Tensor:
        losses.append(evaluate(model, optimizer, controller, 0))
        return losses[-1]

    assert optimizer.step(closure) is losses[0]
    marker = object()
    assert optimizer.step(lambda: marker) is marker
    assert optimizer.step() is None


def test_fact_03_the_closure_is_called_once() -> None:
    model, optimizer, controller = make("SGD")
    calls: list[int] = []

    def closure() -> Tensor:
        calls.append(1)
        return evaluate(model, optimizer, controller, 0)

    optimizer.step(closure)
    assert len(calls) == 1


def test_fact_03_closures_and_plain_steps_may_alternate() -> None:
    expected, _ = plain_loop("AdamW")
    model, optimizer, controller = make("AdamW")
    for t in range(STEPS):
        if t % 2:
            optimizer.step(lambda t=t: evaluate(model, optimizer, controller, t))
        else:
            evaluate(model, optimizer, controller, t)
            optimizer.step(None) if t == 0 else optimizer.step(closure=None)
    assert_bitwise(model, expected)


# A closure that raises


@pytest.mark.parametrize("call", [by_position, by_keyword])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fact_03_a_closure_that_raises_leaves_nothing_behind(
    name: str, call: Callable[[Optimizer, Callable[[], Any]], Any]
) -> None:
    expected, metrics = plain_loop(name)
    model, optimizer, controller = make(name)
    for t in range(STEPS):
        if t in (0, 3):
            before, weights = entries(optimizer), copy.deepcopy(model)

            def closure(t: int = t) -> Tensor:
                evaluate(model, optimizer, controller, t + 100)
                raise Interrupted

            with pytest.raises(Interrupted):
                call(optimizer, closure)
            # At once, not at the next entry: nothing had been written yet.
            assert_same_objects(before, entries(optimizer))
            assert_bitwise(model, weights)
        call(optimizer, lambda t=t: evaluate(model, optimizer, controller, t))
    assert_bitwise(model, expected)
    # The observations of the two failed attempts were dropped, and that is all one can see.
    assert controller.metrics() == {**metrics[-1], "discarded": 2.0}


def test_fact_03_a_kernel_that_raises_after_the_closure_is_undone_at_the_next_entry() -> None:
    model, optimizer, controller = make("Adam", Wave())
    for t in range(2):
        optimizer.step(lambda t=t: evaluate(model, optimizer, controller, t))
    before = entries(optimizer)

    def closure() -> Tensor:
        loss = evaluate(model, optimizer, controller, 2)
        weight = model.shared.weight
        assert weight.grad is not None
        weight.grad = weight.grad.to_sparse()
        return loss

    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step(closure)
    assert controller.betas
    assert_same_objects(before, entries(optimizer))


# What is refused


def test_fact_03_lbfgs_is_refused_with_the_reason() -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters())
    optimizer.param_groups[0]["modality"] = "a"
    with pytest.raises(TypeError, match=r"LBFGS cannot be controlled: .*history"):
        VCMM(optimizer)


@pytest.mark.parametrize("call", [by_position, by_keyword])
def test_fact_03_a_closure_inside_applied_is_a_loud_error(
    call: Callable[[Optimizer, Callable[[], Any]], Any],
) -> None:
    model, optimizer, controller = make("AdamW", Wave())
    evaluate(model, optimizer, controller, 0)
    optimizer.step()
    before, weights = entries(optimizer), copy.deepcopy(model)
    calls: list[int] = []
    evaluate(model, optimizer, controller, 1)
    with (
        pytest.raises(RuntimeError, match=r"applied\(\).*without a closure"),
        controller.applied(),
    ):
        call(optimizer, lambda: calls.append(1))
    assert not calls
    assert_same_objects(before, entries(optimizer))
    assert_bitwise(model, weights)
    # It is over with the block.
    optimizer.step(lambda: evaluate(model, optimizer, controller, 1))
    assert controller.betas == Wave.update(_at(2), {}, {})


def _at(t: int) -> Wave:
    wave = Wave()
    wave.t = t
    return wave


@pytest.mark.parametrize("fused", [False, True])
def test_fact_03_a_closure_with_a_grad_scaler_is_refused_by_torch_itself(fused: bool) -> None:
    """torch.amp.GradScaler takes no closure. The controller neither hides that nor is hurt."""
    model, optimizer, controller = make("AdamW-fused" if fused else "AdamW")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before, weights = entries(optimizer), copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: evaluate(model, optimizer, controller, 0))
    assert_same_objects(before, entries(optimizer))
    assert_bitwise(model, weights)


def test_fact_03_a_disabled_grad_scaler_passes_the_closure_on() -> None:
    expected, _ = plain_loop("AdamW")
    model, optimizer, controller = make("AdamW")
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for t in range(STEPS):
        scaler.step(optimizer, closure=lambda t=t: evaluate(model, optimizer, controller, t))
        scaler.update()
    assert_bitwise(model, expected)
