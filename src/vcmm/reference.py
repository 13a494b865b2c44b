"""The paper as slow float64 loops: the yardstick of the tests, imported by nothing else.

Every function is one formula of the method, written to be compared with it line by line, and shares
no code with the library. A modality is seen through features h [n, D], logits z [n, C] and labels
y [n], or through tokens: h [n, T, D], z [n, T, C], y [n, T] and a mask valid [n, T]. Batches that
make up one step (gradient accumulation, several ranks) are concatenated before they come here.

1. probe        softmax_residual, classifier_gradient
2. dynamics     measure, observe, Estimator
3. gain         gain, logit_gain, centred_betas
4. moment       moments; Adam, Adamax, RAdam, NAdam, SGD: one object per parameter
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]

RATIO_RANGE = (1e-300, 1e300)  # where Q = 0 or R = 0 ends up, so that every log is finite


# 1. Probe


def softmax_residual(logits: Array, labels: Labels) -> Array:
    """E = softmax(z) - onehot(y) over the last axis; labels outside 0..C-1 have none."""
    residual = np.zeros(logits.shape, dtype=np.float64)
    for position in np.ndindex(*labels.shape):
        z = [float(value) for value in logits[position]]
        exponentials = [math.exp(value - max(z)) for value in z]
        for c, exponential in enumerate(exponentials):
            one_hot = 1.0 if c == int(labels[position]) else 0.0
            residual[(*position, c)] = exponential / sum(exponentials) - one_hot
    return residual


def classifier_gradient(
    features: Array, residuals: Array, rows: range, valid: Mask | None = None
) -> Array:
    """g = concat(flatten(E^T H / w), sum(E) / w) over the sequences `rows`, w their valid tokens.

    Without tokens w = |S|, so that g_b = mean(E). NaN where nothing is valid.
    """
    classes, width = residuals.shape[-1], features.shape[-1]
    weight = [0.0] * (classes * width)
    bias = [0.0] * classes
    count = 0
    for i in rows:
        for token in np.ndindex(*features.shape[1:-1]):
            position = (i, *token)
            if valid is not None and not valid[position]:
                continue
            count += 1
            for c in range(classes):
                residual = float(residuals[position][c])
                bias[c] += residual
                for k in range(width):
                    weight[c * width + k] += residual * float(features[position][k])
    return np.array([total / count if count else math.nan for total in weight + bias])


# 2. Noise and drift


class Observation:
    """What one step shows of one modality."""

    def __init__(self, noise: float, change: float | None, energy: float, gradient: Array) -> None:
        self.noise = noise  # R~_t, NaN where a half is empty
        self.change = change  # mean((g_t - g_{t-1})^2), None at the first step
        self.energy = energy  # mean(g_t^2)
        self.gradient = gradient  # g_t

    @property
    def measured(self) -> bool:
        """Whether every number is finite; where not, the previous estimate stands."""
        change = 0.0 if self.change is None else self.change
        return all(math.isfinite(value) for value in (self.noise, change, self.energy))


def measure(
    features: Array, residuals: Array, previous: Array | None = None, valid: Mask | None = None
) -> Observation:
    """R~ = w_A w_B / (w_A + w_B)^2 mean((g_A - g_B)^2), A = sequences 0, 2, ..., B = 1, 3, ...

    `previous` is g_{t-1}. Without tokens w_A and w_B are n_A and n_B.
    """
    n = len(features)
    mask = np.ones(features.shape[:-1], dtype=np.bool_) if valid is None else valid
    half_a, half_b = range(0, n, 2), range(1, n, 2)
    g = classifier_gradient(features, residuals, range(n), mask)
    g_a = classifier_gradient(features, residuals, half_a, mask)
    g_b = classifier_gradient(features, residuals, half_b, mask)
    w_a = sum(int(mask[i].sum()) for i in half_a)
    w_b = sum(int(mask[i].sum()) for i in half_b)

    noise = math.nan
    if w_a and w_b:
        noise = w_a * w_b / (w_a + w_b) ** 2 * _mean_square(g_a, g_b)
    change = None if previous is None else _mean_square(g, previous)
    return Observation(noise, change, _mean_square(g, np.zeros_like(g)), g)


def observe(
    features: Array,
    logits: Array,
    labels: Labels,
    previous: Array | None = None,
    valid: Mask | None = None,
) -> Observation:
    """`measure` with the residual of softmax cross-entropy."""
    return measure(features, softmax_residual(logits, labels), previous, valid)


class Estimator:
    """R <- a R + (1 - a) R~ and Q <- a Q + (1 - a) Q~ of one modality.

    a = smoothing, gamma_q = floor, K0 = 1 - beta0. At first R = R~ and Q = R~ K0^2 / (1 - K0), then
    Q~_t = max(mean((g_t - g_{t-1})^2) - R~_t - R~_{t-1}, gamma_q mean(g_t^2)).
    Without subtract_noise, Q~_t = max(mean((g_t - g_{t-1})^2), gamma_q mean(g_t^2)).
    With floor_after_smoothing, Q = max(smoothed difference, gamma_q smoothed energy).
    """

    def __init__(
        self,
        beta0: float,
        smoothing: float = 0.95,
        floor: float = 1e-4,
        subtract_noise: bool = True,
        floor_after_smoothing: bool = False,
    ) -> None:
        self.beta0 = beta0
        self.smoothing = smoothing
        self.floor = floor
        self.subtract_noise = subtract_noise
        self.floor_after_smoothing = floor_after_smoothing
        self.noise: float | None = None  # R
        self.drift: float | None = None  # Q
        self.last: Observation | None = None  # holds g_{t-1} and R~_{t-1}
        self._difference = 0.0  # running mean of the unfloored difference
        self._energy = 0.0  # running mean of mean(g^2)

    def observe(
        self, features: Array, logits: Array, labels: Labels, valid: Mask | None = None
    ) -> Observation:
        """Observe a batch against the last measured one, update R and Q, return what was seen."""
        previous = None if self.last is None else self.last.gradient
        seen = observe(features, logits, labels, previous, valid)
        self.update(seen)
        return seen

    def update(self, seen: Observation) -> None:
        """One step of R and Q; an observation that could not be measured moves nothing."""
        if not seen.measured:
            return
        if self.noise is None or self.drift is None or self.last is None:
            k0 = 1 - self.beta0
            self.noise = seen.noise
            self.drift = seen.noise * k0**2 / (1 - k0)
            self._difference = self.drift
            self._energy = seen.energy
            self.last = seen
            return
        if seen.change is None:
            raise ValueError("change is None after the first step: observe(..., previous=g_{t-1})")

        difference = seen.change
        if self.subtract_noise:
            difference = seen.change - seen.noise - self.last.noise

        a = self.smoothing
        self.noise = a * self.noise + (1 - a) * seen.noise
        if self.floor_after_smoothing:
            self._difference = a * self._difference + (1 - a) * difference
            self._energy = a * self._energy + (1 - a) * seen.energy
            self.drift = max(self._difference, self.floor * self._energy)
        else:
            self.drift = a * self.drift + (1 - a) * max(difference, self.floor * seen.energy)
        self.last = seen

    @property
    def ratio(self) -> float | None:
        """rho = Q / R, None before the first observation and while Q = R = 0."""
        if self.noise is None or self.drift is None or self.noise == self.drift == 0:
            return None
        return _bounded(self.drift / self.noise if self.noise > 0 else math.inf)


def _mean_square(a: Array, b: Array) -> float:
    differences = [float(x) - float(y) for x, y in zip(a, b, strict=True)]
    return sum(d * d for d in differences) / len(differences)


def _bounded(rho: float) -> float:
    smallest, largest = RATIO_RANGE
    return min(max(rho, smallest), largest)


# 3. Gain, centring, momentum


def gain(rho: float) -> float:
    """The root K in (0, 1) of rho = K^2 / (1 - K): K = 2 / (1 + sqrt(1 + 4 / rho))."""
    return 2 / (1 + math.sqrt(1 + 4 / _bounded(rho)))


def logit_gain(rho: float) -> float:
    """logit K = log(K / (1 - K)) = log rho - log K, because 1 - K = K^2 / rho."""
    return math.log(_bounded(rho)) - math.log(gain(rho))


def centred_betas(
    ratios: dict[str, float | None],
    beta0: float,
    strength: float = 1.0,
    gain_range: tuple[float, float] = (0.01, 0.30),
    center: bool = True,
) -> dict[str, float]:
    """beta_m = 1 - clip(sigmoid(l_m)), l_m = logit K0 + lambda (logit K_m - mean_j logit K_j).

    K0 = 1 - beta0. A modality without an estimate (None) keeps beta0 and stays out of the mean.
    lambda = 0 and a single estimated modality leave nothing to distribute: beta0 itself, unclipped.
    Without centring l_m = logit K_m, whatever lambda and however many modalities.
    """
    logits = {name: logit_gain(rho) for name, rho in ratios.items() if rho is not None}
    betas = dict.fromkeys(ratios, beta0)
    if center and (strength == 0 or len(logits) < 2):
        return betas
    low, high = gain_range
    for name, own in logits.items():
        mean = sum(logits.values()) / len(logits)
        centred = math.log((1 - beta0) / beta0) + strength * (own - mean)
        sigmoid = (1 + math.tanh((centred if center else own) / 2)) / 2
        betas[name] = 1 - min(max(sigmoid, low), high)
    return betas


# 4. The moment and its exact bias correction


def moments(betas: list[float], gradients: list[float]) -> list[tuple[float, float, float]]:
    """(m_t, P_t, m~_t): m_t = beta_t m_{t-1} + (1 - beta_t) g_t, m~_t = m_t / (1 - P_t).

    m_0 = 0 and P_t = prod_{tau <= t} beta_tau.
    """
    m, product = 0.0, 1.0
    history: list[tuple[float, float, float]] = []
    for beta, g in zip(betas, gradients, strict=True):
        m = beta * m + (1 - beta) * g
        product = product * beta
        history.append((m, product, m / (1 - product)))
    return history


class Optimizer:
    """One parameter under x <- x - lr direction(g_t, beta_t), with its own age t and product P_t.

    `parameter` is a float64 copy; the settings, `age` and `product` may be changed between steps.
    Coupled decay enters g before the moments; decoupled decay comes first, x <- (1 - lr decay) x.
    exact=False puts torch's own 1 - beta_t^t for 1 - P_t. betas[0] is unused: `step` has beta_t.
    amsgrad is Adam's alone, momentum_decay NAdam's; Adamax and SGD know no decoupled decay.
    """

    def __init__(
        self,
        parameter: Tensor,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        amsgrad: bool = False,
        momentum_decay: float = 4e-3,
        decoupled: bool = False,
        maximize: bool = False,
        exact: bool = True,
    ) -> None:
        self.parameter = parameter.detach().to(torch.float64).clone()
        self.lr = lr
        self.beta2 = betas[1]
        self.eps = eps
        self.weight_decay = weight_decay
        self.amsgrad = amsgrad
        self.momentum_decay = momentum_decay
        self.decoupled = decoupled
        self.maximize = maximize
        self.exact = exact
        self.reset()

    def reset(self) -> None:
        """Restart: t = 0, P = 1, every moment zero; the parameter stays."""
        self.age = 0
        self.product = 1.0
        self.mu_product = 1.0
        self.m = torch.zeros_like(self.parameter)
        self.v = torch.zeros_like(self.parameter)
        self.v_max = torch.zeros_like(self.parameter)

    def step(self, gradient: Tensor | None, beta: float) -> None:
        """One update with beta_t = beta; without a gradient nothing advances, neither t nor P."""
        if gradient is None:
            return
        g = gradient.detach().to(torch.float64)
        if self.maximize:
            g = -g
        self.age = self.age + 1
        self.product = self.product * beta
        if self.decoupled:
            self.parameter = (1 - self.lr * self.weight_decay) * self.parameter
        else:
            g = g + self.weight_decay * self.parameter
        self.parameter = self.parameter - self.lr * self._direction(g, beta)

    def _direction(self, g: Tensor, beta: float) -> Tensor:
        """What the learning rate multiplies."""
        raise NotImplementedError

    def debiased(self, g: Tensor, beta: float) -> Tensor:
        """m_t = beta_t m_{t-1} + (1 - beta_t) g_t; returns m~_t = m_t / (1 - P_t)."""
        self.m = beta * self.m + (1 - beta) * g
        return self.m / (1 - (self.product if self.exact else beta**self.age))

    def second_moment(self, g: Tensor) -> Tensor:
        """v_t = beta2 v_{t-1} + (1 - beta2) g_t^2, returned as it is, not debiased."""
        self.v = self.beta2 * self.v + (1 - self.beta2) * g * g
        return self.v


class Adam(Optimizer):
    """m~_t / (sqrt(v_t) / sqrt(1 - beta2^t) + eps); AMSGrad: max_tau v_tau; AdamW: decoupled."""

    def _direction(self, g: Tensor, beta: float) -> Tensor:
        m = self.debiased(g, beta)
        v = self.second_moment(g)
        if self.amsgrad:
            v = self.v_max = torch.maximum(self.v_max, v)
        return m / (v.sqrt() / math.sqrt(1 - self.beta2**self.age) + self.eps)


class Adamax(Optimizer):
    """m~_t / u_t with u_t = max(beta2 u_{t-1}, |g_t| + eps); `v` holds u."""

    def _direction(self, g: Tensor, beta: float) -> Tensor:
        m = self.debiased(g, beta)
        self.v = torch.maximum(self.beta2 * self.v, g.abs() + self.eps)
        return m / self.v


class RAdam(Optimizer):
    """m~_t r_t sqrt(1 - beta2^t) / (sqrt(v_t) + eps) where s_t > 5, else m~_t alone.

    s_inf = 2 / (1 - beta2) - 1, s_t = s_inf - 2 t beta2^t / (1 - beta2^t),
    r_t^2 = (s_t - 4) (s_t - 2) s_inf / ((s_inf - 4) (s_inf - 2) s_t).
    """

    def _direction(self, g: Tensor, beta: float) -> Tensor:
        m = self.debiased(g, beta)
        v = self.second_moment(g)
        correction2 = 1 - self.beta2**self.age
        s_inf = 2 / (1 - self.beta2) - 1
        s = s_inf - 2 * self.age * self.beta2**self.age / correction2
        if s <= 5:
            return m
        r = math.sqrt((s - 4) * (s - 2) * s_inf / ((s_inf - 4) * (s_inf - 2) * s))
        return m * r * math.sqrt(correction2) / (v.sqrt() + self.eps)


class NAdam(Optimizer):
    """torch's NAdam with beta_t for beta1; M_t = prod mu_tau is its own product, P_t plays no part.

    mu_t = beta_t (1 - 0.5 * 0.96^(t psi)), mu' = beta_t (1 - 0.5 * 0.96^((t + 1) psi)),
    direction = (g_t (1 - mu_t) / (1 - M_t) + m_t mu' / (1 - M_t mu')) / (sqrt(v~_t) + eps),
    v~_t = v_t / (1 - beta2^t), psi = momentum_decay.
    """

    def _direction(self, g: Tensor, beta: float) -> Tensor:
        t, psi = self.age, self.momentum_decay
        mu = beta * (1 - 0.5 * 0.96 ** (t * psi))
        mu_next = beta * (1 - 0.5 * 0.96 ** ((t + 1) * psi))
        self.mu_product = self.mu_product * mu
        self.m = beta * self.m + (1 - beta) * g
        v = self.second_moment(g)
        now = g * (1 - mu) / (1 - self.mu_product)
        ahead = self.m * mu_next / (1 - self.mu_product * mu_next)
        return (now + ahead) / ((v / (1 - self.beta2**t)).sqrt() + self.eps)


class SGD(Optimizer):
    """c_t b_t, b_t = beta_t b_{t-1} + (1 - beta_t) / (1 - beta0) g_t, b_0 = 0.

    beta0 = momentum and c_t = (1 - beta0^t) / (1 - P_t), so that beta_t = beta0 is plain SGD;
    exact=False is c_t = 1. With literal=True the direction is m~_t itself. `m` holds b (or m).
    """

    def __init__(
        self,
        parameter: Tensor,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        exact: bool = True,
        literal: bool = False,
    ) -> None:
        super().__init__(parameter, lr, weight_decay=weight_decay, maximize=maximize, exact=exact)
        self.momentum = momentum
        self.literal = literal

    def _direction(self, g: Tensor, beta: float) -> Tensor:
        if self.literal:
            return self.debiased(g, beta)
        self.m = beta * self.m + (1 - beta) / (1 - self.momentum) * g
        c = (1 - self.momentum**self.age) / (1 - self.product) if self.exact else 1.0
        return c * self.m
