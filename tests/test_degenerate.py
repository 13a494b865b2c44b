"""Fact 11: what cannot be measured moves nothing, is counted, and leaves no trace afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcmm import VCMM, reference
from vcmm.probe import Form

D, C, N = 6, 4, 8
FORMS: tuple[Form, ...] = ("direct", "gram")
Pair = tuple[Tensor, Tensor]
Observed = tuple[Tensor, dict[str, Pair]]  # target, modalities


class Run:
    """Two modalities on a real AdamW, with what is observed given freely, step by step."""

    def __init__(self, form: Form = "direct", **settings: Any) -> None:
        self.classes = C
        self.model = nn.ModuleDict(
            {name: nn.Linear(4, 2, dtype=torch.float64) for name in ("audio", "video")}
        )
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        groups = [
            {"params": list(module.parameters()), "name": name, "modality": name}
            for name, module in self.model.items()
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
        self.vcmm = VCMM(self.optimizer, **settings)
        for stream in self.vcmm._pool.streams.values():
            stream.form = form

    def good(self, step: int, n: int = N) -> Observed:
        """Audio is noisy, video drifts, so that their momenta differ."""
        generator = torch.Generator().manual_seed(step)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        target = torch.randint(self.classes, (n,), generator=generator)
        drifting = normal(1, D) * 3 + 0.1 * normal(n, D)
        return target, {
            "audio": (normal(n, D), normal(n, self.classes)),
            "video": (drifting, 0.1 * normal(n, self.classes)),
        }

    def step(self, observed: Observed | None) -> None:
        """One optimizer step with gradients that depend on the step's number alone."""
        if observed is not None:
            target, pairs = observed
            self.vcmm.observe(target, **pairs)
        taken = self.optimizer.state.get(next(self.model.parameters()), {}).get("step", 0)
        generator = torch.Generator().manual_seed(1000 + int(taken))
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(
                parameter.shape, generator=generator, dtype=parameter.dtype
            )
        self.optimizer.step()

    def parameters(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def estimates(self) -> dict[str, float]:
        """Every number of the metrics but the counters."""
        found = self.vcmm.metrics()
        return {k: v for k, v in found.items() if "unmeasured" not in k and k != "discarded"}


def assert_finite(run: Run) -> None:
    assert all(math.isfinite(value) for value in run.vcmm.metrics().values()), run.vcmm.metrics()
    assert bool(run.parameters().isfinite().all())


def replaced(pair: Pair, where: str, value: float) -> Pair:
    features, logits = (tensor.clone() for tensor in pair)
    (features if where == "features" else logits)[1, 0] = value
    return features, logits


def rows(observed: Observed, part: slice) -> Observed:
    target, pairs = observed
    return target[part], {name: (h[part], z[part]) for name, (h, z) in pairs.items()}


Spoil = Callable[[Observed], Observed]


def poison(where: str, value: float) -> Spoil:
    def spoil(observed: Observed) -> Observed:
        target, pairs = observed
        return target, {name: replaced(pair, where, value) for name, pair in pairs.items()}

    return spoil


def only_even_targets(observed: Observed) -> Observed:
    target, pairs = observed
    target = target.clone()
    target[1::2] = -100
    return target, pairs


def no_targets(observed: Observed) -> Observed:
    target, pairs = observed
    return torch.full_like(target, -100), pairs


UNMEASURABLE: dict[str, Spoil] = {
    "n = 1": lambda observed: rows(observed, slice(0, 1)),
    "n = 0": lambda observed: rows(observed, slice(0, 0)),
    "nan features": poison("features", math.nan),
    "inf features": poison("features", math.inf),
    "-inf features": poison("features", -math.inf),
    "nan logits": poison("logits", math.nan),
    "inf logits": poison("logits", math.inf),
    "features too large to square": poison("features", 1e200),
    "a half without a valid target": only_even_targets,
    "all targets ignored": no_targets,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", UNMEASURABLE)
def test_fact_11_the_previous_beta_stands_and_the_step_is_counted(case: str, form: Form) -> None:
    run = Run(form)
    for step in range(5):
        run.step(run.good(step))
    betas, estimates = run.vcmm.betas, run.estimates()
    assert betas["audio"] > 0.91  # what stands is not the base
    assert betas["video"] < 0.89
    for count in (1, 2):
        run.step(UNMEASURABLE[case](run.good(5)))
        assert run.vcmm.betas == betas
        assert run.estimates() == estimates
        metrics = run.vcmm.metrics()
        assert metrics["audio/unmeasured"] == metrics["video/unmeasured"] == count
        assert metrics["discarded"] == 0
    run.step(run.good(6))
    assert run.vcmm.betas != betas
    assert run.vcmm.metrics()["audio/unmeasured"] == 2
    assert_finite(run)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", UNMEASURABLE)
def test_fact_11_afterwards_all_is_as_if_the_observation_had_been_absent(
    case: str, form: Form
) -> None:
    """So g_{t-1} is the last gradient that was measured; bitwise, parameters included.

    Only the counter knows: a step that nobody observed is not counted, it was not tried.
    """
    spoilt, absent = Run(form), Run(form)
    for step in range(10):
        observed = spoilt.good(step)
        bad = step in (4, 7, 8)
        spoilt.step(UNMEASURABLE[case](observed) if bad else observed)
        absent.step(None if bad else observed)
        assert spoilt.estimates() == absent.estimates()
        assert torch.equal(spoilt.parameters(), absent.parameters())
    assert spoilt.vcmm.metrics()["video/unmeasured"] == 3
    assert absent.vcmm.metrics()["video/unmeasured"] == 0
    assert_finite(spoilt)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", UNMEASURABLE)
def test_fact_11_a_first_probe_that_cannot_be_measured_is_no_beginning(
    case: str, form: Form
) -> None:
    spoilt, absent = Run(form), Run(form)
    for step in range(5):
        observed = spoilt.good(step)
        spoilt.step(UNMEASURABLE[case](observed) if step < 2 else observed)
        absent.step(None if step < 2 else observed)
        if step < 2:
            assert spoilt.vcmm.betas == {"audio": 0.9, "video": 0.9}
        assert_finite(spoilt)
        assert spoilt.estimates() == absent.estimates()
        assert torch.equal(spoilt.parameters(), absent.parameters())
    assert spoilt.vcmm.betas["audio"] != 0.9
    assert spoilt.vcmm.metrics()["audio/unmeasured"] == 2


@pytest.mark.parametrize("bad_modality", ["audio", "video"])
@pytest.mark.parametrize("case", ["nan features", "inf logits", "absent", "n = 1", "n = 0"])
def test_fact_11_one_modality_fails_alone(case: str, bad_modality: str) -> None:
    """Its estimate stands bitwise, and only its counter moves; the other's goes on.

    Its beta may move: it depends on how the other modality compares with it.
    """
    run, other = Run(), Run()
    slow = {name: reference.Estimator(beta0=0.9) for name in ("audio", "video")}
    (fine,) = {"audio", "video"} - {bad_modality}
    for step in range(9):
        target, pairs = run.good(step)
        bad = step in (3, 4, 7)
        estimates = run.estimates()
        without = {name: pair for name, pair in pairs.items() if not bad or name != bad_modality}
        if bad and case in ("n = 1", "n = 0"):
            kept = int(case[-1])
            run.vcmm.observe(
                target[:kept], **{bad_modality: tuple(x[:kept] for x in pairs[bad_modality])}
            )
            run.step((target, without))
        elif bad and case != "absent":
            spoilt = UNMEASURABLE[case]((target, {bad_modality: pairs[bad_modality]}))[1]
            run.step((target, {**pairs, **spoilt}))
        else:
            run.step((target, without))
        other.step((target, without))
        assert run.vcmm.metrics() == other.vcmm.metrics()

        if bad:
            for quantity in ("R", "Q", "rho", "gain"):
                key = f"{bad_modality}/{quantity}"
                assert run.estimates()[key] == estimates[key]
            assert run.estimates()[f"{fine}/R"] != estimates[f"{fine}/R"]
        for name, (h, z) in without.items():
            slow[name].observe(h.numpy(), z.numpy(), target.numpy())
        expected = reference.centred_betas({m: e.ratio for m, e in slow.items()}, 0.9)
        assert run.vcmm.betas == pytest.approx(expected, rel=1e-10)
    metrics = run.vcmm.metrics()
    assert metrics[f"{bad_modality}/unmeasured"] == 3
    assert metrics[f"{fine}/unmeasured"] == 0
    assert torch.equal(run.parameters(), other.parameters())
    assert_finite(run)


def test_fact_11_an_observation_without_any_modality_changes_nothing() -> None:
    """Samples may all lack what is measured: observe(target, **{}) is what the user's loop says."""
    run, other = Run(), Run()
    for step in range(5):
        observed = run.good(step)
        run.step((observed[0], {}) if step == 3 else observed)
        other.step(None if step == 3 else observed)
        assert run.estimates() == other.estimates()
    assert torch.equal(run.parameters(), other.parameters())


def test_fact_11_a_modality_that_never_comes_keeps_the_base_and_stays_out_of_the_mean() -> None:
    run = Run()
    for step in range(4):
        target, pairs = run.good(step)
        run.step((target, {"audio": pairs["audio"]}))
    assert run.vcmm.betas == {"audio": 0.9, "video": 0.9}
    metrics = run.vcmm.metrics()
    assert metrics["video/unmeasured"] == 4
    assert metrics["audio/unmeasured"] == 0
    assert metrics["audio/R"] > 0
    assert "video/R" not in metrics
    assert_finite(run)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [(3, 5, 7, 3, 9, 5), (2, 3, 2, 3, 2, 3), (8, 3, 8, 5, 8, 2)])
def test_fact_11_odd_batches_are_measured_exactly(sizes: Sequence[int], form: Form) -> None:
    run = Run(form)
    slow = {name: reference.Estimator(beta0=0.9) for name in ("audio", "video")}
    for step, n in enumerate(sizes):
        target, pairs = run.good(step, n)
        run.step((target, pairs))
        for name, (h, z) in pairs.items():
            slow[name].observe(h.numpy(), z.numpy(), target.numpy())
            assert run.vcmm.metrics()[f"{name}/R"] == pytest.approx(slow[name].noise, rel=1e-10)
            assert run.vcmm.metrics()[f"{name}/Q"] == pytest.approx(slow[name].drift, rel=1e-10)
    assert run.vcmm.metrics()["audio/unmeasured"] == 0


@pytest.mark.parametrize("form", FORMS)
def test_fact_11_an_empty_or_single_micro_batch_is_no_harm_to_its_step(form: Form) -> None:
    """n counts over the step: 0 + 1 + 7 samples are eight."""
    run, whole = Run(form), Run(form)
    for step in range(4):
        observed = run.good(step)
        for part in (slice(0, 0), slice(0, 1), slice(1, 1)):
            target, pairs = rows(observed, part)
            run.vcmm.observe(target, **pairs)
        run.step(rows(observed, slice(1, None)))
        whole.step(observed)
        assert run.estimates() == pytest.approx(whole.estimates(), rel=1e-11)
    assert run.vcmm.metrics()["audio/unmeasured"] == 0


@pytest.mark.parametrize("form", FORMS)
def test_fact_11_one_bad_micro_batch_makes_the_step_unmeasurable_and_no_other(form: Form) -> None:
    spoilt, absent = Run(form), Run(form)
    for step in range(6):
        observed = spoilt.good(step)
        if step == 3:
            target, pairs = UNMEASURABLE["nan features"](rows(observed, slice(0, 4)))
            spoilt.vcmm.observe(target, **pairs)
            spoilt.step(rows(observed, slice(4, None)))
            absent.step(None)
        else:
            spoilt.step(observed)
            absent.step(observed)
    assert spoilt.estimates() == absent.estimates()
    assert spoilt.vcmm.metrics()["audio/unmeasured"] == 1
    assert torch.equal(spoilt.parameters(), absent.parameters())


@pytest.mark.parametrize("half", [0, 1])
def test_fact_11_a_half_without_a_valid_token_cannot_be_measured(half: int) -> None:
    def tokens(run: Run, step: int) -> tuple[Tensor, Tensor, dict[str, Pair]]:
        target, pairs = run.good(step, n=4 * N)
        spread = {
            name: (h.view(4, N, D), z.view(4, N, run.classes)) for name, (h, z) in pairs.items()
        }
        return target.view(4, N), torch.ones(4, N, dtype=torch.bool), spread

    run = Run()
    for step in range(3):
        target, mask, pairs = tokens(run, step)
        mask[:, 5:] = False
        run.vcmm.observe(target, mask=mask, **pairs)
        run.step(None)
    assert run.vcmm.metrics()["audio/unmeasured"] == 0
    estimates = run.estimates()
    target, mask, pairs = tokens(run, 3)
    mask[half::2] = False
    run.vcmm.observe(target, mask=mask, **pairs)
    run.step(None)
    assert run.estimates() == estimates
    assert run.vcmm.metrics()["audio/unmeasured"] == 1
    # One valid token is enough.
    mask[half, 0] = True
    run.vcmm.observe(target, mask=mask, **pairs)
    run.step(None)
    assert run.estimates() != estimates
    assert run.vcmm.metrics()["audio/unmeasured"] == 1
    assert_finite(run)


# Zero gradients


def perfect(run: Run, step: int) -> Observed:
    """Logits that fit their target exactly leave no residual: R~ = 0 and the energy is 0."""
    target, pairs = run.good(step)
    logits = 1e4 * F.one_hot(target, run.classes).double()
    return target, {name: (h, logits) for name, (h, _) in pairs.items()}


@pytest.mark.parametrize("form", FORMS)
def test_fact_11_zero_gradients_at_first_have_no_ratio_and_keep_the_base(form: Form) -> None:
    """R = Q = 0 says nothing of a modality, but it was measured: what follows is a change."""
    run = Run(form)
    plain = torch.optim.AdamW(Run().model.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(3):
        run.step(perfect(run, step))
        assert run.vcmm.betas == {"audio": 0.9, "video": 0.9}
        assert run.vcmm.metrics()["audio/unmeasured"] == 0
        assert run.vcmm.metrics()["audio/R"] == run.vcmm.metrics()["audio/Q"] == 0
    assert all(group["lr"] == plain.defaults["lr"] for group in run.optimizer.param_groups)
    slow = {name: reference.Estimator(beta0=0.9) for name in ("audio", "video")}
    for step in range(8):
        target, pairs = perfect(run, step) if step < 3 else run.good(step)
        for name, (h, z) in pairs.items():
            slow[name].observe(h.numpy(), z.numpy(), target.numpy())
        if step >= 3:
            run.step((target, pairs))
            expected = reference.centred_betas({m: e.ratio for m, e in slow.items()}, 0.9)
            assert run.vcmm.betas == pytest.approx(expected, rel=1e-10)
            assert_finite(run)


def test_fact_11_metrics_hold_no_nan_where_there_is_no_ratio() -> None:
    """A logger that averages would carry a nan on for ever."""
    run = Run()
    run.step(perfect(run, 0))
    assert_finite(run)


@pytest.mark.parametrize("zero", ["audio", "video"])
def test_fact_11_one_modality_with_zero_gradients_stays_out_of_the_mean(zero: str) -> None:
    run = Run()
    for step in range(4):
        target, pairs = run.good(step)
        run.step((target, {**pairs, zero: perfect(run, step)[1][zero]}))
        assert run.vcmm.betas == {"audio": 0.9, "video": 0.9}
    for step in range(4, 7):
        run.step(run.good(step))
    assert run.vcmm.betas["audio"] != 0.9
    assert_finite(run)


@pytest.mark.parametrize("form", FORMS)
def test_fact_11_zero_gradients_later_are_measured_like_any(form: Form) -> None:
    run = Run(form)
    slow = {name: reference.Estimator(beta0=0.9) for name in ("audio", "video")}
    for step in range(10):
        target, pairs = perfect(run, step) if 3 <= step < 7 else run.good(step)
        run.step((target, pairs))
        for name, (h, z) in pairs.items():
            slow[name].observe(h.numpy(), z.numpy(), target.numpy())
            assert run.vcmm.metrics()[f"{name}/R"] == pytest.approx(slow[name].noise, rel=1e-10)
            assert run.vcmm.metrics()[f"{name}/Q"] == pytest.approx(slow[name].drift, rel=1e-10)
        expected = reference.centred_betas({m: e.ratio for m, e in slow.items()}, 0.9)
        assert run.vcmm.betas == pytest.approx(expected, rel=1e-10)
        assert_finite(run)


@pytest.mark.parametrize("form", FORMS)
def test_fact_11_halves_that_agree_leave_the_momentum_finite(form: Form) -> None:
    """R~ = 0 but Q > 0: rho is as large as it may be, and beta is at its bound."""
    run = Run(form)
    for step in range(4):
        target, pairs = run.good(step)
        target[1::2] = target[0::2]
        h, z = pairs["audio"]
        h[1::2], z[1::2] = h[0::2], z[0::2]
        run.step((target, {**pairs, "audio": (h, z)}))
    assert_finite(run)
    assert run.vcmm.metrics()["audio/R"] <= 1e-15 * run.vcmm.metrics()["audio/Q"]
    assert run.vcmm.betas == pytest.approx({"audio": 0.7, "video": 0.99})


# A head that changes its size


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("grown", [(0, 2), (0, 60), (5, 0)])
def test_fact_11_a_head_of_another_size_cannot_be_compared_with_the_last(
    form: Form, grown: tuple[int, int]
) -> None:
    """Classes may be added in the middle (or features): noise goes on, drift waits for one step."""
    more_classes, more_features = grown
    run = Run(form)
    slow = {name: reference.Estimator(beta0=0.9) for name in ("audio", "video")}
    for step in range(8):
        n, late = N, step >= 4
        run.classes = C + (more_classes if late else 0)
        target, pairs = run.good(step, n)
        if late:
            pairs = {
                name: (torch.cat([h, h[:, :more_features]], dim=1), z)
                for name, (h, z) in pairs.items()
            }
        drifts = {name: run.estimates().get(f"{name}/Q") for name in pairs}
        run.step((target, pairs))
        for name, (h, z) in pairs.items():
            found = run.vcmm.metrics()
            estimator = slow[name]
            if step == 4:
                assert estimator.noise is not None
                seen = reference.observe(h.numpy(), z.numpy(), target.numpy())
                estimator.noise = 0.95 * estimator.noise + 0.05 * seen.noise
                estimator.last = seen
                assert found[f"{name}/Q"] == drifts[name]
            else:
                estimator.observe(h.numpy(), z.numpy(), target.numpy())
            assert found[f"{name}/R"] == pytest.approx(estimator.noise, rel=1e-10)
            assert found[f"{name}/Q"] == pytest.approx(estimator.drift, rel=1e-10)
            assert found[f"{name}/unmeasured"] == 0
        assert_finite(run)


@pytest.mark.parametrize("form", FORMS)
def test_fact_11_a_change_of_precision_in_the_middle_is_measured(form: Form) -> None:
    """A model that is moved to another dtype between steps."""
    run = Run(form)
    for step in range(6):
        target, pairs = run.good(step)
        if step in (2, 3, 5):
            pairs = {name: (h.float(), z.float()) for name, (h, z) in pairs.items()}
        run.step((target, pairs))
        assert_finite(run)
    assert run.vcmm.metrics()["audio/unmeasured"] == 0


def test_fact_11_float32_that_overflows_is_not_measured() -> None:
    """Finite features whose squares are not."""
    run = Run()
    for step in range(3):
        run.step(run.good(step))
    estimates = run.estimates()
    target, pairs = run.good(3)
    run.step((target, {name: (1e30 * h.float(), z.float()) for name, (h, z) in pairs.items()}))
    assert run.estimates() == estimates
    assert run.vcmm.metrics()["audio/unmeasured"] == 1


def test_fact_11_warm_up_counts_steps_whether_measured_or_not() -> None:
    run = Run(warmup=4)
    for step in range(8):
        observed = run.good(step)
        run.step(UNMEASURABLE["nan logits"](observed) if step == 1 else observed)
        assert (run.vcmm.betas == {"audio": 0.9, "video": 0.9}) == (step < 4)
    assert_finite(run)
