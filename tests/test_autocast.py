"""Fact 15: autocast must not reach the probe, neither in `observe` nor in the step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcmm import VCMM, ProbeHeads, modal_groups

N, STEPS = 16, 4
# (classes, width): the first is cheaper as gradients, the second as rows.
SHAPES = {"direct": (3, 5), "gram": (40, 60)}
FORMS = pytest.mark.parametrize("form", SHAPES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, reduction="none", label_smoothing=0.1)


def multi_label(logits: Tensor, target: Tensor) -> Tensor:
    labels = F.one_hot(target, logits.shape[-1]).to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def with_product(logits: Tensor, target: Tensor) -> Tensor:
    """A loss with a matrix product in it, which is what autocast lowers."""
    mixing = torch.linspace(-1, 1, logits.shape[-1] ** 2).view(logits.shape[-1], -1)
    return cross_entropy(logits @ mixing.to(logits.dtype), target)


LOSSES: dict[str, Any] = {
    "analytic": "cross_entropy",
    "smoothed": cross_entropy,
    "multi-label": multi_label,
    "with-product": with_product,
}


def inputs(step: int, form: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    classes, width = SHAPES[form]
    h_a, h_v = torch.randn(2, N, width, generator=generator)
    # Not a number in it that half precision holds exactly.
    z = torch.randn(N, classes, generator=generator)
    return h_a, h_v, z, torch.randint(classes, (N,), generator=generator)


def measured(
    form: str, autocast: bool, see: Callable[[VCMM, int], None], **options: Any
) -> list[dict[str, float]]:
    """Metrics of every step, taken under autocast or not."""
    model = nn.ModuleDict({"audio": nn.Linear(2, 2), "video": nn.Linear(2, 2)})
    optimizer = torch.optim.Adam(modal_groups(model, **model))
    vcmm = VCMM(optimizer, **options)
    history: list[dict[str, float]] = []
    for step in range(STEPS):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            see(vcmm, step)
            optimizer.step()
        history.append(vcmm.metrics())
    assert vcmm._pool.streams["audio"].form == form
    return history


def test_autocast_does_lower_such_products() -> None:
    # Otherwise nothing here could fail.
    h_a, h_v, _, _ = inputs(0, "direct")
    with torch.autocast("cpu", torch.bfloat16):
        product = h_a.T @ h_v
    assert product.dtype == torch.bfloat16


@FORMS
@DTYPES
@pytest.mark.parametrize("loss", LOSSES)
def test_fact_15_observe_and_step_under_autocast_measure_bitwise_the_same(
    loss: str, dtype: torch.dtype, form: str
) -> None:
    def see(vcmm: VCMM, step: int) -> None:
        h_a, h_v, z, y = inputs(step, form)
        vcmm.observe(y, audio=(h_a.to(dtype), z.to(dtype)), video=(3 * h_v.to(dtype), z.to(dtype)))

    outside = measured(form, False, see, loss=LOSSES[loss])
    inside = measured(form, True, see, loss=LOSSES[loss])
    assert inside == outside
    assert inside[-1]["audio/beta"] != inside[-1]["video/beta"]


@FORMS
def test_fact_15_micro_batches_of_both_kinds_add_up(form: str) -> None:
    def see(vcmm: VCMM, step: int, *, mixed: bool) -> None:
        h_a, h_v, z, y = inputs(step, form)
        for number, part in enumerate((slice(0, 7), slice(7, N))):
            on = mixed and number == 0
            with torch.autocast("cpu", torch.bfloat16, enabled=on):
                vcmm.observe(y[part], audio=(h_a[part], z[part]), video=(h_v[part], z[part]))

    # Micro-batches of seven samples are few enough for rows; all that matters is that both agree.
    plain = measured(form, False, partial(see, mixed=False))
    mixed = measured(form, False, partial(see, mixed=True))
    assert mixed == plain


@FORMS
@DTYPES
def test_fact_15_captured_slices_under_autocast_measure_bitwise_the_same(
    dtype: torch.dtype, form: str
) -> None:
    classes, width = SHAPES[form]
    torch.manual_seed(0)
    head = nn.Linear(2 * width, classes)
    slices = {"audio": slice(0, width), "video": slice(width, 2 * width)}

    def see(vcmm: VCMM, step: int) -> None:
        h_a, h_v, _, y = inputs(step, form)
        features = torch.cat([h_a, 3 * h_v], dim=1)
        if dtype == torch.bfloat16:  # as an encoder under autocast gives them
            features = features.to(dtype)
            with torch.autocast("cpu", torch.bfloat16):
                head(features)
        else:
            head(features)
        vcmm.observe(y)

    outside = measured(form, False, see, heads=head, slices=slices)
    inside = measured(form, True, see, heads=head, slices=slices)
    assert inside == outside
    assert inside[-1]["audio/beta"] != inside[-1]["video/beta"]


@FORMS
def test_fact_15_captured_heads_may_compute_under_autocast_and_be_observed_outside(
    form: str,
) -> None:
    classes, width = SHAPES[form]
    torch.manual_seed(0)
    heads = nn.ModuleDict({m: nn.Linear(width, classes) for m in ("audio", "video")})

    def see(vcmm: VCMM, step: int, *, observe_inside: bool) -> None:
        h_a, h_v, _, y = inputs(step, form)
        with torch.autocast("cpu", torch.bfloat16):
            assert heads["audio"](h_a).dtype == torch.bfloat16
            heads["video"](h_v)
            if observe_inside:
                vcmm.observe(y)
        if not observe_inside:
            vcmm.observe(y)

    inside = measured(form, False, partial(see, observe_inside=True), heads=heads)
    outside = measured(form, False, partial(see, observe_inside=False), heads=heads)
    assert inside == outside


def test_fact_15_probe_heads_learn_under_autocast_bitwise_the_same() -> None:
    classes, width = SHAPES["direct"]
    learnt: list[list[Tensor]] = []
    for autocast in (False, True):
        heads = ProbeHeads({"audio": width, "video": width}, classes, lr=0.1)
        for step in range(STEPS):
            h_a, h_v, _, y = inputs(step, "direct")
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                observed = heads(y, audio=h_a, video=h_v)
            assert observed["audio"][1].dtype == torch.float32
        learnt.append(list(heads.parameters()))
    for inside, outside in zip(*learnt, strict=True):
        assert torch.equal(inside, outside)
        assert outside.abs().max() > 0.01
