"""The classifier gradient of a batch and of its two halves, analytically, in either of two forms.

Legend: n samples in rows (or n sequences of tokens), C outputs, features H [rows, D], residuals
E = dL/dz [rows, C] of the modality's own logits z, v in {0, 1} marks the rows that count, s in
{A, B} is the half of a row's sample: A holds the positions 0, 2, 4, ... of the step's samples.

| equation                                                 | function                         |
|----------------------------------------------------------|----------------------------------|
| E = softmax(z) - onehot(y), or autograd on detached z    | `softmax_residuals`, `residuals` |
| S_s = sum over half s of v e (x) [h; 1], w_s = sum of v  | `half_sums`, `half_rows`         |
| g_s = S_s / w_s, g = (S_A + S_B) / (w_A + w_B)           | `direct_probe`                   |
| <g_a, g_b> = a^T (E E'^T * (H H'^T + 1)) b               | `gram_probe`                     |
| R~ = w_A w_B / (w_A + w_B)^2 * mean((g_A - g_B)^2)       | both                             |

The direct form makes a [C, D + 1] gradient per half. The Gram form never does: every number that
the method needs is an inner product of gradients, so of rows, and what it keeps is rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from .number import Number

Loss = Literal["cross_entropy"] | Callable[[Tensor, Tensor], Tensor]
Form = Literal["direct", "gram"]

IGNORED = -100  # torch's own default ignore_index


@dataclass(frozen=True, slots=True)
class Probe:
    """What one step measured of one modality; each number is a mean over the d gradient entries.

    `change` and `previous_noise` are nan at a modality's first probe, which has no earlier one to
    compare with.
    """

    noise: Number  # R~_t: variance of g_t, from the difference of the two halves
    change: Number  # mean((g_t - g_{t-1})^2)
    previous_noise: Number  # R~_{t-1}
    energy: Number  # mean(g_t^2)

    @property
    def measurable(self) -> bool:
        """False if a half was empty, or if there was a nan or an infinity."""
        finite = math.isfinite(self.noise) and math.isfinite(self.energy)
        return finite and not math.isinf(self.change)

    @property
    def drift(self) -> Number:
        """Unbiased estimate of the drift Q, not clipped, so it may be negative."""
        return self.change - self.noise - self.previous_noise


def numbers_of(probe: Probe) -> list[Number]:
    """The arguments of `Probe`, in their order."""
    return [probe.noise, probe.change, probe.previous_noise, probe.energy]


class Batch(NamedTuple):
    """Detached rows of one observation; the sample axis comes first, tokens may follow."""

    residuals: Tensor  # E [n, ..., C]
    features: Tensor  # H [n, ..., D]
    valid: Tensor  # v [n, ...], 0 or 1 in the dtype of E


class Rows(NamedTuple):
    """The Gram form's view of a step: g_s = sum_i halves_si e_i (x) [h_i; 1] / w_s."""

    residuals: Tensor  # [rows, C]
    features: Tensor  # [rows, D]
    halves: Tensor  # [2, rows]: v where the row belongs to half A, or B, else 0


class Sums(NamedTuple):
    """The direct form's view of a step: [G_W | g_b] of both halves, not yet divided by w."""

    gradients: Tensor  # [2, C, D + 1]
    weights: Tensor  # [2]


class Memory(NamedTuple):
    """What is kept of a step, to compare the next one with."""

    gradient: Tensor | Rows  # g itself [C, D + 1], or the rows that make it
    noise: Tensor
    energy: Tensor


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Autocast would lower the precision of matrix products, whichever dtype they are given."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def softmax_residuals(logits: Tensor, target: Tensor) -> Tensor:
    """softmax(z) - Y, for class ids (where they are ignored, any) or soft labels."""
    residuals = torch.softmax(logits, dim=-1)
    if target.is_floating_point():
        return residuals.mul_(target.sum(dim=-1, keepdim=True)).sub_(target)
    ids = target.long().masked_fill(target == IGNORED, 0).unsqueeze(-1)
    minus_one = torch.full_like(ids, -1, dtype=residuals.dtype)
    return residuals.scatter_add_(-1, ids, minus_one)


def residuals(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    """dL_i/dz_i for every row, of a loss that gives one value (or more) per sample."""
    if loss == "cross_entropy":
        return softmax_residuals(logits, target)
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        value = loss(leaf, target)
        if value.ndim == 0 or value.shape != logits.shape[: value.ndim]:
            raise ValueError(
                f"the loss gave a tensor of shape {tuple(value.shape)} for {logits.shape[0]} "
                'samples; it must keep the sample axis: pass reduction="none" to a torch loss'
            )
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return gradient


@torch.no_grad()
def batch_of(
    modality: str,
    features: Tensor,
    logits: Tensor,
    target: Tensor,
    loss: Loss = "cross_entropy",
    mask: Tensor | None = None,
) -> Batch:
    """Check what was observed of one modality, and reduce it to residuals, features and validity.

    In float32, or float64 if that is what comes in, and never in autocast's half precision.
    """
    _check(modality, features, logits, target, loss, mask)
    dtype = torch.promote_types(torch.promote_types(features.dtype, logits.dtype), torch.float32)
    valid = torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
    if not target.is_floating_point() and target.shape == valid.shape:
        valid = target != _ignored(loss)
    if mask is not None:
        valid = valid & mask.reshape(*mask.shape, *(1,) * (valid.ndim - mask.ndim))
    with full_precision(logits.device):
        try:
            error = residuals(loss, logits.detach().to(dtype), target)
        except ValueError as problem:
            raise ValueError(f"modality {modality!r}: {problem}") from problem
    features = features.detach().to(dtype)
    if valid.ndim > 1 or mask is not None:  # whatever stands in padding, be it nan, does not count
        padding = ~valid.unsqueeze(-1)
        error = error.masked_fill(padding, 0)
        features = features.masked_fill(padding, 0)
    return Batch(error, features, valid.to(dtype))


def batches_of(
    modalities: Mapping[str, tuple[Tensor, Tensor]],
    target: Tensor,
    loss: Loss,
    mask: Tensor | None,
) -> dict[str, Batch]:
    """`batch_of` for every modality's (features, logits)."""
    batches: dict[str, Batch] = {}
    for modality, pair in modalities.items():
        if not isinstance(cast(object, pair), tuple | list) or len(pair) != 2:
            raise TypeError(
                f"modality {modality!r}: observe was given a {type(pair).__name__}; it takes what "
                f"goes into the head and what comes out: {modality}=(features, logits)"
            )
        batches[modality] = batch_of(modality, *pair, target, loss, mask)
    return batches


def _check(
    modality: str,
    features: Tensor,
    logits: Tensor,
    target: Tensor,
    loss: Loss,
    mask: Tensor | None,
) -> None:
    """Every error names the modality, the offending value, and the line that mends it."""
    for name, tensor in (("features", features), ("logits", logits), ("target", target)):
        if not isinstance(cast(object, tensor), Tensor):
            raise TypeError(
                f"modality {modality!r}: {name} is a {type(tensor).__name__}; it must be a tensor"
            )
    for name, tensor in (("features", features), ("logits", logits)):
        if not tensor.is_floating_point():
            raise TypeError(
                f"modality {modality!r}: {name} are {tensor.dtype}; they must be floating point, "
                "as the head takes and gives them. Pass what goes into it, and what comes out"
            )
    problem = _shape_problem(features, logits, target, mask)
    if problem is None and loss == "cross_entropy":
        problem = _cross_entropy_problem(logits, target)
    if problem is not None:
        raise ValueError(f"modality {modality!r}: {problem}")


def _shape_problem(
    features: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None
) -> str | None:
    for name, tensor in (("features", features), ("logits", logits)):
        if tensor.ndim < 2:
            return (
                f"{name} have shape {tuple(tensor.shape)}; they must be [n, D] or [n, T, D]. "
                "Use unsqueeze(-1) for a head with one output"
            )
    rows = tuple(logits.shape[:-1])
    if tuple(features.shape[:-1]) != rows:
        return (
            f"features have shape {tuple(features.shape)} and logits {tuple(logits.shape)}; all "
            "but the last axis must agree. Pass the very tensor that the head takes"
        )
    if target.ndim == 0 or target.shape[0] != rows[0]:
        return (
            f"there are {rows[0]} samples, but the target has shape {tuple(target.shape)}; "
            "observe the target of this very batch"
        )
    if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) != rows[: mask.ndim]):
        return (
            f"the mask is {mask.dtype} of shape {tuple(mask.shape)}; it must be bool of shape "
            f"{rows}, true where a row counts"
        )
    return None


def _cross_entropy_problem(logits: Tensor, target: Tensor) -> str | None:
    rows = tuple(logits.shape[:-1])
    if logits.shape[-1] < 2:
        return (
            "softmax over one output has no gradient. For a binary target use "
            'VCMM(optimizer, loss=partial(F.binary_cross_entropy_with_logits, reduction="none"))'
        )
    if target.is_floating_point() and target.shape != logits.shape:
        return (
            f"a float target of shape {tuple(target.shape)} cannot be soft labels for logits of "
            f"shape {tuple(logits.shape)}. For regression use "
            'VCMM(optimizer, loss=partial(F.mse_loss, reduction="none"))'
        )
    if not target.is_floating_point() and tuple(target.shape) != rows:
        return (
            f"class ids have shape {tuple(target.shape)}, but the logits {tuple(logits.shape)}; "
            f"ids must have shape {rows}. For several labels per sample use "
            'VCMM(optimizer, loss=partial(F.binary_cross_entropy_with_logits, reduction="none"))'
        )
    return None


def _ignored(loss: Loss) -> int:
    """The class id that does not count, as torch's losses and partial functions of them say it."""
    named = (
        loss.keywords
        if isinstance(loss, partial)
        else vars(loss)
        if hasattr(loss, "__dict__")
        else {}
    )
    return int(named.get("ignore_index", IGNORED))


def half_sums(batch: Batch, parity: int) -> Sums:
    """S and w of both halves. The first sample stands at an even position if `parity` is 0."""
    valid = batch.valid.unsqueeze(-1)
    features = torch.cat([batch.features * valid, valid], dim=-1)
    with full_precision(features.device):
        first, second = (
            batch.residuals[i::2].flatten(0, -2).T @ features[i::2].flatten(0, -2) for i in (0, 1)
        )
    sums = torch.stack([first, second])
    weights = torch.stack([batch.valid[0::2].sum(), batch.valid[1::2].sum()])
    return Sums(sums.flip(0), weights.flip(0)) if parity else Sums(sums, weights)


def half_rows(batch: Batch, parity: int) -> Rows:
    """The same batch as rows, each with the half that it belongs to."""
    halves = batch.valid.new_zeros((2, *batch.valid.shape))
    halves[parity, 0::2] = batch.valid[0::2]
    halves[1 - parity, 1::2] = batch.valid[1::2]
    return Rows(batch.residuals.flatten(0, -2), batch.features.flatten(0, -2), halves.flatten(1))


def cheaper_form(rows: int, outputs: int, features: int) -> Form:
    """Direct or Gram, by operations.

    Direct: one product over the rows and about ten passes over [C, D + 1], each of which costs as
    much as some twenty multiplications. Gram: two [rows, rows] products over C and over D.
    """
    direct = outputs * (features + 1) * (2 * rows + 200)
    gram = 4 * rows * rows * (outputs + features)
    return "gram" if gram < direct else "direct"


def direct_probe(sums: Sums, memory: Memory | None) -> tuple[Probe, Memory]:
    """Measure from the half sums, and remember g_t."""
    w_a, w_b = sums.weights.unbind()
    sum_a, sum_b = sums.gradients.unbind()
    gradient = (sum_a + sum_b) / sums.weights.sum()
    old = None if memory is None else memory.gradient
    if not isinstance(old, Tensor) or old.shape != gradient.shape:
        memory = None  # the head has changed its size: there is nothing to compare with
    compared = [sum_a / w_a - gradient, gradient]  # g_A - g = w_B / (w_A + w_B) (g_A - g_B)
    if memory is not None:
        compared.append(gradient - cast(Tensor, memory.gradient))
    # Summed up in one go: each tensor operation costs more than these few numbers are worth.
    squares = torch.stack([torch.dot(x, x) for x in (c.flatten() for c in compared)])
    apart, energy, *change = (squares.double() / gradient.numel()).unbind()
    noise = apart * (w_a / w_b).double()
    new = Memory(gradient, noise, energy)
    if memory is None:
        return _first_probe(new), new
    return Probe(noise, change[0], memory.noise, energy), new


def gram_probe(rows: Rows, memory: Memory | None) -> tuple[Probe, Memory]:
    """Measure from inner products of rows, and remember the rows; no [C, D] tensor is ever made."""
    entries = rows.residuals.shape[1] * (rows.features.shape[1] + 1)
    halves = rows.halves.double()
    w_a, w_b = halves.sum(dim=1).unbind()
    total = w_a + w_b
    whole = halves.sum(dim=0) / total
    between = halves[0] / w_a - halves[1] / w_b
    gram = _gram(rows, rows)
    energy = (whole @ gram @ whole).clamp(min=0) / entries
    noise = (between @ gram @ between).clamp(min=0) / entries * (w_a * w_b / total**2)
    new = Memory(rows, noise, energy)
    if (
        memory is None
        or not isinstance(memory.gradient, Rows)
        or (
            memory.gradient.residuals.shape[1] != rows.residuals.shape[1]
            or memory.gradient.features.shape[1] != rows.features.shape[1]
        )
    ):
        return _first_probe(new), new
    before = Rows(*(part.to(rows.features.dtype) for part in memory.gradient))
    old = before.halves.double().sum(dim=0)
    product = whole @ _gram(rows, before) @ (old / old.sum()) / entries
    change = (energy + memory.energy - 2 * product).clamp(min=0)
    return Probe(noise, change, memory.noise, energy), new


def in_direct_form(memory: Memory) -> Memory:
    """The same memory with g itself in place of the rows that make it."""
    rows = memory.gradient
    if isinstance(rows, Tensor):
        return memory
    weights = rows.halves.sum(dim=0)
    features = torch.cat([rows.features, torch.ones_like(rows.features[:, :1])], dim=1)
    gradient = rows.residuals.T @ (features * (weights / weights.sum()).unsqueeze(-1))
    return memory._replace(gradient=gradient)


def choose_memory(condition: Tensor, new: Memory, old: Memory) -> Memory:
    """`new` where the condition holds, else `old`, if they are of the same shape; else `new`."""
    noise = torch.where(condition, new.noise, old.noise)
    energy = torch.where(condition, new.energy, old.energy)
    now, before = new.gradient, old.gradient
    if isinstance(now, Tensor) and isinstance(before, Tensor) and now.shape == before.shape:
        return Memory(torch.where(condition, now, before), noise, energy)
    if isinstance(now, Rows) and isinstance(before, Rows):
        pairs = list(zip(now, before, strict=True))
        if all(a.shape == b.shape for a, b in pairs):
            return Memory(Rows(*(torch.where(condition, a, b) for a, b in pairs)), noise, energy)
    return new


def _first_probe(memory: Memory) -> Probe:
    """Also where the head has changed its size: there is nothing to compare with."""
    nothing = torch.full_like(memory.noise, torch.nan)
    return Probe(memory.noise, nothing, nothing, memory.energy)


def _gram(a: Rows, b: Rows) -> Tensor:
    """Inner products of the rows' gradients: (E E'^T) * (H H'^T + 1), summed up in float64."""
    gram = (a.features @ b.features.T).double().add_(1)
    return gram.mul_(a.residuals @ b.residuals.T)
