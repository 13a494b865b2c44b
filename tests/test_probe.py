"""The probe: the gradient of a modality's own loss with respect to its own linear head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from vcmm import VCMM, reference
from vcmm.pool import Pool
from vcmm.probe import (
    Batch,
    Form,
    Loss,
    Memory,
    Probe,
    batch_of,
    cheaper_form,
    direct_probe,
    gram_probe,
    half_rows,
    half_sums,
    residuals,
    softmax_residuals,
)

D, C = 5, 4
EXACT = 1e-12


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def ids(*shape: int, seed: int = 0, classes: int = C) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(100 + seed))


def a_head(outputs: int = C, seed: int = 7) -> nn.Linear:
    head = nn.Linear(D, outputs, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(normal(outputs, D, seed=seed))
        head.bias.copy_(normal(outputs, seed=seed + 1))
    return head


def gradient_of(batch: Batch) -> Tensor:
    """g as [C, D + 1], in the direct form."""
    gradient = direct_probe(half_sums(batch, 0), None)[1].gradient
    assert isinstance(gradient, Tensor)
    return gradient


def by_autograd(head: nn.Linear, loss: Tensor) -> Tensor:
    weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
    return torch.cat([weight, bias.unsqueeze(1)], dim=1)


def assert_same(found: Tensor, expected: Tensor, tolerance: float = EXACT) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# Softmax cross-entropy, analytically


@pytest.mark.parametrize("n", [2, 3, 8, 9])
def test_cross_entropy_probe_is_autograd_of_the_heads_own_loss(n: int) -> None:
    head, h, y = a_head(), normal(n, D), ids(n)
    z = head(h)
    expected = by_autograd(head, F.cross_entropy(z, y))
    found = gradient_of(batch_of("audio", h, z, y))
    assert float(expected.norm()) > 0.1
    assert_same(found[:, :-1], expected[:, :-1])
    assert_same(found[:, -1], expected[:, -1])


@pytest.mark.parametrize("form", ["direct", "gram"])
@pytest.mark.parametrize("n", [4, 7])
def test_cross_entropy_probe_is_the_references(n: int, form: Form) -> None:
    previous = None
    pool = a_pool(form)
    for step in range(3):
        h, z, y = normal(n, D, seed=step), normal(n, C, seed=10 + step), ids(n, seed=step)
        slow = reference.observe(h.numpy(), z.numpy(), y.numpy(), previous)
        (fast,) = measure(pool, [batch_of("audio", h, z, y)])
        assert fast.noise == pytest.approx(slow.noise, rel=EXACT)
        assert fast.energy == pytest.approx(slow.energy, rel=EXACT)
        if slow.change is not None:
            assert fast.change == pytest.approx(slow.change, rel=EXACT)
        previous = slow.gradient
        assert_same(gradient_of(batch_of("audio", h, z, y)), as_matrix(slow.gradient))


def as_matrix(flat: reference.Array) -> Tensor:
    """concat(flatten(G_W), g_b) as [C, D + 1]."""
    whole = torch.from_numpy(np.asarray(flat))
    return torch.cat([whole[:-C].view(C, D), whole[-C:].unsqueeze(1)], dim=1)


def test_cross_entropy_never_calls_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("autograd was called")

    head, optimizer, vcmm = a_controller()
    h, y = normal(6, D), ids(6)
    z = head(h)
    monkeypatch.setattr(torch.autograd, "grad", forbidden)
    monkeypatch.setattr(torch.autograd, "backward", forbidden)
    vcmm.observe(y, audio=(h, z))
    optimizer.step()
    vcmm.observe(F.one_hot(y, C).double(), audio=(h, z))
    optimizer.step()
    assert vcmm.metrics()["audio/R"] > 0
    # Where autograd is needed, this test would notice that it was called.
    vcmm.detach()
    other = VCMM(optimizer, loss=per_sample_cross_entropy)
    with pytest.raises(AssertionError, match="autograd was called"):
        other.observe(y, audio=(h, z))


def test_observing_builds_no_graph_and_leaves_the_users_alone() -> None:
    for loss in ("cross_entropy", per_sample_cross_entropy):
        head, h, y = a_head(), normal(6, D).requires_grad_(), ids(6)
        z = head(h)
        before = z.detach().clone()
        batch = batch_of("audio", h, z, y, loss)
        assert not any(tensor.requires_grad for tensor in batch)
        assert head.weight.grad is None
        assert h.grad is None
        torch.testing.assert_close(z.detach(), before, rtol=0, atol=0)
        F.cross_entropy(z, y).backward()  # the user's own graph is still there
        assert head.weight.grad is not None


def test_large_logits_give_finite_residuals() -> None:
    found = softmax_residuals(torch.tensor([[1e4, -1e4], [-3e38, 3e38]]), torch.tensor([1, 1]))
    torch.testing.assert_close(found, torch.tensor([[1.0, -1.0], [0.0, 0.0]]), rtol=0, atol=0)


# Every other per-sample loss, through its residual


def per_sample_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, reduction="none")


def focal(z: Tensor, y: Tensor, gamma: float = 2.0) -> Tensor:
    log_p = torch.log_softmax(z, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -((1 - log_p.exp()) ** gamma) * log_p


def soft_cross_entropy(z: Tensor, soft: Tensor) -> Tensor:
    return -(soft * torch.log_softmax(z, dim=-1)).sum(-1)


def by_tokens(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """torch wants the classes of a token-level loss on the second axis."""
    return lambda z, y: function(z.transpose(1, 2), y, reduction="none")


N = 7
SOFT = torch.softmax(normal(N, C, seed=3), dim=-1)
LOSSES: dict[str, tuple[Loss, Tensor]] = {
    "label smoothing": (partial(F.cross_entropy, label_smoothing=0.1, reduction="none"), ids(N)),
    "class weights": (
        partial(
            F.cross_entropy,
            weight=torch.tensor([0.1, 1.0, 3.0, 7.0], dtype=torch.float64),
            reduction="none",
        ),
        ids(N),
    ),
    "multi-label": (
        partial(F.binary_cross_entropy_with_logits, reduction="none"),
        ids(N, C, classes=2).double(),
    ),
    "regression": (partial(F.mse_loss, reduction="none"), normal(N, C, seed=4)),
    "huber": (partial(F.huber_loss, reduction="none", delta=0.5), normal(N, C, seed=4)),
    "soft labels by a function": (soft_cross_entropy, SOFT),
    "soft labels by torch": (per_sample_cross_entropy, SOFT),
    "focal": (focal, ids(N)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_residual_of_any_loss_is_autograd_through_a_real_head(name: str) -> None:
    loss, target = LOSSES[name]
    assert callable(loss)
    head, h = a_head(), normal(N, D)
    z = head(h)
    # Whatever one value per sample is made of (a sum over labels, say), the step takes its mean
    # over the samples.
    expected = by_autograd(head, loss(z, target).sum() / N)
    batch = batch_of("audio", h, z, target, loss)
    found = gradient_of(batch)
    assert float(expected.norm()) > 1e-3
    assert_same(found, expected)
    slow = reference.measure(h.numpy(), batch.residuals.numpy())
    assert direct_probe(half_sums(batch, 0), None)[0].noise.item() == pytest.approx(
        slow.noise, rel=EXACT
    )


def test_no_two_of_these_losses_have_the_same_residual() -> None:
    """Else the table above would test less than it says."""
    z = normal(N, C, seed=5)
    found = [residuals(loss, z, target) for loss, target in LOSSES.values()]
    same = [
        (a, b) for a in range(len(found)) for b in range(a) if torch.allclose(found[a], found[b])
    ]
    names = list(LOSSES)
    expected = [(names.index("soft labels by torch"), names.index("soft labels by a function"))]
    assert same == expected


def test_soft_labels_need_no_function() -> None:
    head, h = a_head(), normal(N, D)
    z = head(h)
    expected = by_autograd(head, F.cross_entropy(z, SOFT))
    assert_same(gradient_of(batch_of("audio", h, z, SOFT)), expected)
    by_function = gradient_of(batch_of("audio", h, z, SOFT, soft_cross_entropy))
    assert_same(by_function, expected)


def test_one_hot_soft_labels_are_class_ids() -> None:
    z, y = normal(N, C), ids(N)
    assert_same(softmax_residuals(z, F.one_hot(y, C).double()), softmax_residuals(z, y))


def test_soft_labels_that_do_not_sum_to_one_are_still_torchs_cross_entropy() -> None:
    """Weights folded into the labels, or rows of zeros for samples without a label."""
    head, h = a_head(), normal(N, D)
    weighted = SOFT * torch.linspace(0, 2, N, dtype=torch.float64).unsqueeze(1)
    z = head(h)
    expected = by_autograd(head, F.cross_entropy(z, weighted))
    assert_same(gradient_of(batch_of("audio", h, z, weighted)), expected)


def test_a_function_may_be_given_under_no_grad() -> None:
    head, h, y = a_head(), normal(N, D), ids(N)
    with torch.no_grad():
        found = gradient_of(batch_of("audio", h, head(h), y, focal))
    assert_same(found, by_autograd(head, focal(head(h), y).mean()))


# Tokens and masks

T = 6


def token_batch(n: int, seed: int = 0) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A head, its features, class ids, and which tokens are valid: at least one per sequence."""
    head, h, y = a_head(), normal(n, T, D, seed=seed), ids(n, T, seed=seed)
    valid = torch.rand(n, T, generator=torch.Generator().manual_seed(seed)) < 0.6
    valid[:, 0] = True
    return head, h, y, valid


@pytest.mark.parametrize("loss", ["cross_entropy", by_tokens(F.cross_entropy)])
@pytest.mark.parametrize("n", [4, 5])
def test_tokens_with_ignore_index(n: int, loss: Loss) -> None:
    head, h, y, valid = token_batch(n)
    y = y.masked_fill(~valid, -100)
    z = head(h)
    expected = by_autograd(head, F.cross_entropy(z.flatten(0, 1), y.flatten()))
    assert_same(gradient_of(batch_of("text", h, z, y, loss)), expected)


@pytest.mark.parametrize("loss", ["cross_entropy", by_tokens(F.cross_entropy)])
@pytest.mark.parametrize("n", [4, 5])
def test_tokens_with_mask_padding(n: int, loss: Loss) -> None:
    head, h, y, valid = token_batch(n)
    z = head(h)
    expected = by_autograd(head, F.cross_entropy(z[valid], y[valid]))
    assert_same(gradient_of(batch_of("text", h, z, y, loss, mask=valid)), expected)


def test_mask_and_ignore_index_add_up() -> None:
    head, h, y, valid = token_batch(5)
    y[:, 1] = -100
    z = head(h)
    both = valid & (y != -100)
    assert int(both.sum()) < int(valid.sum())
    expected = by_autograd(head, F.cross_entropy(z[both], y[both]))
    assert_same(gradient_of(batch_of("text", h, z, y, mask=valid)), expected)


def test_token_regression_with_mask() -> None:
    head, h, _, valid = token_batch(5)
    z, target = head(h), normal(5, T, C, seed=9)
    loss = partial(F.mse_loss, reduction="none")
    expected = by_autograd(head, loss(z, target)[valid].sum() / valid.sum())
    assert_same(gradient_of(batch_of("text", h, z, target, loss, mask=valid)), expected)


@pytest.mark.parametrize("form", ["direct", "gram"])
@pytest.mark.parametrize("n", [4, 5])
def test_halves_are_sequences_and_the_factor_counts_valid_tokens(n: int, form: Form) -> None:
    """w_A w_B / (w_A + w_B)^2 over even and odd sequences; halves over tokens read otherwise."""
    head, h, y, valid = token_batch(n, seed=2)
    w_a, w_b = int(valid[0::2].sum()), int(valid[1::2].sum())
    assert w_a != w_b
    z = head(h).detach()

    def half(rows: slice) -> Tensor:
        real = head(h[rows])[valid[rows]]
        return by_autograd(head, F.cross_entropy(real, y[rows][valid[rows]]))

    difference = half(slice(0, None, 2)) - half(slice(1, None, 2))
    expected = w_a * w_b / (w_a + w_b) ** 2 * float(difference.square().mean())
    (found,) = measure(a_pool(form), [batch_of("audio", h, z, y, mask=valid)])
    assert found.noise == pytest.approx(expected, rel=EXACT)
    slow = reference.observe(h.numpy(), z.numpy(), y.numpy(), valid=valid.numpy())
    assert found.noise == pytest.approx(slow.noise, rel=EXACT)

    flat = batch_of("audio", h.flatten(0, 1), z.flatten(0, 1), y.flatten(), mask=valid.flatten())
    (by_token,) = measure(a_pool(form), [flat])
    assert by_token.noise != pytest.approx(found.noise, rel=1e-2)
    assert by_token.energy == pytest.approx(found.energy, rel=EXACT)


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_mask_over_samples(form: Form) -> None:
    """[n] on plain logits leaves samples out; on token logits whole sequences."""
    mask = torch.tensor([True, True, False, True, True, False, True])
    h, z, y = normal(7, D), normal(7, C, seed=1), ids(7)
    (found,) = measure(a_pool(form), [batch_of("audio", h, z, y, mask=mask)])
    slow = reference.observe(h.numpy(), z.numpy(), y.numpy(), valid=mask.numpy())
    assert found.noise == pytest.approx(slow.noise, rel=EXACT)
    assert found.energy == pytest.approx(slow.energy, rel=EXACT)

    h, z, y = normal(7, T, D), normal(7, T, C, seed=1), ids(7, T)
    (found,) = measure(a_pool(form), [batch_of("audio", h, z, y, mask=mask)])
    every = mask.unsqueeze(1).expand(7, T)
    slow = reference.observe(h.numpy(), z.numpy(), y.numpy(), valid=every.numpy())
    assert found.noise == pytest.approx(slow.noise, rel=EXACT)
    assert found.energy == pytest.approx(slow.energy, rel=EXACT)


@pytest.mark.parametrize("loss", ["cross_entropy", by_tokens(F.cross_entropy)])
@pytest.mark.parametrize("form", ["direct", "gram"])
def test_what_stands_in_padding_does_not_matter(form: Form, loss: Loss) -> None:
    """Attention over a padded query may leave anything there, nan included."""
    _, h, y, valid = token_batch(5)
    z = normal(5, T, C, seed=8)
    clean = measure(a_pool(form), [batch_of("audio", h, z, y, loss, mask=valid)])
    for value in (1e6, torch.nan, torch.inf):
        padding = ~valid.unsqueeze(-1)
        garbage = h.masked_fill(padding, value), z.masked_fill(padding, value)
        found = measure(a_pool(form), [batch_of("audio", *garbage, y, loss, mask=valid)])
        assert (found[0].noise, found[0].energy) == (clean[0].noise, clean[0].energy)


# Direct and Gram form


def a_pool(form: Form | None) -> Pool:
    pool = Pool(["audio"], None, torch.device("cpu"))
    pool.streams["audio"].form = form
    return pool


def measure(pool: Pool, *steps: list[Batch]) -> list[Probe]:
    """One probe per step, each step of one or more micro-batches, as floats."""
    found: list[Probe] = []
    for batches in steps:
        for batch in batches:
            pool.streams["audio"].add(batch)
        probe = pool.measure()["audio"]
        pool.remember(["audio"])
        numbers = (probe.noise, probe.change, probe.previous_noise, probe.energy)
        found.append(Probe(*(float(number) for number in numbers)))
    return found


Sizes = tuple[int, ...]  # of the micro-batches of a step


def steps_of(kind: str, dtype: torch.dtype, sizes: tuple[Sizes, ...]) -> list[list[Batch]]:
    """In the kind "slow" the gradient hardly moves, where a difference of energies cancels most."""
    steps: list[list[Batch]] = []
    for number, step in enumerate(sizes):
        batches: list[Batch] = []
        for part, n in enumerate(step):
            seed = 1000 * number + part
            shape = (n, T) if kind == "tokens" else (n,)
            h, z, y = (
                normal(*shape, 48, seed=seed),
                normal(*shape, 20, seed=seed + 500),
                ids(*shape),
            )
            if kind == "slow":
                h = normal(*shape, 48) + 0.02 * h
                z = normal(*shape, 20, seed=1) + 0.02 * z
            h, z = (h + 0.5).to(dtype), z.to(dtype)
            mask = None
            if kind == "tokens":
                mask = normal(*shape, seed=seed + 7) < 0.5
                mask[:, 0] = True
            batches.append(batch_of("audio", h, z, y, mask=mask))
        steps.append(batches)
    return steps


CASES: dict[str, tuple[str, tuple[Sizes, ...]]] = {
    "cross-entropy": ("plain", ((16,), (16,), (16,))),
    "slow drift": ("slow", ((16,), (16,), (16,))),
    "odd n": ("plain", ((15,), (9,), (16,), (3,))),
    "micro-batches": ("plain", ((5, 3, 8), (7,), (1, 1, 1, 4))),
    "tokens": ("tokens", ((8,), (5,), (8,))),
    "tokens in micro-batches": ("tokens", ((3, 5), (1, 4), (2, 2, 3))),
}
# Both forms take their products in float32, with errors of some eps * sqrt(rows) of the energies
# that go into them. The Gram form has the change as a difference of energies, so an error there
# is relative to the energy, not to the change. Errors seen are below 1e-6 of the energy, and
# the least drift that the method tells from none, its floor, is 1e-4 of the energy.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-6}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_direct_and_gram_form_agree(case: str, dtype: torch.dtype) -> None:
    kind, sizes = CASES[case]
    steps = steps_of(kind, dtype, sizes)
    direct, gram = measure(a_pool("direct"), *steps), measure(a_pool("gram"), *steps)
    assert len(direct) == len(gram) == len(sizes)
    for number, (a, b) in enumerate(zip(direct, gram, strict=True)):
        near = TOLERANCE[dtype] * max(float(p.energy) for p in direct[: number + 1][-2:])
        assert b.noise == pytest.approx(a.noise, rel=0, abs=near)
        assert b.energy == pytest.approx(a.energy, rel=0, abs=near)
        assert near < 1e-3 * min(float(a.noise), float(a.energy))
        if number == 0:
            assert np.isnan([a.change, b.change, a.previous_noise, b.previous_noise]).all()
            continue
        assert b.change == pytest.approx(a.change, rel=0, abs=near)
        if kind == "slow":
            assert float(a.change) < 0.02 * float(a.energy)
        # What a step is compared with is the one before, in either form.
        assert a.previous_noise == direct[number - 1].noise
        assert b.previous_noise == gram[number - 1].noise


@pytest.mark.parametrize("form", ["direct", "gram"])
@pytest.mark.parametrize("case", ["micro-batches", "tokens in micro-batches"])
def test_micro_batches_are_one_batch(case: str, form: Form) -> None:
    """Also after micro-batches of odd size: even and odd positions run on across them."""
    kind, sizes = CASES[case]
    steps = steps_of(kind, torch.float64, sizes)
    whole = [
        [Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))] for batches in steps
    ]
    found, expected = measure(a_pool(form), *steps), measure(a_pool(form), *whole)
    for a, b in zip(found, expected, strict=True):
        numbers = [(p.noise, p.change, p.previous_noise, p.energy) for p in (a, b)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-11, nan_ok=True)


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_the_same_batch_twice_has_changed_nothing(form: Form) -> None:
    batches = steps_of("plain", torch.float64, ((16,),))[0]
    _, again = measure(a_pool(form), batches, batches)
    assert 0 <= float(again.change) <= 1e-14 * float(again.energy)
    assert float(again.drift) < 0  # unbiased, so it must be able to fall below zero


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_both_forms_give_float64_numbers_per_entry(form: Form) -> None:
    """Means over the d = C (D + 1) entries of weight and bias."""
    batch = batch_of("audio", normal(6, D), normal(6, C, seed=1), ids(6))
    if form == "direct":
        probe, memory = direct_probe(half_sums(batch, 0), None)
    else:
        probe, memory = gram_probe(half_rows(batch, 0), None)
    assert isinstance(probe.energy, Tensor)
    assert isinstance(probe.noise, Tensor)
    assert probe.energy.dtype == probe.noise.dtype == torch.float64
    g = gradient_of(batch)
    assert g.numel() == C * (D + 1)
    assert probe.energy.item() == pytest.approx(float(g.square().mean()), rel=EXACT)
    assert isinstance(memory, Memory)


@pytest.mark.parametrize("parity", [0, 1])
def test_parity_swaps_the_halves_alike_in_both_forms(parity: int) -> None:
    batch = batch_of("audio", normal(5, D), normal(5, C, seed=1), ids(5))
    sums, rows = half_sums(batch, parity), half_rows(batch, parity)
    assert sums.weights.tolist() == rows.halves.sum(1).tolist()
    assert sums.weights.tolist() == ([3, 2] if parity == 0 else [2, 3])
    ones = rows.features.new_ones(len(rows.features), 1)
    features = torch.cat([rows.features, ones], dim=1)
    for half in (0, 1):
        by_rows = (rows.residuals * rows.halves[half].unsqueeze(1)).T @ features
        assert_same(sums.gradients[half], by_rows)


# Which form, and what it costs


@pytest.mark.parametrize(
    ("rows", "outputs", "features", "form"),
    [
        (64, 6, 512, "direct"),  # CREMA-D
        (64, 31, 512, "direct"),  # KSounds
        (64, 1000, 512, "gram"),
        (64, 100_000, 512, "gram"),
        (64 * 512, 1000, 512, "direct"),  # tokens
        (16, 5000, 300, "gram"),
    ],
)
def test_the_library_picks_the_cheaper_form(
    rows: int, outputs: int, features: int, form: Form
) -> None:
    assert cheaper_form(rows, outputs, features) == form


sizes = st.integers(1, 200_000)


@given(rows=sizes, more=sizes, outputs=sizes, features=sizes)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_more_rows_only_make_the_direct_form_cheaper(
    rows: int, more: int, outputs: int, features: int
) -> None:
    """A stream relies on it: once a micro-batch is summed up, the step stays direct."""
    if cheaper_form(rows, outputs, features) == "direct":
        assert cheaper_form(rows + more, outputs, features) == "direct"


@pytest.mark.parametrize(("outputs", "form"), [(6, "direct"), (1000, "gram")])
def test_a_modality_settles_on_the_cheaper_form_by_itself(outputs: int, form: Form) -> None:
    pool = a_pool(None)
    batch = batch_of("audio", normal(64, 512), normal(64, outputs), ids(64, classes=outputs))
    measure(pool, [batch])
    assert pool.streams["audio"].form == form


def test_small_micro_batches_of_a_large_step_settle_on_the_form_of_the_step() -> None:
    """A micro-batch of one row alone would be cheaper as rows."""
    assert (cheaper_form(1, 6, 512), cheaper_form(64, 6, 512)) == ("gram", "direct")
    parts = [
        batch_of("audio", normal(1, 512, seed=i), normal(1, 6, seed=i + 99), ids(1, seed=i))
        for i in range(64)
    ]
    large = batch_of("audio", normal(64, 512, seed=200), normal(64, 6, seed=201), ids(64))
    pool = a_pool(None)
    found = measure(pool, parts, [*parts[:3], large, *parts[3:]])
    assert pool.streams["audio"].form == "direct"
    expected = measure(a_pool("direct"), parts, [*parts[:3], large, *parts[3:]])
    for a, b in zip(found, expected, strict=True):
        assert (a.noise, a.energy) == pytest.approx((b.noise, b.energy), rel=1e-12)


class Largest(TorchDispatchMode):
    """The numbers in the largest tensor that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, Tensor):
                self.numbers = max(self.numbers, value.numel())
        return result


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor that an object of ours holds, however deep."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part, seen)
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from tensors_in(part, seen)
    elif type(value).__module__.startswith("vcmm"):
        for owner in type(value).__mro__:
            for name in getattr(owner, "__slots__", ()):
                yield from tensors_in(getattr(value, name, None), seen)
        yield from tensors_in(getattr(value, "__dict__", {}), seen)


def bytes_kept(pool: Pool) -> int:
    """Of the memory behind every tensor that the pool holds, views or not, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors_in(pool)}
    return sum(storage.nbytes() for storage in storages.values())


def a_controller(loss: Loss = "cross_entropy") -> tuple[nn.Linear, torch.optim.Adam, VCMM]:
    """A head whose groups are of another, tiny, parameter: what is observed is free."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    group = {"params": [parameter], "name": "audio", "modality": "audio"}
    optimizer = torch.optim.Adam([group], foreach=False)
    return a_head(), optimizer, VCMM(optimizer, loss=loss)


@pytest.mark.parametrize("loss", ["cross_entropy", per_sample_cross_entropy])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_gram_form_allocates_no_tensor_of_the_heads_size(micro_batches: int, loss: Loss) -> None:
    classes, width, n = 5000, 300, 16
    _, optimizer, vcmm = a_controller(loss)
    largest = Largest()
    for step in range(3):
        parts = [
            (
                normal(n, width, seed=9 * step + part, dtype=torch.float32),
                normal(n, classes, seed=90 + 9 * step + part, dtype=torch.float32),
                ids(n, classes=classes),
            )
            for part in range(micro_batches)
        ]
        with largest:
            for h, z, y in parts:
                vcmm.observe(y, audio=(h, z))
            optimizer.step()
    assert vcmm._pool.streams["audio"].form == "gram"
    assert vcmm.metrics()["audio/R"] > 0
    assert largest.numbers >= n * classes  # it does see what is allocated
    assert largest.numbers < classes * width
    assert largest.numbers <= micro_batches * n * (classes + width)


def test_direct_form_is_seen_to_allocate_the_heads_size() -> None:
    """The same measurement where such a tensor is made, so that the test above can fail."""
    _, optimizer, vcmm = a_controller()
    largest = Largest()
    with largest:
        vcmm.observe(ids(64, classes=6), audio=(normal(64, 512), normal(64, 6)))
        optimizer.step()
    assert vcmm._pool.streams["audio"].form == "direct"
    assert largest.numbers >= 6 * 512


def test_gram_form_keeps_n_times_c_plus_d_numbers() -> None:
    classes, width, n = 5000, 300, 16
    _, optimizer, vcmm = a_controller()
    for step in range(3):
        h, z = normal(n, width, seed=step).float(), normal(n, classes, seed=step).float()
        vcmm.observe(ids(n, classes=classes), audio=(h, z))
        optimizer.step()
        kept = bytes_kept(vcmm._pool) / 4
        assert n * (classes + width) <= kept <= n * (classes + width) + 4 * n + 100


def test_gram_form_keeps_no_more_when_features_are_a_view() -> None:
    """Such as the first token of a sequence, or a slice of a concatenation: [n, T, D][:, 0]."""
    classes, width, n, length = 5000, 300, 16, 50
    _, optimizer, vcmm = a_controller()
    h, z = normal(n, length, width).float(), normal(n, classes).float()
    vcmm.observe(ids(n, classes=classes), audio=(h[:, 0], z))
    optimizer.step()
    assert vcmm._pool.streams["audio"].form == "gram"
    assert bytes_kept(vcmm._pool) / 4 <= n * (classes + width) + 4 * n + 100


@pytest.mark.parametrize(("classes", "form"), [(6, "direct"), (1000, "gram")])
def test_buffers_that_are_filled_anew_each_step_are_not_held(classes: int, form: Form) -> None:
    """The user's tensors are theirs again after observe: static inputs, in-place activations."""
    metrics: list[dict[str, float]] = []
    for reuse in (False, True):
        _, optimizer, vcmm = a_controller()
        h, z = torch.empty(64, 512), torch.empty(64, classes)
        for step in range(3):
            now = normal(64, 512, seed=step).float(), normal(64, classes, seed=step + 9).float()
            pair = (h.copy_(now[0]), z.copy_(now[1])) if reuse else now
            vcmm.observe(ids(64, seed=step), audio=pair)
            if reuse:
                h.zero_()  # between observe and step already
                z.zero_()
            optimizer.step()
        assert vcmm._pool.streams["audio"].form == form
        metrics.append(vcmm.metrics())
    assert metrics[0] == metrics[1]
    assert metrics[0]["audio/Q"] > 0


# Through the public interface


def test_noise_of_the_four_sample_example() -> None:
    _, optimizer, vcmm = a_controller()
    h = torch.tensor([[1.0], [-1.0], [2.0], [0.5]], dtype=torch.float64)
    z = torch.tensor(
        [[0.2, -0.1], [0.4, 0.3], [-0.5, 0.5], [0.0, 0.1]], dtype=torch.float64
    ).requires_grad_()
    vcmm.observe(torch.tensor([0, 1, 0, 1]), audio=(h, z))
    optimizer.step()
    assert vcmm.metrics()["audio/R"] == pytest.approx(0.2253641134, abs=1e-10)


EITHER_FORM = pytest.mark.parametrize(("classes", "form"), [(3, "direct"), (40, "gram")])


@EITHER_FORM
@pytest.mark.parametrize("loss", ["cross_entropy", per_sample_cross_entropy])
def test_running_noise_and_drift_are_the_references(loss: Loss, classes: int, form: Form) -> None:
    """Both forms, odd and even batches, over several steps."""
    _, optimizer, vcmm = a_controller(loss)
    slow = reference.Estimator(beta0=0.9)
    for step in range(6):
        n = 24 + step % 3
        h, z = normal(n, 40, seed=step), normal(n, classes, seed=step + 50)
        y = ids(n, seed=step, classes=classes)
        vcmm.observe(y, audio=(h, z))
        optimizer.step()
        slow.observe(h.numpy(), z.numpy(), y.numpy())
        found = vcmm.metrics()
        assert found["audio/R"] == pytest.approx(slow.noise, rel=1e-11)
        assert found["audio/Q"] == pytest.approx(slow.drift, rel=1e-11)
        assert slow.ratio is not None
        assert found["audio/rho"] == pytest.approx(slow.ratio, rel=1e-11)
        assert found["audio/gain"] == pytest.approx(reference.gain(slow.ratio), rel=1e-11)
    assert vcmm._pool.streams["audio"].form == form


@EITHER_FORM
@pytest.mark.parametrize("scale", [2.0**12, 1e-5, 65536.0])
def test_loss_scaling_leaves_rho_unchanged(scale: float, classes: int, form: Form) -> None:
    found: list[dict[str, float]] = []
    for factor in (1.0, scale):

        def loss(z: Tensor, y: Tensor, factor: float = factor) -> Tensor:
            return factor * per_sample_cross_entropy(z, y)

        _, optimizer, vcmm = a_controller(loss)
        for step in range(8):
            h, z = normal(24, 40, seed=step), normal(24, classes, seed=step + 50)
            vcmm.observe(ids(24, seed=step, classes=classes), audio=(h, z))
            optimizer.step()
        assert vcmm._pool.streams["audio"].form == form
        found.append(vcmm.metrics())
    plain, scaled = found
    assert scaled["audio/rho"] == pytest.approx(plain["audio/rho"], rel=1e-10)
    assert scaled["audio/R"] == pytest.approx(scale**2 * plain["audio/R"], rel=1e-10)
    assert scaled["audio/Q"] == pytest.approx(scale**2 * plain["audio/Q"], rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_raised_to_float32_before_anything_is_computed(
    dtype: torch.dtype,
) -> None:
    h, z = normal(8, D, seed=1).to(dtype), normal(8, C, seed=2).to(dtype)
    batch = batch_of("audio", h, z, ids(8))
    assert {tensor.dtype for tensor in batch} == {torch.float32}
    raised = batch_of("audio", h.float(), z.float(), ids(8))
    for a, b in zip(batch, raised, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
