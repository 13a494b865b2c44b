"""Which optimizers are known, how they are refused, and how a user teaches another one."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import vcmm
from vcmm import Binding, Fixed, MomentumController, Policy, Probe, reference, register
from vcmm.ages import Age
from vcmm.momentum import advanced, binding_of, correction

RTOL = 1e-12
LR = 1e-2
BETA0 = 0.9


@pytest.fixture
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(vcmm.momentum, "_BINDINGS", dict(vcmm.momentum._BINDINGS))


class Replay(Policy):
    """Step t has the t-th momentum."""

    def __init__(self, betas: Sequence[float]) -> None:
        self.betas = iter(betas)

    def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"audio": next(self.betas)}


def varying(steps: int = 60) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    drawn = (0.70 + 0.29 * torch.rand(steps, generator=generator, dtype=torch.float64)).tolist()
    return [0.99, 0.70, 0.99, *drawn][:steps]


def audio(*shapes: tuple[int, ...]) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    params = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes or ((3, 4),)
    ]
    return [{"params": params, "name": "audio", "modality": "audio"}]


def assert_exact(
    optimizer: torch.optim.Optimizer,
    slow_of: Callable[[Tensor], reference.Optimizer],
    closure: Callable[[], float] | None = None,
) -> None:
    """The optimizer under a controller, against one reference per parameter."""
    betas = varying()
    params = optimizer.param_groups[0]["params"]
    slow = [slow_of(p) for p in params]
    start = [p.detach().clone() for p in params]
    MomentumController(optimizer, Replay(betas))
    generator = torch.Generator().manual_seed(2)
    for beta in betas:
        for p, copy in zip(params, slow, strict=True):
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            copy.step(p.grad, beta)
        optimizer.step(closure)
        for p, copy, x0 in zip(params, slow, start, strict=True):
            error = p.detach() - copy.parameter
            assert float(error.norm()) <= RTOL * float((copy.parameter - x0).norm())


# Every class of torch.optim is either bound or refused

CLASSES = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if kind is not torch.optim.Optimizer
}
BOUND = {
    "Adam": "bias",
    "AdamW": "bias",
    "Adamax": "bias",
    "RAdam": "bias",
    "NAdam": "inherent",
    "SGD": "anchored",
    "Muon": "inherent",
}
REFUSED = {
    "Adafactor": "no first moment",
    "Adadelta": "no first moment",
    "Adagrad": "no first moment",
    "Rprop": "no first moment",
    "RMSprop": "averages preconditioned steps",
    "ASGD": "averages parameters",
    "SparseAdam": "rows of a parameter one by one",
    "LBFGS": "history of whole steps",
}


def made(name: str) -> torch.optim.Optimizer:
    return CLASSES[name](audio(), lr=LR)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_of_torch_optim_is_bound_or_refused_with_its_reason(name: str) -> None:
    """A class that a new torch brings lands here, and fails until somebody has looked at it."""
    assert (name in BOUND) != (name in REFUSED), "look at it: bind it, or refuse it and say why"
    optimizer = made(name)
    if name in BOUND:
        assert binding_of(optimizer).correction == BOUND[name]
    else:
        with pytest.raises(TypeError, match=f"{name} cannot be controlled: .*{REFUSED[name]}"):
            MomentumController(optimizer, Fixed())


@pytest.mark.skipif(not hasattr(torch.optim, "__all__"), reason="this torch documents no list")
def test_torchs_documented_list_holds_no_further_class() -> None:
    """`torch.optim.__all__` holds optimizers, their base class, and modules and functions."""
    documented = (getattr(torch.optim, name) for name in torch.optim.__all__)
    kinds = {kind.__name__ for kind in documented if isinstance(kind, type)}
    assert kinds - {"Optimizer"} == CLASSES.keys()


@pytest.mark.parametrize("name", sorted(REFUSED.keys() & CLASSES.keys()))
def test_a_refused_optimizer_gets_no_hook(name: str) -> None:
    optimizer = made(name)
    with pytest.raises(TypeError):
        MomentumController(optimizer, Fixed())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("name", ["Adadelta", "RMSprop", "SparseAdam", "Adafactor"])
def test_most_refusals_name_what_to_use_in_place(name: str) -> None:
    if name not in CLASSES:
        pytest.skip(f"this torch has no {name}")
    with pytest.raises(TypeError, match="Use Adam"):
        MomentumController(made(name), Fixed())


# Settings that cannot be served


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "momentum is 0, so there is no memory"),
        ({"momentum": 0.9, "nesterov": True}, "nesterov=True applies the momentum twice"),
        ({"momentum": 0.9, "dampening": 0.5}, "dampening must be 0"),
    ],
    ids=["momentum", "nesterov", "dampening"],
)
def test_sgd_settings_that_are_refused(settings: dict[str, Any], reason: str) -> None:
    optimizer = torch.optim.SGD(audio(), lr=LR, **settings)
    with pytest.raises(ValueError, match=f"SGD group of modality 'audio': {reason}"):
        MomentumController(optimizer, Fixed())
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    "own", [{"momentum": 0.0}, {"nesterov": True}, {"dampening": 0.5}], ids=str
)
def test_sgd_settings_of_the_shared_group_are_nobodys_business(own: dict[str, Any]) -> None:
    shared = {"params": [torch.zeros(2, requires_grad=True)], "modality": None, **own}
    optimizer = torch.optim.SGD([*audio(), shared], lr=LR, momentum=0.9)
    assert MomentumController(optimizer, Fixed()).betas == {"audio": 0.9}


@pytest.mark.parametrize("name", sorted(name for name, kind in BOUND.items() if kind == "inherent"))
def test_exact_false_is_refused_where_there_is_nothing_to_leave_out(name: str) -> None:
    if name not in CLASSES:
        pytest.skip(f"this torch has no {name}")
    with pytest.raises(ValueError, match=f"{name} needs no correction.*drop exact=False"):
        MomentumController(made(name), Fixed(), exact=False)


# Muon

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")


def orthogonalized(update: Tensor) -> Tensor:
    """Muon's Newton-Schulz iteration, in bfloat16 as torch's."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = update.bfloat16().T if update.shape[0] > update.shape[1] else update.bfloat16()
    x = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if update.shape[0] > update.shape[1] else x


@needs_muon
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("nesterov", [False, True])
def test_fact_01_muon_is_muon_with_beta_t_in_place_of_momentum(
    nesterov: bool, weight_decay: float
) -> None:
    """Bitwise: the same operations, because bfloat16 inside would blow any other rounding up."""
    groups = audio((3, 4), (5, 2), (4, 4))
    settings = {"lr": LR, "momentum": 0.95, "nesterov": nesterov, "weight_decay": weight_decay}
    optimizer = torch.optim.Muon(groups, **settings)
    betas = varying(30)
    MomentumController(optimizer, Replay(betas))
    params = groups[0]["params"]
    expected = [p.detach().clone() for p in params]
    buffers = [torch.zeros_like(p) for p in expected]
    generator = torch.Generator().manual_seed(3)
    for beta in betas:
        for p, x, buffer in zip(params, expected, buffers, strict=True):
            g = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.grad = g.clone()
            buffer.lerp_(g, 1 - beta)
            direction = orthogonalized(g.lerp(buffer, beta) if nesterov else buffer)
            x.mul_(1 - LR * weight_decay)
            x.add_(direction, alpha=-LR * math.sqrt(max(1, x.shape[0] / x.shape[1])))
        optimizer.step()
    for p, x, buffer in zip(params, expected, buffers, strict=True):
        assert torch.equal(p, x)
        assert torch.equal(optimizer.state[p]["momentum_buffer"], buffer)
    assert optimizer.param_groups[0]["momentum"] == 0.95


@needs_muon
def test_fact_12_muon_at_its_base_is_plain_muon_bitwise() -> None:
    mine, theirs = audio((3, 4), (5, 2)), audio((3, 4), (5, 2))
    optimizer, plain = torch.optim.Muon(mine, lr=LR), torch.optim.Muon(theirs, lr=LR)
    MomentumController(optimizer, Fixed(audio=0.95))
    generator = torch.Generator().manual_seed(3)
    for _ in range(10):
        for p, q in zip(mine[0]["params"], theirs[0]["params"], strict=True):
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            q.grad = p.grad.clone()
        optimizer.step()
        plain.step()
    for p, q in zip(mine[0]["params"], theirs[0]["params"], strict=True):
        assert torch.equal(p, q)


# Optimizers of a user's own


class MyAdam(torch.optim.Optimizer):
    """As anybody would write it down: a loop over the parameters."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (BETA0, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                state["m"].lerp_(p.grad, 1 - beta1)
                state["v"].lerp_(p.grad**2, 1 - beta2)
                m = state["m"] / (1 - beta1 ** state["step"])
                v = state["v"] / (1 - beta2 ** state["step"])
                p.sub_(group["lr"] * m / (v.sqrt() + 1e-8))


class MySGD(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float, inertia: float = BETA0) -> None:
        super().__init__(params, {"lr": lr, "inertia": inertia, "dampening": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.mul_(group["inertia"]).add_(p.grad, alpha=1 - group["dampening"])
                p.sub_(group["lr"] * buffer)


class SelfCorrecting(torch.optim.Optimizer):
    """Keeps the product of its own betas, whatever they are."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (BETA0, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(product=1.0, m=torch.zeros_like(p))
                state["product"] *= group["betas"][0]
                state["m"].lerp_(p.grad, 1 - group["betas"][0])
                p.sub_(group["lr"] * state["m"] / (1 - state["product"]))


def like_adam(p: Tensor) -> reference.Optimizer:
    return reference.Adam(p, LR, (BETA0, 0.99))


@pytest.mark.usefixtures("registry")
def test_an_unknown_optimizer_is_told_what_to_write_and_that_works() -> None:
    optimizer = MyAdam(audio(), lr=LR)
    with pytest.raises(TypeError, match="MyAdam is not known") as error:
        MomentumController(optimizer, Fixed())
    assert not optimizer._optimizer_step_pre_hooks
    advice = re.search(r"vcmm\.register\(.*?\)\)", str(error.value))
    assert advice is not None
    assert "Binding" in advice[0]
    eval(advice[0], {"vcmm": vcmm, "MyAdam": MyAdam})
    assert_exact(optimizer, like_adam)


@pytest.mark.usefixtures("registry")
def test_what_the_docstring_of_register_shows_works() -> None:
    register(MyAdam, Binding(momentum="betas", correction="bias"))
    assert_exact(MyAdam(audio(), lr=LR), like_adam)


@pytest.mark.usefixtures("registry")
def test_an_anchored_optimizer_of_ones_own_by_any_name_of_its_momentum() -> None:
    register(MySGD, Binding(momentum="inertia", correction="anchored"))
    assert_exact(MySGD(audio(), lr=LR), lambda p: reference.SGD(p, LR, BETA0))


@pytest.mark.usefixtures("registry")
def test_a_literal_one_of_ones_own_steps_by_the_debiased_moment() -> None:
    register(MySGD, Binding(momentum="inertia", correction="anchored", literal=True))
    assert_exact(MySGD(audio(), lr=LR), lambda p: reference.SGD(p, LR, BETA0, literal=True))


@pytest.mark.usefixtures("registry")
def test_an_optimizer_of_ones_own_that_corrects_itself() -> None:
    register(SelfCorrecting, Binding(correction="inherent"))
    assert_exact(
        SelfCorrecting(audio(), lr=LR), lambda p: reference.SGD(p, LR, BETA0, literal=True)
    )


@pytest.mark.usefixtures("registry")
def test_a_registered_objection_is_heard() -> None:
    register(
        MyAdam, Binding(objection=lambda group: "lr is too small" if group["lr"] < 1 else None)
    )
    with pytest.raises(ValueError, match="MyAdam group of modality 'audio': lr is too small"):
        MomentumController(MyAdam(audio(), lr=LR), Fixed())


@pytest.mark.usefixtures("registry")
def test_a_class_that_was_refused_can_be_registered_all_the_same() -> None:
    """Whoever registers a class knows better than the table."""
    register(torch.optim.RMSprop, Binding(momentum="momentum", correction="inherent"))
    controller = MomentumController(torch.optim.RMSprop(audio(), lr=LR, momentum=0.9), Fixed())
    assert controller.betas == {"audio": 0.9}


# Subclasses


class RenamedAdam(torch.optim.Adam):
    """Another constructor, the same step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=LR, betas=(BETA0, 0.99), foreach=False)


class RenamedAgain(RenamedAdam):
    pass


class SteppingAdam(torch.optim.Adam):
    """Does something of its own around the inherited step."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class OtherAdam(MyAdam, torch.optim.Adam):
    """Overrides the step of Adam by another one altogether."""

    def __init__(self, params: Any) -> None:
        torch.optim.Adam.__init__(self, params, lr=LR, betas=(BETA0, 0.99))


class SteppingLBFGS(torch.optim.LBFGS):
    pass


@pytest.mark.parametrize("kind", [RenamedAdam, RenamedAgain])
def test_a_subclass_that_inherits_its_step_is_known(kind: type[RenamedAdam]) -> None:
    assert_exact(kind(audio()), like_adam)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("parent_first", [False, True])
def test_a_subclass_is_known_whichever_class_was_used_first(parent_first: bool) -> None:
    """torch wraps `step` of a class when its first object is made, so here both are fresh."""

    class Parent(MyAdam):
        def step(self, closure: Any = None) -> None:
            raise NotImplementedError

    class Child(Parent):
        pass

    register(Parent, Binding(literal=True))
    if parent_first:
        Parent(audio(), lr=LR)
    assert binding_of(Child(audio(), lr=LR)) == Binding(literal=True)
    assert binding_of(Parent(audio(), lr=LR)) == Binding(literal=True)


def test_a_scheduler_that_wraps_the_step_of_an_object_changes_nothing() -> None:
    optimizer = torch.optim.Adam(audio(), lr=LR, betas=(BETA0, 0.99))
    torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    assert_exact(optimizer, like_adam)


@pytest.mark.usefixtures("registry")
def test_a_subclass_with_a_step_of_its_own_is_unknown_until_registered() -> None:
    optimizer = OtherAdam(audio())
    with pytest.raises(TypeError, match=r"OtherAdam is not known.*register\(OtherAdam"):
        MomentumController(optimizer, Fixed())
    register(OtherAdam, Binding())
    assert_exact(optimizer, like_adam)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("closure", [None, lambda: 0.0], ids=["no closure", "closure"])
def test_a_step_that_calls_the_inherited_one_is_one_step(
    closure: Callable[[], float] | None,
) -> None:
    """torch hooks `step` of every class that it has made an object of: here of both classes."""
    binding = binding_of(torch.optim.Adam(audio()))
    optimizer = SteppingAdam(audio(), lr=LR, betas=(BETA0, 0.99))
    with pytest.raises(TypeError, match="SteppingAdam is not known"):
        MomentumController(optimizer, Fixed())
    register(SteppingAdam, binding)
    assert_exact(optimizer, like_adam, closure)


def test_a_subclass_of_a_refused_class_is_refused_by_its_own_name() -> None:
    with pytest.raises(TypeError, match="SteppingLBFGS cannot be controlled: it keeps a history"):
        MomentumController(SteppingLBFGS(audio()), Fixed())


@pytest.mark.skipif(
    not issubclass(torch.optim.AdamW, torch.optim.Adam), reason="AdamW was a class of its own"
)
def test_adamw_is_not_taken_for_the_adam_that_it_derives_from() -> None:
    """Adam's binding reads a flag of the group, which an old checkpoint may not bring along."""
    binding = binding_of(torch.optim.AdamW(audio()))
    assert binding.decoupled({"weight_decay": 0.1})
    assert not binding_of(torch.optim.Adam(audio())).decoupled({"weight_decay": 0.1})


# The binding itself


def test_a_binding_is_frozen_and_made_anew_by_replace() -> None:
    binding = Binding()
    with pytest.raises(dataclasses.FrozenInstanceError):
        binding.literal = True  # type: ignore[misc]
    assert dataclasses.replace(binding, literal=True) == Binding(literal=True)


ADAM = Binding()


def after(betas: Sequence[Any], base: Any = BETA0, binding: Binding = ADAM) -> Age:
    age = Age()
    for beta in betas:
        age = advanced(binding, age, beta, base)
    return age


SEQUENCES = {
    "three close to one": [1 - 2.0**-30, 1 - 2.0**-29, 1 - 2.0**-31],
    "the first step": [1 - 2.0**-40],
    "between the ends": [0.99, 0.70, 0.99, 0.70],
    "two hundred": [0.99, 0.75] * 100,
    "with a zero": [0.99, 0.0, 0.5],
}


@pytest.mark.parametrize("betas", SEQUENCES.values(), ids=SEQUENCES)
def test_fact_01_the_correction_loses_no_digits(betas: list[float]) -> None:
    """Against exact fractions. As a product, 1 - P would lose ten digits of the first of these."""
    product = Fraction(math.prod(map(Fraction, betas)))
    base = Fraction(BETA0) ** len(betas)
    own = Fraction(betas[-1]) ** len(betas)
    age = after(betas)
    for binding, exact in (
        (Binding(), (1 - own) / (1 - product)),
        (Binding(correction="anchored"), (1 - base) / (1 - product)),
        (Binding(correction="anchored", literal=True), 1 / (1 - product)),
        (Binding(correction="inherent"), Fraction(1)),
    ):
        assert correction(binding, age, betas[-1]) == pytest.approx(float(exact), rel=2e-15)


@pytest.mark.parametrize("betas", SEQUENCES.values(), ids=SEQUENCES)
def test_fact_01_the_correction_in_tensors_is_the_one_in_floats(betas: list[float]) -> None:
    """A capturable optimizer has its betas on the device, in whatever dtype it was given them."""
    on_device = [torch.tensor(beta, dtype=torch.float64) for beta in betas]
    age, tensors = after(betas), after(on_device, torch.tensor(BETA0, dtype=torch.float64))
    for binding in (Binding(), Binding(correction="anchored")):
        found = correction(binding, tensors, on_device[-1])
        assert isinstance(found, Tensor)
        assert found.dtype == torch.float64
        assert float(found) == pytest.approx(correction(binding, age, betas[-1]), rel=2e-15)


def test_fact_12_an_age_has_moved_once_a_beta_was_another_than_its_base() -> None:
    assert not after([BETA0] * 5).moved
    assert after([BETA0, 0.8, BETA0]).moved
    # To the letter, the base is not the plain optimizer.
    assert after([BETA0], binding=Binding(correction="anchored", literal=True)).moved
    # At the base both products are the same number, so that the anchored correction is exactly 1.
    assert correction(Binding(correction="anchored"), after([BETA0] * 5), BETA0) == 1.0


@pytest.mark.usefixtures("double")
def test_read_gives_floats_for_tensors_that_may_be_waited_for() -> None:
    betas = (torch.tensor(0.9), torch.tensor(0.99))
    group = {"betas": betas, "capturable": False, "fused": None}
    # Whether torch's own Adam takes tensors depends on its version.
    binding = dataclasses.replace(binding_of(torch.optim.Adam(audio())), tensor_momentum=True)
    assert binding.read(group) == 0.9
    assert not isinstance(binding.read(group), Tensor)
    assert isinstance(binding.read({**group, "capturable": True}), Tensor)
    assert not isinstance(binding.read({**group, "capturable": True, "fused": True}), Tensor)
