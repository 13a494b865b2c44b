"""Fact 4: under `torch.amp.GradScaler` a step that overflows is no step at all."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vcmm import VCMM, Fixed, MomentumController, modal_groups
from vcmm.checkpoint import read
from vcmm.record import pack

STEPS = 12
NEVER: frozenset[int] = frozenset()
OVERFLOWS = {
    "never": NEVER,
    "first": frozenset({0}),
    "first two": frozenset({0, 1}),
    "in between": frozenset({3, 4, 8}),
    "last": frozenset({STEPS - 1}),
}
ADAM = {"lr": 0.01, "weight_decay": 0.1}
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam-fused": ("Adam", {**ADAM, "fused": True}),
    "AdamW-fused": ("AdamW", {**ADAM, "fused": True}),
    "SGD-fused": ("SGD", {**SGD, "fused": True}),
    "Adam": ("Adam", ADAM),
    "AdamW-foreach": ("AdamW", {**ADAM, "foreach": True}),
    "RAdam": ("RAdam", ADAM),
    "NAdam": ("NAdam", ADAM),
    "SGD": ("SGD", SGD),
}
FUSED = [name for name in OPTIMIZERS if name.endswith("fused")]
UNFUSED = [name for name in OPTIMIZERS if name not in FUSED]


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


class Run:
    """A training loop in which chosen steps overflow.

    The scale is a power of two, so scaling and unscaling are exact, and a run under the scaler can
    be compared bitwise with one that never heard of it.
    """

    def __init__(
        self,
        name: str,
        controller: Any = VCMM,
        *,
        shared: bool = True,
        set_to_none: bool = True,
        unscale: bool = False,
        discard: bool = False,
        observe: str = "after",
        **changes: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = Net()
        if not shared:
            del self.model.shared
            self.model.shared = nn.Identity()
        groups = modal_groups(self.model, a=self.model.a, b=self.model.b)
        cls, settings = OPTIMIZERS[name]
        self.optimizer: Optimizer = getattr(torch.optim, cls)(groups, **{**settings, **changes})
        self.vcmm: MomentumController = controller(self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        self.set_to_none = set_to_none
        self.unscale = unscale
        self.discard = discard
        self.observe = observe

    def backward(self, t: int, scale: Any) -> None:
        generator = torch.Generator().manual_seed(t)
        x = {
            "a": torch.randn(8, 4, generator=generator),
            "b": torch.randn(8, 2, generator=generator),
        }
        y = torch.randint(3, (8,), generator=generator)
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        fused, seen = self.model(x)
        if self.observe == "before":
            self.vcmm.observe(y, **seen)
        scale(nn.functional.cross_entropy(fused, y)).backward()
        if self.observe == "after":
            self.vcmm.observe(y, **seen)

    def plain(self, steps: Iterable[int]) -> "Run":
        for t in steps:
            self.backward(t, lambda loss: loss)
            self.optimizer.step()
        return self

    def scaled(self, overflows: frozenset[int], steps: Iterable[int] = range(STEPS)) -> "Run":
        for t in steps:
            self.backward(t, self.scaler.scale)
            if t in overflows:
                gradient = self.model.b["encoder"].weight.grad
                assert gradient is not None
                gradient[0, 0] = torch.inf
            if self.unscale:
                self.scaler.unscale_(self.optimizer)
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            skipped = self.scaler.get_scale() < before
            assert skipped == (t in overflows)
            if skipped and self.discard:
                self.vcmm.discard()
        return self

    def parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def record(self) -> str:
        """Ages, estimates and memory: all that the controller knows, bit for bit, as text.

        Only how often it has discarded is left out.
        """
        record = read(self.vcmm.state_dict())
        del record["discarded"]
        return pack(record)

    @property
    def discarded(self) -> float:
        return self.vcmm.metrics()["discarded"]


def steps_without(overflows: frozenset[int]) -> list[int]:
    return [t for t in range(STEPS) if t not in overflows]


def assert_same_run(run: Run, absent: Run) -> None:
    assert all(p.isfinite().all() for p in run.parameters().values())
    torch.testing.assert_close(run.parameters(), absent.parameters(), rtol=0, atol=0)
    assert run.record() == absent.record()
    assert run.vcmm.betas == absent.vcmm.betas


# Bitwise as if the steps that overflowed had never been


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("when", OVERFLOWS)
@pytest.mark.parametrize("name", FUSED)
def test_fact_04_t_and_p_stand_still_where_a_fused_kernel_skips(
    name: str, when: str, unscale: bool
) -> None:
    overflows = OVERFLOWS[when]
    # torch's fused SGD starts its buffers from memory that an overflow in the first step leaves
    # as it was found. The controller's zeros are a cure for its own groups, so there are no others.
    shared = name != "SGD-fused"
    run = Run(name, unscale=unscale, shared=shared).scaled(overflows)
    absent = Run(name, shared=shared).plain(steps_without(overflows))
    assert_same_run(run, absent)
    assert run.discarded == len(overflows)
    assert run.vcmm.betas["a"] != run.vcmm.betas["b"]  # momenta did move


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("when", ["never", "first", "first two", "in between"])
@pytest.mark.parametrize("name", UNFUSED)
def test_fact_04_t_and_p_stand_still_where_the_scaler_never_calls_step(
    name: str, when: str, unscale: bool
) -> None:
    """What was observed for a skipped step must not enter the next: zero_grad() gives it away."""
    overflows = OVERFLOWS[when]
    run = Run(name, unscale=unscale).scaled(overflows)
    absent = Run(name).plain(steps_without(overflows))
    assert_same_run(run, absent)
    assert run.discarded == len(overflows)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """torch.empty gives nan, so that reading what was never written cannot go unnoticed."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("name", FUSED)
def test_fact_04_parameters_stay_finite_when_the_very_first_fused_step_overflows(
    name: str,
) -> None:
    run = Run(name, shared=name != "SGD-fused").scaled(OVERFLOWS["first"])
    assert all(p.isfinite().all() for p in run.parameters().values())


@pytest.mark.parametrize("name", FUSED)
def test_fact_04_a_policy_that_needs_no_observations_stands_still_too(name: str) -> None:
    """Fixed betas: then P is the only thing that could run ahead, and nothing was dropped."""

    def fixed(optimizer: Optimizer) -> MomentumController:
        return MomentumController(optimizer, Fixed(a=0.95, b=0.8))

    overflows = OVERFLOWS["in between"]
    run = Run(name, fixed, observe="never").scaled(overflows)
    absent = Run(name, fixed, observe="never").plain(steps_without(overflows))
    assert_same_run(run, absent)
    assert run.discarded == 0


@pytest.mark.parametrize("name", FUSED)
def test_fact_04_an_overflow_leaves_the_groups_alone(name: str) -> None:
    run = Run(name).scaled(NEVER, range(3))
    seen: list[bool] = []
    before = [{**g} for g in run.optimizer.param_groups]

    def look(*_: Any) -> None:
        now = run.optimizer.param_groups
        seen.append(all(o[k] is g[k] for o, g in zip(before, now, strict=True) for k in o))

    handle = run.optimizer.register_step_pre_hook(look)
    run.scaled(frozenset({3}), range(3, 4))
    assert seen == [True]
    handle.remove()
    handle = run.optimizer.register_step_pre_hook(look)
    run.scaled(NEVER, range(4, 5))
    assert seen == [True, False]  # a step that is taken is written
    handle.remove()


# Fused and unfused


@pytest.mark.parametrize("when", ["never", "first two", "in between"])
@pytest.mark.parametrize(("cls", "settings"), [("Adam", ADAM), ("AdamW", ADAM), ("SGD", SGD)])
def test_fact_04_fused_and_unfused_measure_and_decide_the_same(
    cls: str, settings: dict[str, Any], when: str
) -> None:
    """From the same observations: R, Q and betas bitwise, parameters to the kernels' rounding."""
    results: list[tuple[list[dict[str, float]], list[Tensor]]] = []
    for fused in (False, True):
        generator = torch.Generator().manual_seed(0)
        parameters = {
            m: nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64))
            for m in ("a", "b")
        }
        groups = [{"params": [p], "name": m, "modality": m} for m, p in parameters.items()]
        optimizer = getattr(torch.optim, cls)(groups, **settings, fused=fused)
        vcmm = VCMM(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        metrics: list[dict[str, float]] = []
        for t in range(STEPS):
            optimizer.zero_grad()
            loss = torch.zeros((), dtype=torch.float64)
            for parameter in parameters.values():
                weight = torch.randn(4, 3, generator=generator, dtype=torch.float64)
                loss = loss + (weight * parameter).sum()
            scaler.scale(loss).backward()
            if t in OVERFLOWS[when]:
                assert parameters["a"].grad is not None
                parameters["a"].grad[0, 0] = torch.inf
            pairs = {
                m: (torch.randn(6, 3, generator=generator), torch.randn(6, 2, generator=generator))
                for m in parameters
            }
            vcmm.observe(torch.tensor([0, 1, 1, 0, 1, 0]), **pairs)
            scaler.step(optimizer)
            scaler.update()
            if t not in OVERFLOWS[when]:  # unfused, an overflow is only known at the next observe
                metrics.append(vcmm.metrics())
        results.append((metrics, [p.detach() for p in parameters.values()]))
    (unfused_metrics, unfused), (fused_metrics, fused_parameters) = results
    assert fused_metrics == unfused_metrics
    assert unfused_metrics[-1]["discarded"] == len(OVERFLOWS[when])
    assert len({m["a/R"] for m in unfused_metrics}) == len(unfused_metrics)
    torch.testing.assert_close(fused_parameters, unfused, rtol=1e-12, atol=1e-14)


# What only the user can know


@pytest.mark.parametrize(
    ("set_to_none", "observe"), [(False, "after"), (True, "before"), (False, "before")]
)
def test_fact_04_discard_tells_of_a_skipped_step_that_left_no_trace(
    set_to_none: bool, observe: str
) -> None:
    """Gradients zeroed in place, or looked at before they exist, look like accumulation."""
    overflows = OVERFLOWS["in between"]
    kind = {"set_to_none": set_to_none, "observe": observe}
    run = Run("AdamW-foreach", discard=True, **kind).scaled(overflows)
    absent = Run("AdamW-foreach", **kind).plain(steps_without(overflows))
    assert_same_run(run, absent)
    assert run.discarded == len(overflows)


@pytest.mark.parametrize("name", ["AdamW-foreach", "AdamW-fused"])
def test_fact_04_discard_on_top_of_what_was_noticed_counts_once(name: str) -> None:
    overflows = OVERFLOWS["in between"]
    run = Run(name, discard=True).scaled(overflows)
    assert_same_run(run, Run(name).plain(steps_without(overflows)))
    assert run.discarded == len(overflows)


def test_fact_04_discard_of_nothing_is_not_counted() -> None:
    run = Run("Adam")
    run.vcmm.discard()
    assert run.discarded == 0
    run.plain(range(3)).vcmm.discard()
    assert run.discarded == 0


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("observe", ["before", "after"])
@pytest.mark.parametrize("name", ["Adam", "Adam-fused"])
def test_fact_04_a_run_without_overflow_discards_nothing(
    name: str, observe: str, set_to_none: bool
) -> None:
    run = Run(name, observe=observe, set_to_none=set_to_none).scaled(NEVER)
    assert_same_run(run, Run(name).plain(range(STEPS)))
    assert run.discarded == 0


@pytest.mark.parametrize("name", ["Adam", "Adam-fused"])
def test_fact_04_a_run_of_zero_grad_after_the_step_discards_nothing(name: str) -> None:
    """The other common place of zero_grad(): the gradients of the last step are gone at once."""
    run = Run(name)
    for t in range(STEPS):
        run.backward(t, run.scaler.scale)
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.optimizer.zero_grad()
    assert_same_run(run, Run(name).plain(range(STEPS)))
    assert run.discarded == 0


@pytest.mark.parametrize("name", ["AdamW-foreach", "AdamW-fused"])
def test_fact_04_all_micro_batches_of_a_step_that_overflows_are_dropped(name: str) -> None:
    def accumulate(run: Run, t: int, scale: Any) -> None:
        run.backward(2 * t, scale)
        zero_grad, run.optimizer.zero_grad = run.optimizer.zero_grad, lambda **_: None
        run.backward(2 * t + 1, scale)
        run.optimizer.zero_grad = zero_grad

    run, absent = Run(name), Run(name)
    for t in range(6):
        accumulate(run, t, run.scaler.scale)
        if t in {0, 3}:
            gradient = run.model.a["head"].weight.grad
            assert gradient is not None
            gradient[0, 0] = torch.nan
        run.scaler.step(run.optimizer)
        run.scaler.update()
        if t not in {0, 3}:
            accumulate(absent, t, lambda loss: loss)
            absent.optimizer.step()
    assert_same_run(run, absent)
    assert run.discarded == 2


def test_fact_04_the_watchdog_is_silent_under_a_scaler() -> None:
    """A fused kernel touches its step count also when it skips; that is no unseen step."""
    for name in ("AdamW-fused", "AdamW-foreach"):
        Run(name).scaled(frozenset({0, 2, 3}))
