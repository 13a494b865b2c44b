"""Optimizers of other libraries: bound, and then exact, or refused with the reason."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from vcmm import VCMM, Fixed, MomentumController, modal_groups
from vcmm.momentum import binding_of

pytestmark = pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")

LR, BETA0, BETA2 = 1e-2, 0.9, 0.999


def library(name: str) -> Any:
    return pytest.importorskip(name)


class Net(nn.Module):
    """`free` gets no gradient now and then, and that of `turn` is orthogonal to it."""

    def __init__(self, dtype: torch.dtype = torch.float64, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.audio = nn.ParameterDict({"free": torch.randn(4), "turn": torch.randn(width, 4)})
        self.video = nn.ParameterDict({"free": torch.randn(2, 2), "turn": torch.randn(3, 5)})
        self.shared = nn.Parameter(torch.randn(3))
        self.to(dtype)

    def groups(self, **settings: Any) -> list[dict[str, Any]]:
        groups = modal_groups(self, audio=self.audio, video=self.video)
        return [{**group, **settings} for group in groups]


def set_gradients(model: nn.Module, t: int) -> dict[str, Tensor]:
    """Returns copies, for a library may change a gradient in place."""
    generator = torch.Generator().manual_seed(t)
    for name, p in model.named_parameters():
        drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
        if name.endswith("turn"):
            x = p.detach()
            drawn -= x * ((drawn * x).sum() / (x * x).sum())
        p.grad = drawn
    for modality, when in (("audio", t % 5 == 1 or t < 2), ("video", 4 < t < 8)):
        if when:
            model.get_parameter(f"{modality}.free").grad = None
    given = {name: p.grad for name, p in model.named_parameters()}
    return {name: gradient.clone() for name, gradient in given.items() if gradient is not None}


def observe(vcmm: MomentumController, t: int) -> None:
    generator = torch.Generator().manual_seed(1000 + t)
    target = torch.randint(3, (8,), generator=generator)
    width = {"audio": 4, "video": 3}
    noise = {"audio": 0.1, "video": 3.0}
    seen = {}
    for modality, d in width.items():
        h = torch.randn(8, d, generator=generator)
        z = torch.randn(8, 3, generator=generator) * noise[modality] + t * F.one_hot(target, 3)
        seen[modality] = h, z
    vcmm.observe(target, **seen)


def step(
    model: nn.Module, optimizer: Optimizer, vcmm: MomentumController | None, t: int
) -> dict[str, Tensor]:
    gradients = set_gradients(model, t)
    if vcmm is not None:
        observe(vcmm, t)
    optimizer.step()
    return gradients


# Written slowly, one parameter at a time


class AdaBelief:
    """Zhuang et al. 2020, as pytorch_optimizer has it: eps is added to s in every step."""

    def __init__(self, p: Tensor, **settings: Any) -> None:
        self.p = p.detach().clone().double()
        self.m, self.s, self.most = (torch.zeros_like(self.p) for _ in range(3))
        self.product = 1.0
        self.settings = {
            "weight_decay": 0.0,
            "weight_decouple": True,
            "fixed_decay": False,
            "ams_bound": False,
            "rectify": False,
            "eps": 1e-16,
            **settings,
        }

    def decayed(self, g: Tensor, ratio: float = 1.0) -> Tensor:
        own = self.settings
        if not own["weight_decouple"]:
            return g + own["weight_decay"] * self.p
        rate = 1.0 if own["fixed_decay"] else LR
        self.p = self.p * (1 - rate * own["weight_decay"] * ratio)
        return g

    def step(self, g: Tensor, beta: float, count: int) -> None:
        own = self.settings
        g = self.decayed(g.double())
        self.m = beta * self.m + (1 - beta) * g
        self.product *= beta
        self.s = BETA2 * self.s + (1 - BETA2) * (g - self.m) ** 2 + own["eps"]
        self.most = torch.maximum(self.most, self.s)
        root = (self.most if own["ams_bound"] else self.s).sqrt()
        m_hat = self.m / (1 - self.product)
        if not own["rectify"]:
            self.p = self.p - LR * m_hat / (root / math.sqrt(1 - BETA2**count) + own["eps"])
            return
        longest = 2 / (1 - BETA2) - 1
        length = longest - 2 * count * BETA2**count / (1 - BETA2**count)
        if length < 5:
            self.p = self.p - LR * m_hat
            return
        ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        self.p -= LR * math.sqrt(ratio * (1 - BETA2**count)) * m_hat / (root + own["eps"])


class AdamP(AdaBelief):
    """Heo et al. 2021: what is radial is taken out of the steps of a scale-invariant weight."""

    def step(self, g: Tensor, beta: float, count: int) -> None:
        g, eps, p = g.double(), self.settings["eps"], self.p
        self.m = beta * self.m + (1 - beta) * g
        self.product *= beta
        self.s = BETA2 * self.s + (1 - BETA2) * g**2
        update = self.m * math.sqrt(1 - BETA2**count) / (self.s.sqrt() + eps)
        ratio = 1.0
        for rows in ((p.shape[0], -1), (1, -1)) if p.ndim > 1 else ():
            x, y = p.reshape(rows), g.reshape(rows)
            if F.cosine_similarity(x, y, dim=1, eps=eps).abs().max() < 0.1 / x.shape[1] ** 0.5:
                x = x / (x.norm(dim=1, keepdim=True) + eps)
                along = (x * update.reshape(rows)).sum(1, keepdim=True)
                update, ratio = update - (x * along).reshape(p.shape), 0.1
                break
        self.decayed(g, ratio)
        self.p = self.p - LR * update / (1 - self.product)


class Adam(AdaBelief):
    """With the decoupled decay that bitsandbytes gives to Adam and to AdamW alike."""

    def step(self, g: Tensor, beta: float, count: int) -> None:
        g = self.decayed(g.double())
        self.m = beta * self.m + (1 - beta) * g
        self.product *= beta
        self.s = BETA2 * self.s + (1 - BETA2) * g**2
        root = (self.s / (1 - BETA2**count)).sqrt()
        self.p = self.p - LR * self.m / (1 - self.product) / (root + self.settings["eps"])


DECAYS = {
    "plain": {},
    "decoupled": {"weight_decay": 0.1},
    "fixed": {"weight_decay": 0.001, "fixed_decay": True},
    "coupled": {"weight_decay": 0.1, "weight_decouple": False},
}
BELIEFS = {
    **DECAYS,
    "ams_bound": {"ams_bound": True, "weight_decay": 0.1},
    "rectify": {"rectify": True, "weight_decay": 0.1},
}
VARIANTS: list[tuple[str, type[AdaBelief], str, dict[str, Any]]] = [
    *(("AdaBelief", AdaBelief, name, settings) for name, settings in BELIEFS.items()),
    # Coupled decay comes too late to have an effect in its code, so that there is none to compare.
    *(("AdamP", AdamP, name, s) for name, s in DECAYS.items() if name != "coupled"),
]


@pytest.mark.parametrize("foreach", [False, None], ids=["loop", "foreach"])
@pytest.mark.parametrize(
    ("kind", "slow", "settings"),
    [pytest.param(kind, slow, s, id=f"{kind}-{name}") for kind, slow, name, s in VARIANTS],
)
def test_a_bound_optimizer_is_exact(
    kind: str, slow: type[AdaBelief], settings: dict[str, Any], foreach: bool | None
) -> None:
    """It counts its steps by groups, also where a parameter has no gradient."""
    po = library("pytorch_optimizer")
    model = Net()
    optimizer = getattr(po, kind)(model.groups(), lr=LR, **settings, eps=1e-8, foreach=foreach)
    assert_exact(model, optimizer, lambda p: slow(p, **settings, eps=1e-8), by_groups=True)


def assert_exact(
    model: nn.Module,
    optimizer: Optimizer,
    slow_of: Callable[[Tensor], AdaBelief],
    *,
    by_groups: bool,
    tolerance: float = 1e-12,
) -> None:
    vcmm = VCMM(optimizer)
    slow = {name: slow_of(p) for name, p in model.named_parameters()}
    start = {name: p.detach().clone().double() for name, p in model.named_parameters()}
    counts = dict.fromkeys(slow, 0)
    betas: list[dict[str, float]] = []
    for t in range(40):
        before = [dict(group) for group in optimizer.param_groups]
        gradients = step(model, optimizer, vcmm, t)
        betas.append(vcmm.betas)
        for old, group in zip(before, optimizer.param_groups, strict=True):
            # What the library itself counts there, and what loggers read.
            assert {**old, "step": 0, "vcmm_beta": 0} == {**group, "step": 0, "vcmm_beta": 0}
        for name, p in model.named_parameters():
            counts[name] += by_groups or name in gradients
            if name in gradients:
                beta = betas[-1].get(name.split(".")[0], BETA0)
                slow[name].step(gradients[name], beta, counts[name])
            moved = (slow[name].p - start[name]).norm()
            error = (p.detach().double() - slow[name].p).norm()
            assert float(error) <= tolerance * float(moved), (name, t)
    assert max(abs(b["audio"] - b["video"]) for b in betas) > 0.01


BITSANDBYTES = [
    f"{paged}{name}{bits}"
    for name in ("Adam", "AdamW")
    for paged in ("", "Paged")
    for bits in ("", "8bit", "32bit")
]


@pytest.mark.parametrize("kind", BITSANDBYTES)
def test_bitsandbytes_adams_are_exact_as_far_as_float32_goes(kind: str) -> None:
    """Small parameters have states of 32 bits in all of them.

    The way gone is some 0.1, and parameters of size 1 are rounded by 6e-8 in every step.
    """
    bnb = library("bitsandbytes")
    model = Net(torch.float32)
    optimizer = getattr(bnb.optim, kind)(model.groups(), lr=LR, weight_decay=0.1)
    assert_exact(
        model,
        optimizer,
        lambda p: Adam(p, weight_decay=0.1, eps=1e-8),
        by_groups=False,
        tolerance=1e-4,
    )


@pytest.mark.parametrize("kind", ["Adam8bit", "AdamW8bit", "PagedAdamW8bit"])
def test_bitsandbytes_states_of_8_bits_with_another_beta_are_those_built_with_it(kind: str) -> None:
    """A constant momentum needs no correction, so an optimizer built with it is the yardstick."""
    bnb = library("bitsandbytes")
    want = {"audio": 0.95, "video": 0.8}
    models = []
    for controlled in (True, False):
        model = Net(torch.float32, width=1500)
        groups = model.groups()
        if not controlled:
            groups = [{**g, "betas": (want.get(g["name"], BETA0), BETA2)} for g in groups]
        optimizer = getattr(bnb.optim, kind)(groups, lr=LR, weight_decay=0.1)
        if controlled:
            MomentumController(optimizer, Fixed(**want))
        for t in range(12):
            step(model, optimizer, None, t)
        assert optimizer.state[model.audio["turn"]]["state1"].dtype == torch.uint8
        models.append(model)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


# Guests leave no trace

MAKERS: dict[str, Callable[[list[dict[str, Any]]], Optimizer]] = {
    "AdamP": lambda g: library("pytorch_optimizer").AdamP(g, lr=LR, weight_decay=0.1),
    "AdaBelief": lambda g: library("pytorch_optimizer").AdaBelief(g, lr=LR, weight_decay=0.1),
    "bitsandbytes": lambda g: library("bitsandbytes").optim.AdamW(g, lr=LR, weight_decay=0.1),
}


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: p.detach().numpy().tobytes() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", MAKERS)
def test_without_strength_the_run_is_the_plain_one_bitwise(name: str) -> None:
    runs = []
    for controlled in (False, True):
        model = Net()
        optimizer = MAKERS[name](model.groups())
        vcmm = VCMM(optimizer, strength=0.0) if controlled else None
        for t in range(12):
            step(model, optimizer, vcmm, t)
        runs.append(bits(model))
    assert runs[0] == runs[1]


def made(name: str, model: Net) -> tuple[Optimizer, VCMM]:
    optimizer = MAKERS[name](model.groups())
    return optimizer, VCMM(optimizer)


@pytest.mark.parametrize("name", MAKERS)
def test_a_resumed_run_is_bitwise_the_one_that_was_not_interrupted(name: str) -> None:
    model = Net(torch.float32)
    optimizer, vcmm = made(name, model)
    for t in range(7):
        step(model, optimizer, vcmm, t)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    for t in range(7, 20):
        step(model, optimizer, vcmm, t)

    resumed = Net(torch.float32)
    other, controller = made(name, resumed)
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    if name == "bitsandbytes":
        controller.load_state_dict(saved[1]["vcmm"])
    for t in range(7, 20):
        step(resumed, other, controller, t)
    assert bits(resumed) == bits(model)
    assert controller.metrics() == vcmm.metrics()


def test_bitsandbytes_passes_over_hooks_when_it_loads_which_is_a_loud_error() -> None:
    model = Net(torch.float32)
    optimizer, vcmm = made("bitsandbytes", model)
    for t in range(3):
        step(model, optimizer, vcmm, t)
    other, controller = made("bitsandbytes", model)
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(RuntimeError, match=r"controller.load_state_dict\(saved\[\"vcmm\"\]\)"):
        observe(controller, 3)


@pytest.mark.parametrize("name", MAKERS)
def test_an_optimizer_with_a_history_has_had_its_own_momentum(name: str) -> None:
    """P starts at beta0^t: attached late, a constant momentum is another than from the start."""
    slow_of = {"AdamP": AdamP, "AdaBelief": AdaBelief, "bitsandbytes": Adam}[name]
    eps = {"AdaBelief": 1e-16}.get(name, 1e-8)
    model = Net(torch.float32 if name == "bitsandbytes" else torch.float64)
    optimizer = MAKERS[name](model.groups())
    slow = {n: slow_of(p, weight_decay=0.1, eps=eps) for n, p in model.named_parameters()}
    betas: Mapping[str, float] = {}
    for t in range(24):
        if t == 4:
            betas = {"audio": 0.97, "video": 0.7}
            MomentumController(optimizer, Fixed(**betas))
        gradients = set_gradients(model, 8 + 5 * t)  # in which all have one
        assert len(gradients) == 5
        optimizer.step()
        for n, p in model.named_parameters():
            slow[n].step(gradients[n], betas.get(n.split(".")[0], BETA0), t + 1)
            tolerance = 1e-12 if p.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(
                p.detach().double(), slow[n].p, rtol=tolerance, atol=tolerance, msg=n
            )


# Refused, by name

REFUSED = {
    "schedulefree": {
        "AdamWScheduleFree": "no first moment",
        "RAdamScheduleFree": "no first moment",
        "SGDScheduleFree": "no first moment",
        "AdamWScheduleFreeClosure": "no first moment",
        "RAdamScheduleFreeClosure": "no first moment",
        "SGDScheduleFreeClosure": "no first moment",
        "AdamWScheduleFreePaper": "no first moment",
        "AdamWScheduleFreeReference": "no first moment",
        "SGDScheduleFreeReference": "no first moment",
    },
    "pytorch_optimizer": {
        "Lion": "two betas",
        "ScheduleFreeAdamW": "no first moment",
        "ScheduleFreeRAdam": "no first moment",
        "ScheduleFreeSGD": "no first moment",
    },
    "bitsandbytes.optim": {
        **{f"{p}Lion{b}": "two betas" for p in ("", "Paged") for b in ("", "8bit", "32bit")},
        **{f"{p}AdEMAMix{b}": "slow moment" for p in ("", "Paged") for b in ("", "8bit", "32bit")},
        **{f"SGD{b}": "no dampening" for b in ("", "8bit", "32bit")},
        **{f"LAMB{b}": "norm of its own moment" for b in ("", "8bit", "32bit")},
        **{f"LARS{b}": "norm of its own moment" for b in ("", "8bit", "32bit")},
        "PytorchLARS": "norm of its own moment",
        **{f"{n}{b}": "no first moment" for n in ("Adagrad", "RMSprop") for b in ("", "8bit")},
    },
}


@pytest.mark.parametrize(
    ("package", "name", "reason"),
    [
        (package, name, reason)
        for package, names in REFUSED.items()
        for name, reason in names.items()
    ],
)
def test_what_cannot_be_served_is_refused_by_name(package: str, name: str, reason: str) -> None:
    settings = {"momentum": 0.9} if name.startswith(("SGD", "LARS", "PytorchLARS")) else {}
    settings = {} if "ScheduleFree" in name else settings
    optimizer = getattr(library(package), name)(Net().groups(), lr=LR, **settings)
    with pytest.raises(TypeError, match=f"{name} cannot be controlled: .*{reason}.* Use "):
        VCMM(optimizer)
    assert not optimizer._optimizer_step_pre_hooks


def test_wrappers_that_make_another_optimizer_schedule_free_are_refused() -> None:
    wrapped = library("schedulefree").ScheduleFreeWrapper(torch.optim.AdamW(Net().groups()))
    with pytest.raises(TypeError, match=r"ScheduleFreeWrapper cannot be controlled: .*iterates"):
        VCMM(wrapped)
    wrapped = library("pytorch_optimizer").ScheduleFreeWrapper(torch.optim.AdamW(Net().groups()))
    with pytest.raises(TypeError, match=r"ScheduleFreeWrapper cannot be controlled: .*iterates"):
        VCMM(wrapped)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("AdamP", {"nesterov": True}, "momentum twice"),
        ("AdamP", {"adam_debias": True}, "leaves the bias"),
        ("AdamP", {"lr": torch.tensor(0.01), "weight_decay": 0.1}, "Use a float"),
        ("AdaBelief", {"adam_debias": True}, "leaves the bias"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(
    kind: str, settings: dict[str, Any], reason: str
) -> None:
    optimizer = getattr(library("pytorch_optimizer"), kind)(Net().groups(), **settings)
    with pytest.raises(ValueError, match=f"{kind} group of modality 'audio': .*{reason}"):
        VCMM(optimizer)


def test_a_class_of_the_same_name_from_elsewhere_is_another_class() -> None:
    class AdamP(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    with pytest.raises(TypeError, match=r"AdamP is not known.*vcmm.register\(AdamP"):
        VCMM(AdamP(Net().groups()))


def test_a_subclass_that_inherits_the_step_is_bound_as_its_parent() -> None:
    parent = library("pytorch_optimizer").AdaBelief
    child = type("Child", (parent,), {})
    assert binding_of(child(Net().groups())) == binding_of(parent(Net().groups()))
