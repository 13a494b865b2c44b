"""The reference itself: the method's numbers, brute-force identities, torch's own optimizers."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vcmm import reference
from vcmm.reference import Array, Estimator, Labels, Mask, Observation, Optimizer

STEPS = 30
RTOL = 1e-12


# Probe


def batch(n: int, classes: int, width: int, seed: int = 0) -> tuple[Array, Array, Labels]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(n, width))
    logits = random.normal(size=(n, classes))
    return features, logits, random.integers(classes, size=n)


def token_batch(n: int, tokens: int, seed: int = 0) -> tuple[Array, Array, Labels, Mask]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(n, tokens, 3))
    logits = random.normal(size=(n, tokens, 4))
    labels = random.integers(4, size=(n, tokens))
    valid = random.random(size=(n, tokens)) < 0.6
    valid[:, 0] = True
    labels[~valid] = -100
    return features, logits, labels, valid


def head_gradient(features: Array, logits: Array, labels: Labels) -> Array:
    """The same gradient by autograd: a head whose output happens to be `logits`."""
    h = torch.from_numpy(features)
    weight = torch.zeros(logits.shape[-1], h.shape[-1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(logits.shape[-1], dtype=torch.float64, requires_grad=True)
    z = torch.from_numpy(logits) + torch.nn.functional.linear(h, weight, bias)
    z, y = z.reshape(-1, z.shape[-1]), torch.from_numpy(labels).reshape(-1)
    torch.nn.functional.cross_entropy(z, y).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    return torch.cat([weight.grad.flatten(), bias.grad]).numpy()


def test_residual_by_hand() -> None:
    logits = np.log([[1.0, 3.0], [2.0, 2.0]])
    residual = reference.softmax_residual(logits, np.array([1, 0]))
    np.testing.assert_allclose(residual, [[0.25, -0.25], [-0.5, 0.5]], rtol=1e-14)


def test_residual_of_large_logits_is_finite() -> None:
    residual = reference.softmax_residual(np.array([[1e4, -1e4]]), np.array([1]))
    np.testing.assert_array_equal(residual, [[1.0, -1.0]])


def test_gradient_is_the_heads_own_by_autograd() -> None:
    features, logits, labels = batch(n=7, classes=4, width=3)
    seen = reference.observe(features, logits, labels)
    assert seen.gradient.shape == (4 * (3 + 1),)
    np.testing.assert_allclose(seen.gradient, head_gradient(features, logits, labels), atol=1e-15)


def test_token_gradient_is_the_heads_own_by_autograd() -> None:
    features, logits, labels, valid = token_batch(n=5, tokens=6)
    seen = reference.observe(features, logits, labels, valid=valid)
    np.testing.assert_allclose(seen.gradient, head_gradient(features, logits, labels), atol=1e-15)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9])
def test_whole_is_the_weighted_mean_of_the_halves(n: int) -> None:
    features, logits, labels = batch(n, classes=3, width=2)
    residuals = reference.softmax_residual(logits, labels)
    whole = reference.classifier_gradient(features, residuals, range(n))
    half_a = reference.classifier_gradient(features, residuals, range(0, n, 2))
    half_b = reference.classifier_gradient(features, residuals, range(1, n, 2))
    n_a, n_b = (n + 1) // 2, n // 2
    np.testing.assert_allclose(whole, (n_a * half_a + n_b * half_b) / n, atol=1e-15)


@pytest.mark.parametrize("n", [4, 5])
def test_token_halves_are_sequences_weighted_by_valid_tokens(n: int) -> None:
    features, logits, labels, valid = token_batch(n, tokens=6, seed=1)
    residuals = reference.softmax_residual(logits, labels)

    def flat(rows: slice) -> Array:
        h, e = features[rows][valid[rows]], residuals[rows][valid[rows]]
        return np.concatenate([(e.T @ h / len(h)).reshape(-1), e.mean(axis=0)])

    w_a, w_b = int(valid[0::2].sum()), int(valid[1::2].sum())
    assert w_a != w_b
    half_a, half_b = flat(slice(0, None, 2)), flat(slice(1, None, 2))
    seen = reference.observe(features, logits, labels, valid=valid)
    whole = (w_a * half_a + w_b * half_b) / (w_a + w_b)
    np.testing.assert_allclose(seen.gradient, whole, atol=1e-15)
    spread = w_a * (half_a - whole) ** 2 + w_b * (half_b - whole) ** 2
    assert seen.noise == pytest.approx(float(np.mean(spread)) / (w_a + w_b), rel=1e-13)


def test_one_token_per_sequence_is_a_plain_batch() -> None:
    features, logits, labels = batch(n=5, classes=3, width=2)
    plain = reference.observe(features, logits, labels)
    tokens = reference.observe(features[:, None], logits[:, None], labels[:, None])
    np.testing.assert_array_equal(plain.gradient, tokens.gradient)
    assert plain.noise == tokens.noise


# Noise and drift


def published_example() -> Observation:
    features = np.array([[1.0], [-1.0], [2.0], [0.5]])
    logits = np.array([[0.2, -0.1], [0.4, 0.3], [-0.5, 0.5], [0.0, 0.1]])
    return reference.observe(features, logits, np.array([0, 1, 0, 1]))


def test_noise_of_the_four_sample_example() -> None:
    assert published_example().noise == pytest.approx(0.2253641134, abs=1e-10)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_noise_is_the_variance_of_the_mean_for_odd_batches_too(n: int) -> None:
    """Averaged over every order of the samples, R~ is the sample variance of g divided by n."""
    features, logits, labels = batch(n, classes=3, width=2)
    residuals = reference.softmax_residual(logits, labels)
    rows = [reference.classifier_gradient(features, residuals, range(i, i + 1)) for i in range(n)]
    variance = float(np.mean(np.var(np.stack(rows), axis=0, ddof=1))) / n

    orders = [list(order) for order in itertools.permutations(range(n))]
    noises = [reference.measure(features[order], residuals[order]).noise for order in orders]
    assert sum(noises) / len(noises) == pytest.approx(variance, rel=1e-12)


def test_change_and_energy() -> None:
    features, logits, labels = batch(n=4, classes=3, width=2)
    first = reference.observe(features, logits, labels)
    assert first.change is None
    assert first.energy == pytest.approx(float(np.mean(first.gradient**2)), rel=1e-14)
    second = reference.observe(features, 2 * logits, labels, previous=first.gradient)
    expected = float(np.mean((second.gradient - first.gradient) ** 2))
    assert second.change == pytest.approx(expected, rel=1e-14)


def seen(noise: float, change: float | None = None, energy: float = 1.0) -> Observation:
    return Observation(noise, change, energy, np.zeros(1))


@pytest.mark.parametrize("floor_after_smoothing", [False, True])
@pytest.mark.parametrize("beta0", [0.9, 0.75])
def test_filter_starts_at_the_optimizers_own_gain(
    beta0: float, floor_after_smoothing: bool
) -> None:
    estimator = Estimator(beta0, floor_after_smoothing=floor_after_smoothing)
    assert estimator.ratio is None
    estimator.update(published_example())
    assert estimator.noise == published_example().noise
    assert estimator.ratio is not None
    assert reference.gain(estimator.ratio) == pytest.approx(1 - beta0, rel=1e-14)


@pytest.mark.parametrize(
    ("settings", "drifts"),
    [
        # start at 0.9 / 90 = 0.01; then 1.0 - 0.3 - 0.9 < 0 and 2.0 - 0.6 - 0.3 = 1.1
        ({}, (0.5 * 0.01 + 0.5 * 2e-4, 0.25 * 0.01 + 0.25 * 2e-4 + 0.5 * 1.1)),
        ({"subtract_noise": False}, (0.5 * 0.01 + 0.5 * 1.0, 0.25 * 0.01 + 0.25 * 1.0 + 0.5 * 2.0)),
        # smoothed differences 0.005 - 0.1 and 0.0025 - 0.05 + 0.55; smoothed energies 1.5 and 2.25
        ({"floor_after_smoothing": True}, (1.5e-4, 0.5025)),
        (
            {"floor_after_smoothing": True, "subtract_noise": False},
            (0.5 * 0.01 + 0.5 * 1.0, 0.25 * 0.01 + 0.25 * 1.0 + 0.5 * 2.0),
        ),
    ],
)
def test_running_means_by_hand(settings: dict[str, bool], drifts: tuple[float, float]) -> None:
    estimator = Estimator(0.9, smoothing=0.5, floor=1e-4, **settings)
    estimator.update(seen(noise=0.9, energy=1.0))
    estimator.update(seen(noise=0.3, change=1.0, energy=2.0))
    assert estimator.noise == pytest.approx(0.6)
    assert estimator.drift == pytest.approx(drifts[0])
    estimator.update(seen(noise=0.6, change=2.0, energy=3.0))
    assert estimator.noise == pytest.approx(0.6)
    assert estimator.drift == pytest.approx(drifts[1])


def test_what_cannot_be_measured_moves_nothing() -> None:
    features, logits, labels = batch(n=4, classes=3, width=2)
    estimator = Estimator(0.9)
    first = estimator.observe(features, logits, labels)
    before = (estimator.noise, estimator.drift)

    assert not estimator.observe(features[:1], logits[:1], labels[:1]).measured  # n < 2
    for value in (math.nan, math.inf, 1e200):
        broken = features.copy()
        broken[0, 0] = value
        assert not estimator.observe(broken, logits, labels).measured
    assert (estimator.noise, estimator.drift) == before

    again = estimator.observe(features, 2 * logits, labels)  # measured against the first batch
    expected = float(np.mean((again.gradient - first.gradient) ** 2))
    assert again.change == pytest.approx(expected, rel=1e-14)


def test_half_without_a_valid_token_cannot_be_measured() -> None:
    features, logits, labels, valid = token_batch(n=4, tokens=3)
    valid[1::2] = False
    assert not reference.observe(features, logits, labels, valid=valid).measured


def test_ratio_stays_finite_without_noise() -> None:
    estimator = Estimator(0.9)
    estimator.update(seen(noise=0.0, energy=0.0))
    assert estimator.ratio is None
    estimator.update(seen(noise=0.0, change=1.0))
    assert estimator.ratio is not None
    assert math.isfinite(reference.logit_gain(estimator.ratio))


@pytest.mark.parametrize(("dimension", "reading"), [(12, 0.40), (100, 0.15), (1000, 0.056)])
def test_clipping_before_smoothing_reads_a_small_ratio_too_high(
    dimension: int, reading: float
) -> None:
    """A random walk with Q / R = 0.01; the other order is closer, and the difference unbiased."""
    random = np.random.default_rng(0)
    published, unbiased = Estimator(0.9), Estimator(0.9, floor_after_smoothing=True)
    walk, previous = np.zeros(dimension), None
    published_sum, unbiased_sum, difference, steps = 0.0, 0.0, 0.0, 6000
    for _ in range(steps):
        walk = walk + 0.1 * random.normal(size=dimension)
        half_a, half_b = walk + math.sqrt(2) * random.normal(size=(2, dimension))
        g, noise = (half_a + half_b) / 2, float(np.mean((half_a - half_b) ** 2)) / 4
        if previous is None:
            now = Observation(noise, None, 0.0, g)
        else:
            now = Observation(noise, float(np.mean((g - previous.gradient) ** 2)), 0.0, g)
            assert now.change is not None
            difference += now.change - now.noise - previous.noise
        for estimator in (published, unbiased):
            estimator.update(now)
        previous = now
        assert published.ratio is not None
        assert unbiased.ratio is not None
        published_sum, unbiased_sum = published_sum + published.ratio, unbiased_sum + unbiased.ratio
    assert published_sum / steps == pytest.approx(reading, rel=0.15)
    assert unbiased_sum < 0.4 * published_sum
    assert difference / steps == pytest.approx(0.01, abs=4 * math.sqrt(12 / dimension / steps))


# Gain, centring, momentum


@pytest.mark.parametrize(
    ("rho", "expected"),
    [
        (1e-4, 0.009950124999),
        (1e-2, 0.095124921973),
        (1 / 90, 0.1),
        (0.1, 0.270156211872),
        (1.0, 0.618033988750),
        (10.0, 0.916079783100),
    ],
)
def test_gain_table(rho: float, expected: float) -> None:
    assert reference.gain(rho) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("exponent", range(-12, 5))
def test_gain_solves_its_equation(exponent: int) -> None:
    rho = 10.0**exponent
    k = reference.gain(rho)
    assert k**2 / (1 - k) == pytest.approx(rho, rel=1e-10)
    assert reference.logit_gain(rho) == pytest.approx(math.log(k) - math.log1p(-k), rel=1e-10)


def test_logit_gain_at_the_extremes() -> None:
    assert reference.logit_gain(1e16) == pytest.approx(36.84, abs=5e-3)
    assert math.isfinite(reference.logit_gain(0.0))
    assert math.isfinite(reference.logit_gain(math.inf))


@pytest.mark.parametrize(
    ("ratios", "strength", "betas"),
    [
        ((0.1, 0.01), 1.0, (0.827474995, 0.944097083)),
        ((0.1, 0.01), 0.5, (0.867901531, 0.924973140)),
        ((0.1, 0.01, 0.001), 1.0, (0.723699475, 0.902178042, 0.967926432)),
    ],
)
def test_beta_tables(ratios: tuple[float, ...], strength: float, betas: tuple[float, ...]) -> None:
    named: dict[str, float | None] = {str(i): rho for i, rho in enumerate(ratios)}
    found = reference.centred_betas(named, 0.9, strength)
    assert list(found.values()) == pytest.approx(betas, abs=5e-10)


def test_centred_gains() -> None:
    found = reference.centred_betas({"audio": 0.1, "video": 0.01}, 0.9)
    gains = [1 - beta for beta in found.values()]
    assert gains == pytest.approx((0.172525005, 0.055902917), abs=5e-10)


def test_betas_are_clipped() -> None:
    found = reference.centred_betas({"audio": 1e6, "video": 1e-6}, 0.9)
    assert found == {"audio": 0.7, "video": 0.99}


def test_beta0_itself_where_nothing_is_to_be_distributed() -> None:
    both: dict[str, float | None] = {"audio": 0.1, "video": 0.01}
    assert reference.centred_betas(both, 0.5, strength=0) == {"audio": 0.5, "video": 0.5}
    assert reference.centred_betas({"audio": 0.1}, 0.9) == {"audio": 0.9}
    found = reference.centred_betas({"audio": 0.1, "video": None}, 0.9)
    assert found == {"audio": 0.9, "video": 0.9}


def test_modality_without_an_estimate_stays_out_of_the_mean() -> None:
    both = reference.centred_betas({"audio": 0.1, "video": 0.01}, 0.9)
    found = reference.centred_betas({"audio": 0.1, "text": None, "video": 0.01}, 0.9)
    assert found == {"audio": both["audio"], "text": 0.9, "video": both["video"]}


def test_without_centring_the_gain_is_the_modalitys_own() -> None:
    ratios: dict[str, float | None] = {"audio": 0.1, "video": 0.01, "text": 10.0}
    for strength in (0.0, 1.0):
        found = reference.centred_betas(ratios, 0.9, strength, center=False)
        expected = (1 - reference.gain(0.1), 1 - reference.gain(0.01), 0.7)
        assert list(found.values()) == pytest.approx(expected, rel=1e-14)


# The moment


def test_moments_table() -> None:
    m, product, debiased = zip(*reference.moments([0.9, 0.7, 0.95], [1, 2, -1]), strict=True)
    assert m == pytest.approx((0.1, 0.67, 0.5865), abs=1e-12)
    assert product == pytest.approx((0.9, 0.63, 0.5985), abs=1e-12)
    assert debiased == pytest.approx((1, 1.810810811, 1.460772105), abs=5e-10)


def varying_betas(steps: int = STEPS, seed: int = 0) -> list[float]:
    return [float(beta) for beta in np.random.default_rng(seed).uniform(0.7, 0.99, steps)]


def test_debiased_moment_is_a_weighted_mean() -> None:
    """m~_t = sum_tau w_tau g_tau / sum_tau w_tau, w_tau = (1 - beta_tau) prod_{s > tau} beta_s."""
    betas = varying_betas()
    gradients = [float(g) for g in np.random.default_rng(1).normal(size=STEPS)]
    for t, (_, _, debiased) in enumerate(reference.moments(betas, gradients), start=1):
        weights = [(1 - betas[tau]) * math.prod(betas[tau + 1 : t]) for tau in range(t)]
        total = sum(w * g for w, g in zip(weights, gradients[:t], strict=True))
        assert debiased == pytest.approx(total / sum(weights), rel=1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_constant_gradient_is_its_own_debiased_moment(seed: int) -> None:
    for _, _, debiased in reference.moments(varying_betas(300, seed), [0.37] * 300):
        assert debiased == pytest.approx(0.37, rel=1e-12)


# The optimizers against torch's own

Build = tuple[Callable[..., torch.optim.Optimizer], Callable[..., Optimizer], dict[str, Any]]

ADAPTIVE: dict[str, Build] = {
    "adam": (torch.optim.Adam, reference.Adam, {}),
    "adamw": (torch.optim.AdamW, reference.Adam, {"decoupled": True}),
    "amsgrad": (torch.optim.Adam, reference.Adam, {"amsgrad": True}),
    "amsgradw": (torch.optim.AdamW, reference.Adam, {"amsgrad": True, "decoupled": True}),
    "adamax": (torch.optim.Adamax, reference.Adamax, {}),
    "radam": (torch.optim.RAdam, reference.RAdam, {}),
    "radamw": (torch.optim.RAdam, reference.RAdam, {"decoupled": True}),
    "nadam": (torch.optim.NAdam, reference.NAdam, {}),
    "nadamw": (torch.optim.NAdam, reference.NAdam, {"decoupled": True}),
}
RESCALED = [name for name in ADAPTIVE if not name.startswith("nadam")]


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """NAdam keeps its product of mu in the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def gradients(seed: int = 0) -> list[Tensor]:
    """Of very different sizes, growing and shrinking, so that eps and amsgrad matter."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-9, 1, 12, dtype=torch.float64).reshape(3, 4)
    return [
        scale * (1 + math.sin(t)) * torch.randn(3, 4, generator=generator, dtype=torch.float64)
        for t in range(STEPS)
    ]


def start() -> Tensor:
    return torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


def pair(
    name: str, weight_decay: float, maximize: bool = False, beta0: float = 0.9, **more: Any
) -> tuple[Tensor, torch.optim.Optimizer, Optimizer]:
    theirs, ours, flags = ADAPTIVE[name]
    x = start().requires_grad_()
    common = {"lr": 1e-2, "betas": (beta0, 0.99), "eps": 1e-6, "weight_decay": weight_decay}
    torch_flags = {key: value for key, value in flags.items() if key == "amsgrad"}
    if flags.get("decoupled") and theirs is not torch.optim.AdamW:
        torch_flags["decoupled_weight_decay"] = True
    built = theirs([x], foreach=False, maximize=maximize, **common, **torch_flags)
    return x, built, ours(start(), maximize=maximize, **common, **flags, **more)


def assert_same(x: Tensor, slow: Optimizer) -> None:
    torch.testing.assert_close(x.detach(), slow.parameter, rtol=RTOL, atol=RTOL)
    moved, expected = x.detach() - start(), slow.parameter - start()
    assert float((moved - expected).norm()) <= RTOL * float(expected.norm())


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_constant_beta_is_torchs_optimizer(name: str, weight_decay: float, maximize: bool) -> None:
    x, fast, slow = pair(name, weight_decay, maximize)
    for g in gradients():
        x.grad = g.clone()
        fast.step()
        slow.step(g, 0.9)
        assert_same(x, slow)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("exact", [False, True])
def test_constant_beta_is_torchs_sgd(exact: bool, weight_decay: float, maximize: bool) -> None:
    x = start().requires_grad_()
    settings: dict[str, Any] = {"momentum": 0.9, "weight_decay": weight_decay, "maximize": maximize}
    fast = torch.optim.SGD([x], lr=1e-2, foreach=False, **settings)
    slow = reference.SGD(start(), lr=1e-2, exact=exact, **settings)
    for g in gradients():
        x.grad = g.clone()
        fast.step()
        slow.step(g, 0.9)
        assert_same(x, slow)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_missing_gradients_and_a_schedule(name: str) -> None:
    x, fast, slow = pair(name, weight_decay=0.1)
    for t, g in enumerate(gradients()):
        fast.param_groups[0]["lr"] = slow.lr = 1e-2 * (1 + math.cos(t / 10))
        x.grad = None if t % 3 == 1 else g.clone()
        fast.step()
        slow.step(x.grad, 0.9)
        assert_same(x, slow)
    assert slow.age == 20
    assert slow.product == pytest.approx(0.9**20)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_reset_is_a_new_optimizer(name: str) -> None:
    x, fast, slow = pair(name, weight_decay=0.1)
    for t, g in enumerate(gradients()):
        if t == 10:
            fast.state.clear()
            slow.reset()
        x.grad = g.clone()
        fast.step()
        slow.step(g, 0.9)
        assert_same(x, slow)
    assert slow.age == STEPS - 10


# The optimizers under a varying beta


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", RESCALED)
def test_varying_beta_is_torchs_optimizer_with_a_rescaled_rate(
    name: str, weight_decay: float
) -> None:
    """lr c_t with c_t = (1 - beta_t^t) / (1 - P_t), and weight_decay / c_t where decoupled."""
    x, fast, slow = pair(name, weight_decay)
    group, product = fast.param_groups[0], 1.0
    for t, (g, beta) in enumerate(zip(gradients(), varying_betas(), strict=True), start=1):
        product *= beta
        c = (1 - beta**t) / (1 - product)
        group["betas"], group["lr"] = (beta, 0.99), 1e-2 * c
        group["weight_decay"] = weight_decay / c if slow.decoupled else weight_decay
        x.grad = g.clone()
        fast.step()
        slow.step(g, beta)
        assert_same(x, slow)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_inexact_is_torchs_own_correction_and_nadam_knows_no_other(name: str) -> None:
    more = {} if name.startswith("nadam") else {"exact": False}
    x, fast, slow = pair(name, weight_decay=0.1, **more)
    for g, beta in zip(gradients(), varying_betas(), strict=True):
        fast.param_groups[0]["betas"] = (beta, 0.99)
        x.grad = g.clone()
        fast.step()
        slow.step(g, beta)
        assert_same(x, slow)


@pytest.mark.parametrize("exact", [False, True])
def test_varying_beta_on_torchs_sgd(exact: bool) -> None:
    x = start().requires_grad_()
    fast = torch.optim.SGD([x], lr=1e-2, momentum=0.9, weight_decay=0.1, foreach=False)
    fast.state[x]["momentum_buffer"] = torch.zeros_like(x)
    slow = reference.SGD(start(), lr=1e-2, momentum=0.9, weight_decay=0.1, exact=exact)
    group, product = fast.param_groups[0], 1.0
    for t, (g, beta) in enumerate(zip(gradients(), varying_betas(), strict=True), start=1):
        product *= beta
        c = (1 - 0.9**t) / (1 - product) if exact else 1.0
        group["momentum"], group["dampening"] = beta, 1 - (1 - beta) / (1 - 0.9)
        group["lr"] = 1e-2 * c
        x.grad = g.clone()
        fast.step()
        slow.step(g, beta)
        assert_same(x, slow)


def test_constant_gradient_gives_its_sign_under_any_betas() -> None:
    slow = reference.Adam(start(), lr=1.0, eps=0.0)
    g = torch.linspace(-3, 4, 12, dtype=torch.float64).reshape(3, 4)
    for t, beta in enumerate(varying_betas(), start=1):
        slow.step(g, beta)
        torch.testing.assert_close(slow.parameter, start() - t * g.sign(), rtol=1e-11, atol=1e-11)


def test_constant_gradient_under_sgd() -> None:
    """Literal: m~ = g. Anchored: plain SGD's own buffer, (1 - beta0^t) / (1 - beta0) g."""
    g = torch.linspace(-3, 4, 12, dtype=torch.float64).reshape(3, 4)
    literal = reference.SGD(start(), lr=1.0, literal=True)
    anchored, plain = reference.SGD(start(), lr=1.0), reference.SGD(start(), lr=1.0)
    for t, beta in enumerate(varying_betas(), start=1):
        literal.step(g, beta)
        anchored.step(g, beta)
        plain.step(g, 0.9)
        torch.testing.assert_close(literal.parameter, start() - t * g, rtol=RTOL, atol=RTOL)
        torch.testing.assert_close(anchored.parameter, plain.parameter, rtol=RTOL, atol=RTOL)


def test_literal_sgd_steps_by_the_debiased_moment() -> None:
    slow = reference.SGD(torch.zeros(1), lr=0.5, literal=True)
    for g, beta in zip((1.0, 2.0, -1.0), (0.9, 0.7, 0.95), strict=True):
        slow.step(torch.tensor([g]), beta)
    debiased = [m for _, _, m in reference.moments([0.9, 0.7, 0.95], [1, 2, -1])]
    assert float(slow.parameter) == pytest.approx(-0.5 * sum(debiased), rel=1e-14)


def test_parameter_is_a_copy() -> None:
    x = torch.ones(2, dtype=torch.float32)
    slow = reference.Adam(x, lr=0.1)
    slow.step(torch.ones(2), 0.9)
    assert slow.parameter.dtype is torch.float64
    torch.testing.assert_close(x, torch.ones(2, dtype=torch.float32), rtol=0, atol=0)
