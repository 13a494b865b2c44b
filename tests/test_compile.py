"""Fact 8: `torch.compile` of `step`, `applied()`, and the watchdog for steps without hooks.

The backends here run the traced graphs as they are, so no compiler is needed: what is looked at is
how often dynamo traces, and whether the controller's part is done.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.optim import Optimizer

from vcmm import VCMM, MomentumController, Policy, modal_groups

ADAMS = [("Adam", 0.0), ("Adam", 0.1), ("AdamW", 0.0), ("AdamW", 0.1)]
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam": ("Adam", {"lr": 0.01, "foreach": False}),
    "AdamW-fused": ("AdamW", {"lr": 0.01, "fused": True}),
    "AdamW-foreach": ("AdamW", {"lr": 0.01, "foreach": True}),
    "Adamax": ("Adamax", {"lr": 0.01}),
    "RAdam": ("RAdam", {"lr": 0.01}),
    "NAdam": ("NAdam", {"lr": 0.01}),
    "SGD": ("SGD", {"lr": 0.01, "momentum": 0.9}),
    "SGD-foreach": ("SGD", {"lr": 0.01, "momentum": 0.9, "foreach": True}),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def float64() -> Iterator[None]:
    """torch keeps Adam's step count, from which a traced step makes 1 - beta^t, in this dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Wave(Policy):
    def __init__(self) -> None:
        self.t = 0

    def update(self, probes: Any, base: Mapping[str, Any]) -> dict[str, float]:
        self.t += 1
        return {"a": 0.85 + 0.1 * math.sin(self.t), "b": 0.8 + 0.1 * math.cos(self.t)}


def make(
    cls: str, policy: Policy | None = None, **settings: Any
) -> tuple[nn.ModuleDict, Optimizer, MomentumController]:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2), "shared": nn.Linear(2, 2)})
    groups = modal_groups(model, a=model["a"], b=model["b"])
    optimizer = getattr(torch.optim, cls)(groups, **settings)
    return model, optimizer, MomentumController(optimizer, policy or Wave())


def in_tensors(weight_decay: float) -> dict[str, Any]:
    """Hyperparameters that a traced step reads from memory, and does not hold as constants."""
    return {
        "lr": torch.tensor(0.05),
        "betas": (torch.tensor(0.9), torch.tensor(0.999)),
        "weight_decay": weight_decay,
        "foreach": False,
    }


def in_floats(weight_decay: float) -> dict[str, Any]:
    return {"lr": 0.05, "weight_decay": weight_decay, "foreach": False}


def set_gradients(model: nn.Module, t: int) -> None:
    generator = torch.Generator().manual_seed(t)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def observe(controller: MomentumController, t: int = 0) -> None:
    generator = torch.Generator().manual_seed(t)
    pairs = {
        "a": (torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)),
        "b": (torch.randn(4, 2, generator=generator), torch.randn(4, 2, generator=generator)),
    }
    controller.observe(torch.tensor([0, 1, 1, 0]), **pairs)


def eager_run(make_it: Callable[[], Any], steps: int, *, observing: bool = False) -> nn.Module:
    model, optimizer, controller = make_it()
    for t in range(steps):
        set_gradients(model, t)
        if observing:
            observe(controller, t)
        optimizer.step()
    return model


def assert_close(one: nn.Module, other: nn.Module, rtol: float, atol: float) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol)


# applied()


@pytest.mark.parametrize(("cls", "weight_decay"), ADAMS)
def test_fact_08_tensors_filled_in_place_cost_no_recompile(cls: str, weight_decay: float) -> None:
    expected = eager_run(lambda: make(cls, **in_tensors(weight_decay)), 20)
    model, optimizer, controller = make(cls, **in_tensors(weight_decay))
    counter = CompileCounter()
    step = torch.compile(optimizer.step, backend=counter)
    graphs: list[int] = []
    for t in range(20):
        set_gradients(model, t)
        with controller.applied():
            step()
        graphs.append(counter.frame_count)
    # Once while there is no state yet, and once for good.
    assert 1 <= graphs[-1] <= 4
    assert graphs[2:] == [graphs[2]] * 18
    # A traced step makes 1 - beta^t from a float32 step count, an eager one from Python floats.
    assert_close(model, expected, rtol=1e-5, atol=1e-5)
    assert len({float(b) for b in controller.betas.values()}) == 2


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("cls", "weight_decay"), ADAMS)
def test_fact_08_a_compiled_step_is_the_eager_step(cls: str, weight_decay: float) -> None:
    """In float64, where torch's own traced step differs from its eager one by rounding alone."""
    expected = eager_run(lambda: make(cls, **in_tensors(weight_decay)), 12)
    by_floats = eager_run(lambda: make(cls, **in_floats(weight_decay)), 12)
    model, optimizer, controller = make(cls, **in_tensors(weight_decay))
    step = torch.compile(optimizer.step, backend="eager")
    for t in range(12):
        set_gradients(model, t)
        with controller.applied():
            step()
    assert_close(model, expected, rtol=1e-12, atol=1e-14)
    assert_close(model, by_floats, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("float64")
def test_fact_08_a_compiled_step_is_the_eager_step_with_the_full_method() -> None:
    def make_it() -> Any:
        model, optimizer, controller = make("AdamW", **in_tensors(0.1))
        controller.detach()
        return model, optimizer, VCMM(optimizer)

    expected = eager_run(make_it, 12, observing=True)
    model, optimizer, vcmm = make_it()
    counter = CompileCounter()
    step = torch.compile(optimizer.step, backend=counter)
    graphs: list[int] = []
    for t in range(12):
        set_gradients(model, t)
        observe(vcmm, t)
        with vcmm.applied():
            step()
        graphs.append(counter.frame_count)
    assert_close(model, expected, rtol=1e-12, atol=1e-14)
    assert graphs[2:] == [graphs[2]] * 10
    assert vcmm.betas["a"] != vcmm.betas["b"]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cls", ["Adam", "AdamW"])
def test_fact_08_float_hyperparameters_are_right_too_if_slow(cls: str) -> None:
    """Each new float is a new constant, so dynamo traces again until it gives up; see the guide."""
    expected = eager_run(lambda: make(cls, **in_floats(0.1)), 6)
    model, optimizer, controller = make(cls, **in_floats(0.1))
    step = torch.compile(optimizer.step, backend="eager")
    for t in range(6):
        set_gradients(model, t)
        with controller.applied():
            step()
    assert_close(model, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("cls", "weight_decay"), ADAMS)
def test_fact_08_applied_around_an_eager_step_is_the_hooked_step_bitwise(
    cls: str, weight_decay: float
) -> None:
    for settings in (in_floats, in_tensors):
        expected = eager_run(lambda s=settings: make(cls, **s(weight_decay)), 6)
        model, optimizer, controller = make(cls, **settings(weight_decay))
        for t in range(6):
            set_gradients(model, t)
            with controller.applied():
                optimizer.step()
        assert_close(model, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fact_08_applied_serves_a_step_that_no_hook_can_see(name: str) -> None:
    cls, settings = OPTIMIZERS[name]
    expected = eager_run(lambda: make(cls, **settings), 6)
    model, optimizer, controller = make(cls, **settings)
    for t in range(6):
        set_gradients(model, t)
        with controller.applied():
            bypass(optimizer)
        observe(controller)  # no alarm
        controller.discard()
    assert_close(model, expected, rtol=0, atol=0)


# Without applied(). What dynamo cannot trace of the controller it runs, and says so.


@pytest.mark.filterwarnings("ignore:Graph break")
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("settings", [in_floats, in_tensors])
def test_fact_08_without_applied_the_hooks_run_and_the_numbers_agree(
    settings: Callable[[float], dict[str, Any]],
) -> None:
    """Dynamo then traces through the controller as well, which is slower, and no more than that."""
    expected = eager_run(lambda: make("AdamW", **settings(0.1)), 4)
    model, optimizer, controller = make("AdamW", **settings(0.1))
    before = [dict(g) for g in optimizer.param_groups]
    step = torch.compile(optimizer.step, backend="eager")
    for t in range(4):
        set_gradients(model, t)
        step()
        for old, group in zip(before, optimizer.param_groups, strict=True):
            # Equal, where dynamo has put a copy of a float or a tuple in place of it.
            assert all(group[key] == old[key] for key in ("lr", "betas", "weight_decay"))
    assert_close(model, expected, rtol=1e-12, atol=1e-14)
    observe(controller)  # the watchdog has seen every step


@pytest.mark.filterwarnings("ignore:Graph break")
@pytest.mark.usefixtures("float64")
def test_fact_08_without_applied_the_full_method_agrees_too() -> None:
    def make_it() -> Any:
        model, optimizer, controller = make("AdamW", **in_tensors(0.1))
        controller.detach()
        return model, optimizer, VCMM(optimizer)

    expected = eager_run(make_it, 3, observing=True)
    model, optimizer, vcmm = make_it()
    step = torch.compile(optimizer.step, backend="eager")
    for t in range(3):
        set_gradients(model, t)
        observe(vcmm, t)
        step()
    assert_close(model, expected, rtol=1e-12, atol=1e-14)
    assert vcmm.betas["a"] != vcmm.betas["b"]


# The watchdog


@torch.no_grad()
def bypass(optimizer: Optimizer) -> None:
    """A step as torch would run it if there were no hooks."""
    inspect.unwrap(type(optimizer).step)(optimizer)


@pytest.mark.parametrize("seen", [0, 1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fact_08_a_step_without_hooks_is_a_loud_error_at_the_next_observe(
    name: str, seen: int
) -> None:
    cls, settings = OPTIMIZERS[name]
    model, optimizer, controller = make(cls, **settings)
    for t in range(seen):
        set_gradients(model, t)
        observe(controller)
        optimizer.step()
    observe(controller)
    set_gradients(model, seen)
    bypass(optimizer)
    with pytest.raises(RuntimeError, match=r"applied\(\)"):
        observe(controller)


def test_fact_08_applied_notices_an_earlier_step_without_hooks_too() -> None:
    model, optimizer, controller = make("Adam", lr=0.01)
    set_gradients(model, 0)
    bypass(optimizer)
    with pytest.raises(RuntimeError, match=r"applied\(\)"), controller.applied():
        pass


@pytest.mark.parametrize("cls", ["AdamW", "SGD"])
def test_fact_08_a_step_without_hooks_is_noticed_where_the_first_modality_is_frozen(
    cls: str,
) -> None:
    settings = {"momentum": 0.9} if cls == "SGD" else {}
    model, optimizer, controller = make(cls, lr=0.01, **settings)
    for t in range(2):
        set_gradients(model, t)
        optimizer.step()
    optimizer.zero_grad()
    set_gradients(model["b"], 2)
    bypass(optimizer)
    with pytest.raises(RuntimeError, match=r"applied\(\)"):
        observe(controller)


def clip_weights(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.1, 0.1)


def average_weights(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    mean = torch.optim.swa_utils.AveragedModel(model)
    mean.update_parameters(model)
    model.load_state_dict(mean.module.state_dict())


def swap_weights(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone().mul_(0.9)


def reload_model(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    model.load_state_dict(copy.deepcopy(model.state_dict()))


def reload_optimizer(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def reload_plain_optimizer(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    del state["vcmm"]
    optimizer.load_state_dict(state)


def clear_state(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    optimizer.state.clear()


def clear_one_modality(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    for parameter in model["a"].parameters():
        del optimizer.state[parameter]


def replace_state(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    """As one that moves the state to another device does."""
    for values in optimizer.state.values():
        for key, value in values.items():
            values[key] = value.clone() if isinstance(value, Tensor) else value


def read_everything(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    optimizer.state_dict()
    copy.deepcopy(optimizer)
    repr(optimizer)


def add_group(model: nn.ModuleDict, optimizer: Optimizer) -> None:
    more = nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [more], "name": "more", "modality": None})


INTERVENTIONS = [
    clip_weights,
    average_weights,
    swap_weights,
    reload_model,
    reload_optimizer,
    reload_plain_optimizer,
    clear_state,
    clear_one_modality,
    replace_state,
    read_everything,
    add_group,
]


@pytest.mark.parametrize("taken", [0, 2])
@pytest.mark.parametrize("intervene", INTERVENTIONS)
@pytest.mark.parametrize("name", ["Adam", "AdamW-fused", "SGD"])
def test_fact_08_the_watchdog_raises_no_false_alarm(
    name: str, intervene: Callable[[nn.ModuleDict, Optimizer], None], taken: int
) -> None:
    cls, settings = OPTIMIZERS[name]
    model, optimizer, controller = make(cls, **settings)
    for t in range(taken):
        set_gradients(model, t)
        observe(controller)
        optimizer.step()
    if taken or intervene is not clear_one_modality:
        intervene(model, optimizer)
    observe(controller)
    set_gradients(model, taken)
    optimizer.step()
    intervene(model, optimizer)
    observe(controller)


@pytest.mark.parametrize("intervene", INTERVENTIONS)
def test_fact_08_the_watchdog_still_barks_after_an_intervention(
    intervene: Callable[[nn.ModuleDict, Optimizer], None],
) -> None:
    model, optimizer, controller = make("Adam", lr=0.01)
    set_gradients(model, 0)
    optimizer.step()
    intervene(model, optimizer)
    observe(controller)
    set_gradients(model, 1)
    bypass(optimizer)
    with pytest.raises(RuntimeError, match=r"applied\(\)"):
        observe(controller)


def test_fact_08_loading_into_a_fresh_optimizer_raises_no_false_alarm() -> None:
    model, optimizer, _ = make("Adam", lr=0.01)
    for t in range(2):
        set_gradients(model, t)
        optimizer.step()
    _, fresh, controller = make("Adam", lr=0.01)
    fresh.load_state_dict(optimizer.state_dict())
    observe(controller)
    _, used, former = make("Adam", lr=0.01)
    former.detach()
    used.load_state_dict(optimizer.state_dict())
    observe(VCMM(used))  # attached to an optimizer with a history
