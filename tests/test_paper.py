"""The whole method on real trainings: at every step what the slow float64 paper says.

VCMM with its hooks on torch's own optimizer goes one way, `vcmm.reference` the other. Both are
given the same features, logits and gradients at every step, so nothing can hide by growing, and
momenta, noise, drift and every parameter must agree at each of sixty steps.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcmm import VCMM, modal_groups, reference
from vcmm.record import unpack

STEPS, CLASSES, BASE, LR = 60, 3, 0.9, 3e-2
PAIR = {"audio": 3, "video": 4}
TRIO = {"audio": 3, "video": 4, "text": 2}

Make = Callable[..., torch.optim.Optimizer]
Slow = Callable[..., reference.Optimizer]


def adam(groups: Any, decay: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=LR, betas=(BASE, 0.999), weight_decay=decay)


def slow_adam(parameter: Tensor, decay: float, exact: bool) -> reference.Optimizer:
    return reference.Adam(parameter, LR, (BASE, 0.999), weight_decay=decay, exact=exact)


def sgd(groups: Any, decay: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=LR, momentum=BASE, weight_decay=decay)


def slow_sgd(parameter: Tensor, decay: float, exact: bool) -> reference.Optimizer:
    return reference.SGD(parameter, LR, BASE, weight_decay=decay, exact=exact)


OPTIMIZERS: dict[str, tuple[Make, Slow]] = {"adam": (adam, slow_adam), "sgd": (sgd, slow_sgd)}

SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "half strength": {"strength": 0.5},
    "without noise subtraction": {"subtract_noise": False},
    # So small a probe drifts fast: the usual range would clip nearly all of its own gains.
    "without centring": {"center": False, "gain_range": (0.01, 0.95)},
    "without centring, clipped": {"center": False},
    "without exact correction": {"exact": False},
    "floor after smoothing": {"floor_after_smoothing": True},
    "warmup": {"warmup": 20},
    "other means": {"smoothing": 0.8, "floor": 0.05, "gain_range": (0.07, 0.15)},
}


class Model(nn.Module):
    """An encoder and a head per modality; the fusion is the mean of their logits and a bias."""

    def __init__(self, inputs: dict[str, int]) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({m: nn.Linear(5, width) for m, width in inputs.items()})
        self.heads = nn.ModuleDict({m: nn.Linear(width, CLASSES) for m, width in inputs.items()})
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: dict[str, Tensor]) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """The fused logits, and what the heads took and gave."""
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        for m, encoder in self.encoders.items():
            h = encoder(x[m]).tanh()
            seen[m] = (h, self.heads[m](h))
        return torch.stack([z for _, z in seen.values()]).mean(0) + self.bias, seen


class Task:
    """Modalities of unlike noise that turn as the training goes on, so that their ratios differ."""

    def __init__(self, inputs: dict[str, int], n: int, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.n = n
        self.centres = {m: self.normal(CLASSES, 5) for m in inputs}
        self.t = 0

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def batch(self) -> tuple[dict[str, Tensor], Tensor]:
        n = self.n + self.t % 2  # odd ones too
        y = torch.randint(CLASSES, (n,), generator=self.generator)
        x = {
            m: (0.3 + i) * self.normal(n, 5) + centres.roll(self.t // (10 * i + 5), 0)[y]
            for i, (m, centres) in enumerate(self.centres.items())
        }
        self.t += 1
        return x, y


class Paper:
    """The slow side: an estimator per modality, an optimizer per parameter."""

    def __init__(
        self, model: Model, groups: list[dict[str, Any]], make: Slow, decay: float, **chosen: Any
    ) -> None:
        defaults = {"strength": 1.0, "gain_range": (0.01, 0.30), "center": True}
        self.controls = {key: chosen.pop(key, value) for key, value in defaults.items()}
        self.warmup = chosen.pop("warmup", 0)
        exact = chosen.pop("exact", True)
        self.estimators = {m: reference.Estimator(BASE, **chosen) for m in model.encoders}
        self.optimizers = [
            (group["modality"], parameter, make(parameter, decay, exact))
            for group in groups
            for parameter in group["params"]
        ]
        self.t = 0

    def step(self, seen: dict[str, tuple[Tensor, Tensor]], y: Tensor) -> dict[str, float]:
        """Observe, decide, and update with the gradients that the model holds; gives the betas."""
        self.t += 1
        for m, (h, z) in seen.items():
            self.estimators[m].observe(h.detach().numpy(), z.detach().numpy(), y.numpy())
        ratios = {m: estimator.ratio for m, estimator in self.estimators.items()}
        betas = reference.centred_betas(ratios, BASE, **self.controls)
        if self.t <= self.warmup:
            betas = dict.fromkeys(betas, BASE)
        for modality, parameter, optimizer in self.optimizers:
            optimizer.step(parameter.grad, betas.get(modality, BASE))
        return betas


def train(
    inputs: dict[str, int],
    optimizer: str,
    settings: dict[str, Any],
    *,
    n: int = 8,
    decay: float = 0.0,
    by_hand: bool = False,
) -> tuple[VCMM, dict[str, list[float]]]:
    """Sixty steps, compared at each of them; gives the controller and the history of betas."""
    torch.manual_seed(0)
    model, task = Model(inputs).double(), Task(inputs, n)
    claims = {m: [model.encoders[m], model.heads[m]] for m in inputs}
    groups = modal_groups(model, **claims)
    make, make_slow = OPTIMIZERS[optimizer]
    fast = make(groups, decay)
    heads = None if by_hand else {m: model.heads[m] for m in inputs}
    vcmm = VCMM(fast, heads=heads, **settings)
    paper = Paper(model, groups, make_slow, decay, **settings)
    history: dict[str, list[float]] = {m: [] for m in inputs}

    for t in range(1, STEPS + 1):
        x, y = task.batch()
        fused, seen = model(x)
        fast.zero_grad()
        nn.functional.cross_entropy(fused, y).backward()
        if by_hand:
            vcmm.observe(y, **seen)
        else:
            vcmm.observe(y)
        expected = paper.step(seen, y)
        fast.step()

        assert vcmm.betas == pytest.approx(expected, abs=1e-9)
        if t == 1:
            assert vcmm.betas == pytest.approx(dict.fromkeys(inputs, BASE), abs=1e-12)
        metrics = vcmm.metrics()
        for m, estimator in paper.estimators.items():
            assert metrics[f"{m}/R"] == pytest.approx(estimator.noise, rel=1e-9)
            assert metrics[f"{m}/Q"] == pytest.approx(estimator.drift, rel=1e-9)
            assert metrics[f"{m}/rho"] == pytest.approx(estimator.ratio, rel=1e-9)
            history[m].append(metrics[f"{m}/beta"])
        for _, parameter, slow in paper.optimizers:
            torch.testing.assert_close(parameter.detach(), slow.parameter, rtol=1e-10, atol=1e-10)
    return vcmm, history


def assert_moved(history: dict[str, list[float]]) -> None:
    """A comparison of momenta that all stay at the base would show nothing."""
    for betas in history.values():
        assert max(abs(beta - BASE) for beta in betas) > 0.01
        assert len(set(betas)) > STEPS / 4


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("inputs", [PAIR, TRIO], ids=["two", "three"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_the_papers_step_by_step(
    optimizer: str, inputs: dict[str, int], settings: dict[str, Any]
) -> None:
    _, history = train(inputs, optimizer, settings)
    warmup = settings.get("warmup", 0)
    assert all(betas[:warmup] == [BASE] * warmup for betas in history.values())
    if settings != {"center": False}:
        assert_moved(history)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_by_the_direct_form_with_weight_decay(optimizer: str) -> None:
    """Batches large enough that half sums are cheaper than inner products of rows."""
    vcmm, history = train(PAIR, optimizer, {}, n=30, decay=0.05, by_hand=True)
    assert_moved(history)
    assert {stream["form"] for stream in forms(vcmm).values()} == {"direct"}


def test_small_batches_take_the_gram_form() -> None:
    """So that both forms are met in this file."""
    vcmm, _ = train(PAIR, "adam", {})
    assert {stream["form"] for stream in forms(vcmm).values()} == {"gram"}


def forms(vcmm: VCMM) -> dict[str, Any]:
    return unpack(vcmm.state_dict()["record"])["pool"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_strength_zero_is_the_plain_optimizer_bitwise(optimizer: str) -> None:
    """Every R and Q is followed, and every parameter is where it would be without VCMM."""
    _, history = train(PAIR, optimizer, {"strength": 0.0})
    assert all(betas == [BASE] * STEPS for betas in history.values())
    finals: list[list[Tensor]] = []
    for controlled in (False, True):
        torch.manual_seed(0)
        model, task = Model(PAIR).double(), Task(PAIR, 8)
        groups = modal_groups(model, audio=model.encoders["audio"], video=model.encoders["video"])
        fast = OPTIMIZERS[optimizer][0](groups, 0.0)
        vcmm = VCMM(fast, strength=0.0) if controlled else None
        for _ in range(STEPS):
            x, y = task.batch()
            fused, seen = model(x)
            fast.zero_grad()
            nn.functional.cross_entropy(fused, y).backward()
            if vcmm is not None:
                vcmm.observe(y, **seen)
            fast.step()
        finals.append([parameter.detach() for parameter in model.parameters()])
    for without, with_vcmm in zip(*finals, strict=True):
        assert torch.equal(without, with_vcmm)


def test_exact_correction_matters_to_this_comparison() -> None:
    """Without it the parameters differ by far more than the tolerance, so the test can tell."""
    weights: list[Tensor] = []
    for exact in (True, False):
        vcmm, _ = train(PAIR, "adam", {"exact": exact})
        weights.append(vcmm.optimizer.param_groups[0]["params"][0].detach())
    assert (weights[0] - weights[1]).abs().max() > 1e-5
