"""What is observed for one step counts as one batch, and nothing else counts for it."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcmm import VCMM, Kalman, Policy, modal_groups, reference
from vcmm.probe import cheaper_form

MODALITIES = ("audio", "video")
# (classes, width) of each modality, and which form a batch of twelve samples or so asks for.
SHAPES = {
    "direct": {"audio": (3, 2), "video": (2, 5)},
    "gram": {"audio": (30, 20), "video": (30, 40)},
    "mixed": {"audio": (12, 1), "video": (12, 200)},
}
FORMS = {
    "direct": ("direct", "direct"),
    "gram": ("gram", "gram"),
    "mixed": ("direct", "gram"),
}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])

Sample = dict[str, tuple[Tensor, Tensor]]


class Loop:
    """A controlled optimizer over parameters of no consequence, and the batches that it sees."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleDict({m: nn.Linear(3, 2) for m in MODALITIES})
        self.optimizer = torch.optim.Adam(modal_groups(self.model, **self.model))
        self.vcmm = VCMM(self.optimizer, **options)
        self._inputs = torch.Generator().manual_seed(1)

    def backward(self) -> None:
        x = torch.randn(4, 3, generator=self._inputs)
        sum(self.model[m](x).square().mean() for m in MODALITIES).backward()

    def observe(self, batch: tuple[Sample, Tensor]) -> None:
        observed, y = batch
        self.vcmm.observe(y, **observed)

    def step(self) -> dict[str, float]:
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.vcmm.metrics()

    def whole(self, batch: tuple[Sample, Tensor]) -> dict[str, float]:
        """One plain training step."""
        self.backward()
        self.observe(batch)
        return self.step()

    def forms(self) -> tuple[str | None, ...]:
        return tuple(self.vcmm._pool.streams[m].form for m in MODALITIES)


def batch(
    n: int, step: int, shapes: dict[str, tuple[int, int]], dtype: torch.dtype = torch.float64
) -> tuple[Sample, Tensor]:
    """Features and logits of every modality; the heads drift from step to step."""
    generator = torch.Generator().manual_seed(100 + step)
    fixed = torch.Generator().manual_seed(7)
    classes = min(c for c, _ in shapes.values())
    y = torch.randint(classes, (n,), generator=generator)
    observed: Sample = {}
    for modality, (outputs, width) in shapes.items():
        h = torch.randn(n, width, generator=generator, dtype=torch.float64)
        weight, drift = torch.randn(2, outputs, width, generator=fixed, dtype=torch.float64)
        z = h @ (weight + 0.7 * step * drift).T / width**0.5
        observed[modality] = (h.to(dtype), z.to(dtype))
    return observed, y


def cut(whole: tuple[Sample, Tensor], sizes: Iterable[int]) -> list[tuple[Sample, Tensor]]:
    observed, y = whole
    pieces: list[tuple[Sample, Tensor]] = []
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        pieces.append(({m: (h[part], z[part]) for m, (h, z) in observed.items()}, y[part]))
        start += size
    assert start == len(y)
    return pieces


def same(got: dict[str, float], want: dict[str, float], dtype: torch.dtype = torch.float64) -> None:
    """Equal to rounding. A drift is a difference of numbers of the size of the noise."""
    relative, eps = TOLERANCE[dtype], torch.finfo(dtype).eps
    assert got.keys() == want.keys()
    for name, value in want.items():
        modality, _, quantity = name.partition("/")
        slack = {"Q": want.get(f"{modality}/R", 0) * eps, "rho": eps}.get(quantity, 0)
        assert got[name] == pytest.approx(value, rel=relative, abs=slack), name


# What is worked out ahead, in the hope that a step's first batch is its only one


def test_working_ahead_changes_no_bit_whatever_a_step_turns_out_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[list[int]] = [
        [12],
        [12],
        [12],
        [4, 4, 4],
        [12],
        [12],
        [],
        [12],
        [6, 6],
        [12],
        [12],
    ]

    def metrics() -> list[dict[str, float]]:
        loop = Loop()
        found: list[dict[str, float]] = []
        for step, sizes in enumerate(pieces):
            loop.backward()
            for piece in cut(batch(sum(sizes), step, SHAPES["direct"]), sizes):
                loop.observe(piece)
            if step == 9:
                loop.vcmm.discard()
            if step in (5, 7):  # a schedule acts between observation and step
                for group in loop.optimizer.param_groups:
                    group["betas"] = (0.8 + 0.02 * step, 0.999)
            found.append(loop.step())
        return found

    ahead = metrics()
    monkeypatch.setattr(Kalman, "anticipate", Policy.anticipate)
    assert ahead == metrics()


# One batch in pieces


@DTYPES
@pytest.mark.parametrize("sizes", [(3, 8, 1), (1, 1, 10), (5, 7), (4, 8), (11, 1)], ids=str)
@pytest.mark.parametrize("form", ["direct", "gram", "mixed"])
def test_fact_10_micro_batches_of_a_step_count_as_one_batch(
    form: str, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    pieces, whole = Loop(), Loop()
    for step in range(8):
        samples = batch(sum(sizes), step, SHAPES[form], dtype)
        for piece in cut(samples, sizes):
            pieces.backward()
            pieces.observe(piece)
        same(pieces.step(), whole.whole(samples), dtype)
    assert pieces.forms() == whole.forms() == FORMS[form]
    metrics = whole.vcmm.metrics()
    assert metrics["audio/beta"] != metrics["video/beta"]
    assert metrics["discarded"] == 0


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_fact_10_halves_run_on_after_an_odd_micro_batch(form: str) -> None:
    loop = Loop()
    samples = batch(12, 0, SHAPES[form])
    for piece in cut(samples, (5, 7)):
        loop.observe(piece)
    loop.backward()
    metrics = loop.step()
    (h, z), y = samples[0]["audio"], samples[1]
    order = torch.arange(12)
    # Where the second micro-batch begins anew with half A, its samples change sides.
    anew = torch.cat([order[:5], order[5:].roll(-1)])
    right, wrong = (
        reference.observe(h[i].numpy(), z[i].numpy(), y[i].numpy()).noise for i in (order, anew)
    )
    assert metrics["audio/R"] == pytest.approx(right, rel=1e-12)
    assert metrics["audio/R"] != pytest.approx(wrong, rel=1e-3)


@DTYPES
@pytest.mark.parametrize("sizes", [(3, 3, 3, 3, 3), (1, 13, 1), (14, 1)], ids=str)
def test_fact_10_the_form_of_the_first_step_is_that_of_all_its_micro_batches(
    sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    shapes = {"audio": (3, 4), "video": (3, 5)}
    for classes, width in shapes.values():
        assert cheaper_form(3, classes, width) == "gram"
        assert cheaper_form(14, classes, width) == cheaper_form(15, classes, width) == "direct"
    pieces, whole = Loop(), Loop()
    for step in range(4):
        samples = batch(15, step, shapes, dtype)
        for piece in cut(samples, sizes):
            pieces.backward()
            pieces.observe(piece)
        same(pieces.step(), whole.whole(samples), dtype)
    assert pieces.forms() == ("direct", "direct")


@pytest.mark.parametrize("form", ["direct", "gram", "mixed"])
def test_fact_10_modalities_may_be_observed_in_calls_of_their_own(form: str) -> None:
    apart, whole = Loop(), Loop()
    for step in range(5):
        observed, y = batch(12, step, SHAPES[form])
        apart.backward()
        for modality in reversed(MODALITIES):
            apart.vcmm.observe(y, **{modality: observed[modality]})
        assert apart.step() == whole.whole((observed, y))


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_fact_10_a_modality_may_be_absent_from_some_micro_batches(form: str) -> None:
    pieces, whole = Loop(), Loop()
    for step in range(5):
        observed, y = batch(12, step, SHAPES[form])
        first, second, third = cut((observed, y), (5, 4, 3))
        pieces.backward()
        pieces.observe(first)
        pieces.vcmm.observe(second[1], audio=second[0]["audio"])
        pieces.observe(third)
        whole.backward()
        keep = [i for i in range(12) if i not in range(5, 9)]
        h, z = observed["video"]
        whole.vcmm.observe(y, audio=observed["audio"])
        whole.vcmm.observe(y[keep], video=(h[keep], z[keep]))
        same(pieces.step(), whole.step())


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_fact_10_what_the_caller_does_to_the_tensors_later_changes_nothing(form: str) -> None:
    # A captured graph writes every batch into the same buffers.
    static, fresh = Loop(), Loop()
    buffers: Sample = {
        m: (h.clone(), z.clone()) for m, (h, z) in batch(12, 0, SHAPES[form])[0].items()
    }
    for step in range(5):
        observed, y = batch(12, step, SHAPES[form])
        for modality, pair in observed.items():
            for buffer, values in zip(buffers[modality], pair, strict=True):
                buffer.copy_(values)
        labels = y.clone()
        static.backward()
        static.observe((buffers, labels))
        for h, z in buffers.values():
            h.fill_(math.nan)
            z.fill_(math.nan)
        labels.zero_()
        assert static.step() == fresh.whole((observed, y))


# Steps without an observation, before the backward pass, never taken


def test_fact_10_observing_before_the_backward_pass_is_the_same() -> None:
    before, after = Loop(), Loop()
    for step in range(5):
        samples = batch(12, step, SHAPES["direct"])
        before.observe(samples)
        before.backward()
        assert before.step() == after.whole(samples)
    assert after.vcmm.metrics()["discarded"] == 0


def test_fact_10_observing_micro_batches_before_each_backward_pass_is_the_same() -> None:
    before, after = Loop(), Loop()
    for step in range(5):
        for piece in cut(batch(12, step, SHAPES["direct"]), (5, 7)):
            before.observe(piece)
            before.backward()
            after.backward()
            after.observe(piece)
        assert before.step() == after.step()
    assert after.vcmm.metrics()["discarded"] == 0


@pytest.mark.parametrize("set_to_none", [True, False])
def test_fact_10_zero_grad_may_come_after_the_observation(set_to_none: bool) -> None:
    # forward, observe, zero_grad, backward, observe, step: what zero_grad dropped was stepped.
    late, usual = Loop(), Loop()
    for step in range(5):
        first, second = cut(batch(12, step, SHAPES["direct"]), (5, 7))
        late.observe(first)
        late.optimizer.zero_grad(set_to_none=set_to_none)
        late.backward()
        late.observe(second)
        late.optimizer.step()
        usual.backward()
        usual.observe(first)
        usual.observe(second)
        assert late.vcmm.metrics() == usual.step()


def test_fact_10_a_step_without_observation_keeps_the_last_estimate() -> None:
    loop = Loop()
    for step in range(4):
        loop.whole(batch(12, step, SHAPES["direct"]))
    before = loop.vcmm.metrics()
    assert before["audio/beta"] != before["video/beta"]
    weights = [p.detach().clone() for p in loop.model.parameters()]
    loop.backward()
    assert loop.step() == before
    moved = zip(loop.model.parameters(), weights, strict=True)
    assert all(not torch.equal(now, then) for now, then in moved)
    # The next observation is compared with the last one that there was.
    after = loop.whole(batch(12, 4, SHAPES["direct"]))
    plain = Loop()
    for step in range(5):
        metrics = plain.whole(batch(12, step, SHAPES["direct"]))
    assert after == metrics


@pytest.mark.parametrize("form", ["direct", "gram", "mixed"])
def test_fact_10_discard_empties_the_pool(form: str) -> None:
    loop, plain = Loop(), Loop()
    for step in range(6):
        if step in (0, 3):
            loop.backward()
            for piece in cut(batch(12, 50 + step, SHAPES[form]), (7, 5)):
                loop.observe(piece)
            loop.vcmm.discard()
            loop.optimizer.zero_grad()
        samples = batch(12, step, SHAPES[form])
        got, want = loop.whole(samples), plain.whole(samples)
        loop._inputs.set_state(plain._inputs.get_state())
        assert {**got, "discarded": 0.0} == want
    assert got["discarded"] == 2


def test_fact_10_discarding_nothing_does_not_count() -> None:
    loop = Loop()
    loop.vcmm.discard()
    loop.whole(batch(12, 0, SHAPES["direct"]))
    loop.vcmm.discard()
    assert loop.vcmm.metrics()["discarded"] == 0


@pytest.mark.parametrize("skips", [1, 2, 3])
@pytest.mark.parametrize("pieces", [(12,), (5, 7)], ids=["batch", "micro"])
@pytest.mark.parametrize("form", ["direct", "gram"])
def test_fact_10_what_was_observed_for_skipped_steps_is_dropped(
    form: str, pieces: tuple[int, ...], skips: int
) -> None:
    # However many in a row: a loss scale that starts too high overflows time and again.
    loop, plain = Loop(), Loop()
    for step in range(6):
        if step in (0, 3):
            for skip in range(skips):
                for piece in cut(batch(12, 50 + step + skip, SHAPES[form]), pieces):
                    loop.backward()
                    loop.observe(piece)
                loop.optimizer.zero_grad()
        for piece in cut(batch(12, step, SHAPES[form]), pieces):
            for one in (loop, plain):
                one.backward()
                one.observe(piece)
        got, want = loop.step(), plain.step()
        assert got["discarded"] == skips * (1 + (step >= 3))
        assert {n: v for n, v in got.items() if n[-1] in "RQ"} == {
            n: v for n, v in want.items() if n[-1] in "RQ"
        }
    assert got["audio/beta"] == want["audio/beta"]


def test_fact_10_skipped_steps_are_noticed_if_micro_batches_are_observed_before_backward() -> None:
    loop, plain = Loop(), Loop()
    for step in range(4):
        for repeat in range(3 if step == 2 else 1):
            for piece in cut(
                batch(12, step + 50 * (step == 2 and repeat < 2), SHAPES["direct"]), (5, 7)
            ):
                loop.observe(piece)
                loop.backward()
            if step == 2 and repeat < 2:
                loop.optimizer.zero_grad()
        want = plain.whole(batch(12, step, SHAPES["direct"]))
        got = loop.step()
        same({**got, "discarded": 0.0}, want)
    assert got["discarded"] == 2


def test_fact_10_steps_that_a_grad_scaler_skips_are_dropped() -> None:
    loop, plain = Loop(), Loop()
    # Gradients of about 16 overflow float32 under this scale, and fit after a few halvings.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    taken = 0
    for step in range(12):
        samples = batch(12, step, SHAPES["direct"])
        x = torch.ones(4, 3)
        loss = 16 * sum(loop.model[m](x).square().mean() for m in MODALITIES)
        scaler.scale(loss).backward()
        loop.observe(samples)
        before = scaler.get_scale()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
        if scaler.get_scale() >= before:
            taken += 1
            want = plain.whole(samples)
            assert {**loop.vcmm.metrics(), "discarded": 0.0} == want
    assert 2 <= taken <= 9  # so at least three in a row were skipped
    assert loop.vcmm.metrics()["discarded"] == 12 - taken


# What is kept


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "skipped"])
def test_no_gradient_outlives_zero_grad(taken: bool) -> None:
    # The first parameter may be a table of word embeddings, and its gradient as large.
    loop = Loop()
    loop.backward()
    loop.observe(batch(12, 0, SHAPES["direct"]))
    gradients = [weakref.ref(p.grad) for p in loop.model.parameters()]
    if taken:
        loop.optimizer.step()
    loop.optimizer.zero_grad()
    gc.collect()
    assert [reference() for reference in gradients] == [None] * len(gradients)


def test_the_gram_form_keeps_rows_and_not_what_they_were_cut_from() -> None:
    loop = Loop()
    classes, width = SHAPES["gram"]["audio"]
    hidden = torch.randn(12, 50, width)  # all the tokens of an encoder, whose first is the feature
    z, y = torch.randn(12, classes), torch.randint(classes, (12,))
    loop.vcmm.observe(y, audio=(hidden[:, 0], z), video=(torch.randn(12, 40), z))
    loop.backward()
    loop.step()
    memory = loop.vcmm._pool.streams["audio"].memory
    assert memory is not None
    bytes_kept = sum(part.untyped_storage().nbytes() for part in memory.gradient)
    assert bytes_kept == 4 * 12 * (classes + width + 2)
