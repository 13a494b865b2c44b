"""Any momentum sequence, realized by torch's own kernels, is the paper's moment to rounding error.

The yardstick is `vcmm.reference`, one object per parameter. Everything is driven through a
`MomentumController` with the policy that a user would write to replay a sequence.
"""

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from vcmm import Fixed, Kalman, MomentumController, Policy, Probe, momentum, reference, register

STEPS = 60
RTOL = 1e-12
LR = 1e-2
BETA0 = 0.9

Betas = dict[str, float]


@pytest.fixture
def double() -> Iterator[None]:
    """NAdam keeps its product of mu in the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Replay(Policy):
    """Step t has the momenta of the t-th entry. A modality that it leaves out keeps its base."""

    def __init__(self, betas: Sequence[Betas]) -> None:
        self.betas = iter(betas)

    def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, Any]:
        return next(self.betas)


# The matrix: (torch's class, the reference's, what both are given besides)

Family = tuple[type[torch.optim.Optimizer], Callable[..., reference.Optimizer], dict[str, Any]]

OPTIMIZERS: dict[str, Family] = {
    "adam": (torch.optim.Adam, reference.Adam, {}),
    "adam_flag": (torch.optim.Adam, reference.Adam, {"decoupled": True}),
    "adamw": (torch.optim.AdamW, reference.Adam, {"decoupled": True}),
    "amsgrad": (torch.optim.Adam, reference.Adam, {"amsgrad": True}),
    "amsgradw": (torch.optim.AdamW, reference.Adam, {"amsgrad": True, "decoupled": True}),
    "adamax": (torch.optim.Adamax, reference.Adamax, {}),
    "radam": (torch.optim.RAdam, reference.RAdam, {}),
    "radam_flag": (torch.optim.RAdam, reference.RAdam, {"decoupled": True}),
    "nadam": (torch.optim.NAdam, reference.NAdam, {}),
    "nadam_flag": (torch.optim.NAdam, reference.NAdam, {"decoupled": True}),
    "sgd": (torch.optim.SGD, reference.SGD, {}),
}
IMPLEMENTATIONS = ("loop", "foreach", "fused")


def accepts(name: str, argument: str) -> bool:
    return argument in inspect.signature(OPTIMIZERS[name][0]).parameters


# A class without a fused kernel has no such argument, in whichever torch this is.
CASES = [
    pytest.param(
        name,
        implementation,
        id=f"{name}-{implementation}",
        marks=pytest.mark.skipif(
            name == "adam_flag" and not accepts(name, "decoupled_weight_decay"),
            reason="this torch's Adam has no decoupled_weight_decay",
        ),
    )
    for name in OPTIMIZERS
    for implementation in IMPLEMENTATIONS
    if implementation != "fused" or accepts(name, "fused")
]


def kernel_flags(name: str, implementation: str) -> dict[str, bool]:
    if implementation == "fused":
        return {"fused": True}
    return {"foreach": implementation == "foreach"}


def memory_flags(name: str) -> dict[str, Any]:
    if name == "sgd":
        return {"momentum": BETA0}
    return {"betas": (BETA0, 0.99), "eps": 1e-6}


def build(
    name: str, implementation: str, groups: list[dict[str, Any]], **more: Any
) -> torch.optim.Optimizer:
    kind, _, flags = OPTIMIZERS[name]
    settings = {"lr": LR, **memory_flags(name), **kernel_flags(name, implementation), **more}
    if flags.get("amsgrad"):
        settings["amsgrad"] = True
    if flags.get("decoupled") and kind is not torch.optim.AdamW:
        settings["decoupled_weight_decay"] = True
    return kind(groups, **settings)


def slow_copies(
    name: str, groups: list[dict[str, Any]], **more: Any
) -> list[list[reference.Optimizer]]:
    """One reference per parameter, in the order of the groups."""
    _, kind, flags = OPTIMIZERS[name]
    settings = {"lr": LR, **memory_flags(name), **flags, **more}
    return [[kind(p, **settings) for p in group["params"]] for group in groups]


SHAPES = {"audio": [(3, 4), (5,)], "video": [(2, 3), (7,), ()], "shared": [(4,)]}


def make_groups(
    dtype: torch.dtype = torch.float64, only: str | None = None
) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    groups: list[dict[str, Any]] = []
    for name, shapes in SHAPES.items():
        params = [
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
            for shape in shapes
        ]
        modality = None if name == "shared" or (only and name != only) else name
        groups.append({"params": params, "name": name, "modality": modality})
    return groups


def give_gradients(groups: list[dict[str, Any]], t: int) -> None:
    """Of sizes from 1e-7 to 10, growing and shrinking, so that eps and amsgrad matter."""
    generator = torch.Generator().manual_seed(1000 + t)
    for group in groups:
        for p in group["params"]:
            size = torch.logspace(1, -7, max(p.numel(), 2), dtype=torch.float64)[: p.numel()]
            g = torch.randn(p.numel(), generator=generator, dtype=torch.float64)
            p.grad = (size * (1 + math.sin(t)) * g).reshape(p.shape).to(p.dtype)


def varying(steps: int = STEPS, low: float = 0.70, high: float = 0.99) -> list[Betas]:
    """Every modality its own sequence; at the start both jump between the ends of the range."""
    generator = torch.Generator().manual_seed(7)
    drawn = (low + (high - low) * torch.rand(steps, 2, generator=generator)).tolist()
    jumps = [(low, high), (low, high), (high, low), (BETA0, BETA0), (low, high)]
    pairs = [*jumps, *drawn][:steps]
    return [{"audio": a, "video": v} for a, v in pairs]


def distance(
    groups: list[dict[str, Any]], slow: list[list[reference.Optimizer]], start: list[Tensor]
) -> float:
    """The largest relative error over groups, of the way that each has moved."""
    worst = 0.0
    for group, copies, begun in zip(groups, slow, start, strict=True):
        expected = torch.cat([copy.parameter.flatten() for copy in copies])
        error = flat(group) - expected
        worst = max(worst, float(error.norm() / (expected - begun).norm()))
    return worst


def flat(group: dict[str, Any]) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in group["params"]])


def run(
    name: str,
    implementation: str,
    sequence: Sequence[Betas],
    *,
    exact: bool = True,
    reference_flags: Mapping[str, Any] | None = None,
    **more: Any,
) -> float:
    """The worst error over all steps of one run of the library against the reference."""
    groups = make_groups()
    start = [flat(group) for group in groups]
    slow_more = {k: v for k, v in more.items() if k in ("weight_decay", "maximize")}
    slow = slow_copies(name, groups, **slow_more, **({} if exact else {"exact": False}))
    for copy in itertools.chain(*slow):
        for key, value in (reference_flags or {}).items():
            setattr(copy, key, value)
    optimizer = build(name, implementation, groups, **more)
    MomentumController(optimizer, Replay(sequence), exact=exact)
    worst = 0.0
    for t, beta in enumerate(sequence):
        give_gradients(groups, t)
        for group, copies in zip(groups, slow, strict=True):
            for p, copy in zip(group["params"], copies, strict=True):
                copy.step(p.grad, beta.get(group["name"], BETA0))
        optimizer.step()
        worst = max(worst, distance(groups, slow, start))
    return worst


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("name", "implementation"), CASES)
@pytest.mark.usefixtures("double")
def test_fact_01_varying_momenta_are_the_reference(
    name: str, implementation: str, weight_decay: float
) -> None:
    assert run(name, implementation, varying(), weight_decay=weight_decay) <= RTOL


@pytest.mark.parametrize(("name", "implementation"), CASES)
@pytest.mark.usefixtures("double")
def test_fact_01_with_maximize(name: str, implementation: str) -> None:
    assert run(name, implementation, varying(), weight_decay=0.1, maximize=True) <= RTOL


@pytest.mark.parametrize(("name", "implementation"), CASES)
@pytest.mark.usefixtures("double")
def test_fact_01_after_steps_at_the_base_that_wrote_nothing(name: str, implementation: str) -> None:
    """The first steps are plain torch's, and what they left behind must fit what comes then."""
    betas = [{}] * 7 + varying(30)
    assert run(name, implementation, betas, weight_decay=0.1) <= RTOL


@pytest.mark.parametrize(("name", "implementation"), CASES)
@pytest.mark.usefixtures("double")
def test_fact_01_with_one_modality_moving_and_one_left_out(name: str, implementation: str) -> None:
    betas = [{"video": beta["video"]} for beta in varying(30)]
    assert run(name, implementation, betas, weight_decay=0.1) <= RTOL


@pytest.mark.parametrize(("name", "implementation"), CASES)
@pytest.mark.usefixtures("double")
def test_fact_01_a_momentum_of_zero_is_the_reference_too(name: str, implementation: str) -> None:
    """It is within [0, 1), which a policy may give; torch's SGD reads momentum 0 as no buffer."""
    betas = varying(30)
    for t in (0, 4, 11, 12):
        betas[t] = {"audio": 0.0, "video": betas[t]["video"]}
    betas[6] = {"audio": betas[6]["audio"], "video": 0.0}
    assert run(name, implementation, betas, weight_decay=0.1) <= RTOL


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_fact_01_over_a_long_run(name: str) -> None:
    """P_t underflows near step 800 where it is formed as a product; its logarithm does not."""
    assert run(name, "loop", varying(1000, 0.20, 0.60)) <= 1e-11


# The ablation without the exact correction

INEXACT = [case for case in CASES if not str(case.id).startswith("nadam")]


@pytest.mark.parametrize(("name", "implementation"), INEXACT)
@pytest.mark.usefixtures("double")
def test_inexact_is_torchs_own_correction(name: str, implementation: str) -> None:
    assert run(name, implementation, varying(), exact=False, weight_decay=0.1) <= RTOL


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.usefixtures("double")
def test_inexact_and_exact_are_far_apart(name: str) -> None:
    """So the two tests above cannot both pass by accident."""
    inexact_reference = {"exact": False}
    assert run(name, "loop", varying(), reference_flags=inexact_reference) > 1e-3


# Learning rate and betas in tensors

TENSOR_LR = [
    *((name, "loop") for name in OPTIMIZERS if name != "adam_flag"),
    *((name, "foreach") for name in ("adamax", "radam", "radam_flag", "nadam", "sgd")),
    *((name, "fused") for name in ("adam", "adamw", "amsgrad", "sgd")),
]
TENSOR_BETAS = [
    *((name, "loop") for name in OPTIMIZERS if name not in ("adam_flag", "sgd")),
    *((name, "fused") for name in ("adam", "adamw", "amsgrad")),
]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("name", "implementation"), TENSOR_LR)
@pytest.mark.usefixtures("double")
def test_fact_01_tensor_lr(name: str, implementation: str, weight_decay: float) -> None:
    lr = torch.tensor(LR, dtype=torch.float64)
    error = run(name, implementation, varying(), lr=lr, weight_decay=weight_decay)
    assert error <= RTOL
    assert float(lr) == LR


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize(("name", "implementation"), TENSOR_BETAS)
@pytest.mark.usefixtures("double")
def test_fact_01_tensor_betas(name: str, implementation: str, tensor_lr: bool) -> None:
    betas = tuple(torch.tensor(beta, dtype=torch.float64) for beta in (BETA0, 0.99))
    lr = torch.tensor(LR, dtype=torch.float64) if tensor_lr else LR
    error = run(name, implementation, varying(), lr=lr, betas=betas, weight_decay=0.1)
    assert error <= RTOL
    assert [float(beta) for beta in betas] == [BETA0, 0.99]


# The scale of the learning rate


def scales(betas: Sequence[float]) -> list[float]:
    """c_t = (1 - beta_t^t) / (1 - P_t), from the formula."""
    return [(1 - beta**t) / (1 - math.prod(betas[:t])) for t, beta in enumerate(betas, start=1)]


@pytest.mark.usefixtures("double")
def test_fact_01_the_scale_spans_a_factor_of_forty_and_is_what_the_step_sees() -> None:
    """c_t comes to .06 and to 2.7 inside the clip range, so nothing here is a small correction."""
    down, up = [0.70, 0.70, 0.99], [0.99] * 8 + [0.70]
    betas = [{"audio": a, "video": v} for a, v in zip(down + [0.99] * 6, up, strict=True)]
    groups = make_groups()
    optimizer = build("adam", "loop", groups)
    MomentumController(optimizer, Replay(betas))
    seen: list[list[float]] = []
    # Registered after the controller's, so it sees what the kernel is going to see.
    optimizer.register_step_pre_hook(
        lambda o, args, kwargs: seen.append([group["lr"] / LR for group in o.param_groups])
    )
    for t in range(len(betas)):
        give_gradients(groups, t)
        optimizer.step()
    audio, video, shared = zip(*seen, strict=True)
    assert audio == pytest.approx(scales([b["audio"] for b in betas]), rel=1e-13)
    assert video == pytest.approx(scales([b["video"] for b in betas]), rel=1e-13)
    assert set(shared) == {1.0}
    assert min(audio) < 0.06
    assert max(video) > 2.6


@pytest.mark.parametrize("name", ["adamw", "radam_flag"])
@pytest.mark.usefixtures("double")
def test_fact_01_decoupled_decay_must_be_divided_by_the_scale(name: str) -> None:
    """A reference whose decay is scaled along with lr, as by doing nothing, is > 1 % away."""
    groups = make_groups(only="audio")[:1]
    start = [flat(group) for group in groups]
    right, wrong = (slow_copies(name, groups, weight_decay=0.1) for _ in range(2))
    optimizer = build(name, "loop", groups, weight_decay=0.1)
    betas = [beta["audio"] for beta in varying()]
    MomentumController(optimizer, Replay([{"audio": beta} for beta in betas]))
    for t, (beta, scale) in enumerate(zip(betas, scales(betas), strict=True)):
        give_gradients(groups, t)
        for p, good, bad in zip(groups[0]["params"], right[0], wrong[0], strict=True):
            bad.weight_decay = 0.1 * scale
            good.step(p.grad, beta)
            bad.step(p.grad, beta)
        optimizer.step()
    assert distance(groups, right, start) <= RTOL
    assert distance(groups, wrong, start) > 0.01


@pytest.mark.usefixtures("double")
def test_fact_01_a_schedule_of_the_learning_rate_stays_outside_the_scale() -> None:
    groups = make_groups()
    start = [flat(group) for group in groups]
    slow = slow_copies("adamw", groups, weight_decay=0.1)
    optimizer = build("adamw", "foreach", groups, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    MomentumController(optimizer, Replay(varying()))
    for t, beta in enumerate(varying()):
        give_gradients(groups, t)
        lr = LR * (1 + math.cos(math.pi * t / STEPS)) / 2
        for group, copies in zip(groups, slow, strict=True):
            for p, copy in zip(group["params"], copies, strict=True):
                copy.lr = lr
                copy.step(p.grad, beta.get(group["name"], BETA0))
        optimizer.step()
        schedule.step()
    # torch steps the cosine by a recursion, whose own rounding is a little above ours.
    assert distance(groups, slow, start) <= 1e-11


# SGD to the letter


@pytest.fixture
def literal_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(momentum, "_BINDINGS", dict(momentum._BINDINGS))
    parameter = torch.zeros(1, requires_grad=True)
    usual = momentum.binding_of(torch.optim.SGD([parameter], lr=LR, momentum=BETA0))
    register(torch.optim.SGD, dataclasses.replace(usual, literal=True))


def run_literal(implementation: str, betas: Sequence[Betas]) -> float:
    """As `run`, on the tagged groups: untagged ones stay plain SGD, whatever the binding."""
    groups = make_groups()[:2]
    start = [flat(group) for group in groups]
    slow = slow_copies("sgd", groups, weight_decay=0.1, literal=True)
    optimizer = build("sgd", implementation, groups, weight_decay=0.1)
    MomentumController(optimizer, Replay(betas))
    for t, beta in enumerate(betas):
        give_gradients(groups, t)
        for group, copies in zip(groups, slow, strict=True):
            for p, copy in zip(group["params"], copies, strict=True):
                copy.step(p.grad, beta.get(group["name"], BETA0))
        optimizer.step()
    return distance(groups, slow, start)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.usefixtures("literal_sgd")
def test_fact_01_literal_sgd_steps_by_the_debiased_moment(implementation: str) -> None:
    assert run_literal(implementation, varying()) <= RTOL


@pytest.mark.parametrize("betas", [[{}] * 5, [{}] * 5 + varying(30)], ids=["base", "then moving"])
@pytest.mark.usefixtures("literal_sgd")
def test_fact_01_literal_sgd_is_literal_at_the_base_too(betas: list[Betas]) -> None:
    """There m is (1 - beta0) times plain SGD's buffer, so even the base cannot be left alone."""
    assert run_literal("loop", betas) <= RTOL


# bfloat16

U = 2.0**-8  # half a unit in the last of bfloat16's 8 bits: what one rounding may cost, relatively

BF16 = [case for case in CASES if not str(case.id).startswith("nadam")]


def in_bf16(name: str, implementation: str, *, exact: bool = True) -> float:
    """The worst one-step error in units of its bound.

    Before each step the reference is handed x and the moments as bfloat16 holds them, so that it
    measures the roundings of one step and not their sum over the run. x is rounded once, and once
    more by decoupled decay; the update by some eight operations (decay, moments, root, quotients),
    on numbers that may be twice its largest entry: |error| <= u (2 max|x| + 16 max|update|).
    """
    groups = make_groups(torch.bfloat16)[:2]
    slow = slow_copies(name, groups, lr=0.1, weight_decay=0.1, exact=exact)
    optimizer = build(name, implementation, groups, lr=0.1, weight_decay=0.1)
    MomentumController(optimizer, Replay(varying(40)))
    worst = 0.0
    for t, beta in enumerate(varying(40)):
        generator = torch.Generator().manual_seed(t)
        for group, copies in zip(groups, slow, strict=True):
            for p, copy in zip(group["params"], copies, strict=True):
                p.grad = torch.randn(p.shape, generator=generator).to(torch.bfloat16)
                hand_over(optimizer.state[p], copy, p)
                copy.step(p.grad, beta[group["name"]])
        before = [flat(group) for group in groups]
        optimizer.step()
        for group, copies, x0 in zip(groups, slow, before, strict=True):
            expected = torch.cat([copy.parameter.flatten() for copy in copies])
            bound = U * (2 * x0.abs().max() + 16 * (expected - x0).abs().max())
            worst = max(worst, float((flat(group) - expected).abs().max() / bound))
    return worst


def hand_over(state: Mapping[str, Tensor], copy: reference.Optimizer, p: Tensor) -> None:
    copy.parameter = p.detach().double()
    for field, keys in (
        ("m", ("exp_avg", "momentum_buffer")),
        ("v", ("exp_avg_sq", "exp_inf")),
        ("v_max", ("max_exp_avg_sq",)),
    ):
        for key in keys:
            if key in state:
                setattr(copy, field, state[key].double())


@pytest.mark.parametrize(("name", "implementation"), BF16)
def test_fact_01_bfloat16_is_within_the_roundings_of_one_step(
    name: str, implementation: str
) -> None:
    assert in_bf16(name, implementation) <= 1


@pytest.mark.parametrize(("name", "implementation"), BF16)
def test_bfloat16_tolerance_notices_a_missing_correction(name: str, implementation: str) -> None:
    assert in_bf16(name, implementation, exact=False) > 2


# The base momentum is the plain optimizer, bitwise


def observations(t: int, modalities: Sequence[str]) -> tuple[Tensor, dict[str, Any]]:
    generator = torch.Generator().manual_seed(t)
    target = torch.randint(3, (8,), generator=generator)
    return target, {
        m: (torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator))
        for m in modalities
    }


BASES: dict[str, tuple[Callable[[], Policy], tuple[str, ...]]] = {
    "fixed at beta0": (lambda: Fixed(audio=BETA0, video=BETA0), ()),
    "strength 0": (lambda: Kalman(strength=0), ("audio", "video")),
    "one modality seen": (Kalman, ("audio",)),
    "no answer": (lambda: Replay([{}] * STEPS), ()),
    "warm-up": (lambda: Kalman(warmup=STEPS), ("audio", "video")),
}


def assert_bitwise(
    mine: torch.optim.Optimizer, plain: torch.optim.Optimizer, groups: Sequence[int]
) -> None:
    for i in groups:
        pairs = zip(mine.param_groups[i]["params"], plain.param_groups[i]["params"], strict=True)
        for p, q in pairs:
            assert torch.equal(p, q)
            assert mine.state[p].keys() == plain.state[q].keys()
            for key, value in plain.state[q].items():
                assert torch.equal(mine.state[p][key], value), key


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_fact_12_the_base_momentum_is_the_plain_optimizer_bitwise(
    name: str, implementation: str, base: str
) -> None:
    policy, seen = BASES[base]
    mine, theirs = make_groups(torch.float32), make_groups(torch.float32)
    optimizer = build(name, implementation, mine, weight_decay=0.1)
    plain = build(name, implementation, theirs, weight_decay=0.1)
    controller = MomentumController(optimizer, policy())
    for t in range(12):
        give_gradients(mine, t)
        give_gradients(theirs, t)
        if t % 4 == 3:  # so that parameters of one group come to differ in age
            mine[0]["params"][1].grad = theirs[0]["params"][1].grad = None
        if seen:
            target, observed = observations(t, seen)
            controller.observe(target, **observed)
        optimizer.step()
        plain.step()
        assert_bitwise(optimizer, plain, range(3))
    assert controller.betas == {"audio": BETA0, "video": BETA0}


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_fact_12_a_single_modality_is_the_plain_optimizer_bitwise(
    name: str, implementation: str
) -> None:
    mine, theirs = make_groups(torch.float32, only="audio"), make_groups(torch.float32)
    optimizer = build(name, implementation, mine, weight_decay=0.1)
    plain = build(name, implementation, theirs, weight_decay=0.1)
    controller = MomentumController(optimizer, Kalman())
    for t in range(12):
        give_gradients(mine, t)
        give_gradients(theirs, t)
        target, observed = observations(t, ["audio"])
        controller.observe(target, **observed)
        optimizer.step()
        plain.step()
    assert controller.metrics()["audio/R"] > 0  # it was measured, so it did have something to say
    assert_bitwise(optimizer, plain, range(3))


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_fact_12_untagged_groups_are_untouched_bitwise_while_others_move(
    name: str, implementation: str
) -> None:
    mine, theirs = make_groups(torch.float32), make_groups(torch.float32)
    optimizer = build(name, implementation, mine, weight_decay=0.1)
    plain = build(name, implementation, theirs, weight_decay=0.1)
    MomentumController(optimizer, Replay(varying(30)))
    for t in range(30):
        give_gradients(mine, t)
        give_gradients(theirs, t)
        optimizer.step()
        plain.step()
    assert_bitwise(optimizer, plain, [2])
    for moved, unmoved in zip(mine[:2], theirs[:2], strict=True):
        for p, q in zip(moved["params"], unmoved["params"], strict=True):
            assert not torch.equal(p, q)
    assert "vcmm_beta" not in optimizer.param_groups[2]


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_fact_12_a_modality_that_never_moves_is_plain_bitwise_beside_one_that_does(
    name: str, implementation: str
) -> None:
    mine, theirs = make_groups(torch.float32), make_groups(torch.float32)
    optimizer = build(name, implementation, mine, weight_decay=0.1)
    plain = build(name, implementation, theirs, weight_decay=0.1)
    MomentumController(optimizer, Replay([{"video": b["video"]} for b in varying(20)]))
    for t in range(20):
        give_gradients(mine, t)
        give_gradients(theirs, t)
        optimizer.step()
        plain.step()
    assert_bitwise(optimizer, plain, [0, 2])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fact_13_no_foreign_keys_in_the_state_of_a_moved_optimizer(name: str) -> None:
    if name == "adam_flag" and not accepts(name, "decoupled_weight_decay"):
        pytest.skip("this torch's Adam has no decoupled_weight_decay")
    mine, theirs = make_groups(torch.float32), make_groups(torch.float32)
    optimizer, plain = build(name, "loop", mine), build(name, "loop", theirs)
    MomentumController(optimizer, Replay(varying(5)))
    for t in range(5):
        give_gradients(mine, t)
        give_gradients(theirs, t)
        optimizer.step()
        plain.step()
    for p, q in zip(
        (p for group in mine for p in group["params"]),
        (q for group in theirs for q in group["params"]),
        strict=True,
    ):
        assert optimizer.state[p].keys() == plain.state[q].keys()
