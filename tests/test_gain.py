"""Ratio -> gain -> centred gain -> beta: the method's numbers, precision, and invariants."""

import math
from collections.abc import Sequence

import mpmath
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vcmm.gain import centred_logit, drift_ratio, kalman_gain, logit_gain, momentum

RANGE = (0.01, 0.30)
SMALLEST, TINY = 5e-324, 1e-310  # denormals

quick = settings(max_examples=150, deadline=None, derandomize=True)
ratios = st.one_of(
    st.floats(0, 1e30), st.floats(-300, 300).map(lambda e: 10.0**e), st.sampled_from([0.0, 1e300])
)
plain_ratios = st.floats(-6, 3).map(lambda e: 10.0**e)
bases = st.floats(0.7, 0.99)
strengths = st.floats(0, 4)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def unclipped(
    rho: Sequence[float],
    base: float = 0.9,
    strength: float = 1.0,
    known: Sequence[bool] | None = None,
) -> Tensor:
    """l~ by the way that the policy goes: R = 1 and Q = rho."""
    logits = logit_gain(drift_ratio(vector(*rho), torch.ones(len(rho), dtype=torch.float64)))
    marked = torch.tensor(known or [True] * len(rho))
    return torch.stack(centred_logit(logits, marked, vector(*[1 - base] * len(rho)), strength))


def betas(
    rho: Sequence[float],
    base: float = 0.9,
    strength: float = 1.0,
    known: Sequence[bool] | None = None,
) -> list[float]:
    return momentum(unclipped(rho, base, strength, known), RANGE).tolist()


# The numbers of the method


@pytest.mark.parametrize(
    ("rho", "gain"),
    [
        (1e-4, 0.009950124999),
        (1e-2, 0.095124921973),
        (1 / 90, 0.1),
        (0.1, 0.270156211872),
        (1.0, 0.618033988750),
        (10.0, 0.916079783100),
    ],
)
def test_gain_has_the_methods_values(rho: float, gain: float) -> None:
    assert kalman_gain(vector(rho)).item() == pytest.approx(gain, abs=5e-13)


@pytest.mark.parametrize(
    ("rho", "strength", "expected"),
    [
        ((0.1, 0.01), 1.0, (0.827474995, 0.944097083)),
        ((0.1, 0.01), 0.5, (0.867901531, 0.924973140)),
        ((0.1, 0.01, 0.001), 1.0, (0.723699475, 0.902178042, 0.967926432)),
    ],
)
def test_momenta_have_the_methods_values(
    rho: tuple[float, ...], strength: float, expected: tuple[float, ...]
) -> None:
    assert betas(rho, strength=strength) == pytest.approx(expected, abs=5e-10)


def test_centred_gains_have_the_methods_values() -> None:
    gains = torch.sigmoid(unclipped((0.1, 0.01))).tolist()
    assert gains == pytest.approx((0.172525005, 0.055902917), abs=5e-10)


def test_logit_of_a_huge_ratio_is_finite_where_one_minus_the_gain_rounds_to_zero() -> None:
    rho = vector(1e16)
    assert 1 - kalman_gain(rho).item() == 0  # so that log(K / (1 - K)) would be infinite
    assert logit_gain(rho).item() == pytest.approx(36.84, abs=5e-3)


def test_base_gain_is_the_gain_of_its_own_ratio() -> None:
    """rho = K^2 / (1 - K) backwards: where the first observation puts the filter."""
    gains = torch.linspace(0.01, 0.30, 30, dtype=torch.float64)
    torch.testing.assert_close(kalman_gain(gains**2 / (1 - gains)), gains, rtol=1e-14, atol=0)


# Precision: every digit that float64 has, from a ratio of 1e-300 to one of 1e300


def exact(rho: float) -> tuple[float, float]:
    """K and logit K from the definition, with digits enough for 1 - K ~ 1e-300."""
    with mpmath.workdps(700):
        ratio = mpmath.mpf(rho)
        gain = (mpmath.sqrt(ratio**2 + 4 * ratio) - ratio) / 2
        return float(gain), float(mpmath.log(gain / (1 - gain)))


@pytest.mark.parametrize(
    "rho", [10.0**e for e in (*range(-300, 301, 25), *range(-8, 9))] + [1e-7 / 3, 0.3, 0.7, 3e15]
)
def test_gain_and_logit_are_precise(rho: float) -> None:
    gain, logit = exact(rho)
    assert kalman_gain(vector(rho)).item() == pytest.approx(gain, rel=1e-15)
    assert logit_gain(vector(rho)).item() == pytest.approx(logit, rel=1e-12)


@given(rho=ratios.filter(lambda rho: 1e-300 <= rho <= 1e300))
@quick
def test_logit_is_precise_everywhere(rho: float) -> None:
    """At rho = 1/2 the logit is 0, so that next to it only an absolute bound can hold."""
    assert logit_gain(vector(rho)).item() == pytest.approx(exact(rho)[1], rel=1e-12, abs=1e-15)


def test_logit_at_a_gain_of_one_half_is_zero() -> None:
    assert logit_gain(vector(0.5)).item() == pytest.approx(0, abs=2e-16)


# Finite whatever comes


@given(rho=ratios)
@example(rho=0.0)
@example(rho=SMALLEST)
@example(rho=TINY)
@example(rho=1e16)
@example(rho=1e30)
@example(rho=1.7e308)
@example(rho=math.inf)
@quick
def test_every_ratio_gives_finite_numbers(rho: float) -> None:
    ratio = drift_ratio(vector(rho), vector(1.0))
    logit = logit_gain(ratio)
    assert 0 < ratio.item() < math.inf
    assert 0 < kalman_gain(ratio).item() <= 1
    assert math.isfinite(logit.item())
    assert all(0.7 <= beta <= 0.99 for beta in betas((rho, 0.1)))


@pytest.mark.parametrize("drift", [0.0, SMALLEST, TINY, 1.0, 1e30, 1.7e308])
@pytest.mark.parametrize("noise", [0.0, SMALLEST, TINY, 1.0, 1e30, 1.7e308])
def test_every_drift_and_noise_give_a_finite_logit(drift: float, noise: float) -> None:
    ratio = drift_ratio(vector(drift), vector(noise))
    if drift == noise == 0:  # there is no ratio; the policy takes it for no estimate
        assert math.isnan(ratio.item())
        return
    assert math.isfinite(logit_gain(ratio).item())
    assert (ratio.item() > 1e200) == (noise == 0 or drift / noise > 1e200)


def test_no_drift_and_no_noise_go_to_the_two_ends() -> None:
    no_drift, no_noise = drift_ratio(vector(0.0, 1.0), vector(1.0, 0.0)).tolist()
    assert betas((no_drift, no_noise)) == [0.99, 0.70]


# Invariants


@given(rho=st.lists(ratios, min_size=1, max_size=6), base=bases, strength=strengths)
@quick
def test_momentum_lies_within_the_gain_range(
    rho: list[float], base: float, strength: float
) -> None:
    assert all(1 - RANGE[1] <= beta <= 1 - RANGE[0] for beta in betas(rho, base, strength))


@given(gain_low=st.floats(0.001, 0.4), width=st.floats(0, 0.5), logit=st.floats(-800, 800))
@quick
def test_momentum_lies_within_any_gain_range(gain_low: float, width: float, logit: float) -> None:
    beta = momentum(vector(logit), (gain_low, gain_low + width)).item()
    assert 1 - (gain_low + width) <= beta <= 1 - gain_low


@given(data=st.data(), rho=st.lists(ratios, min_size=2, max_size=6), base=bases)
@quick
def test_permuting_the_modalities_permutes_the_momenta(
    data: st.DataObject, rho: list[float], base: float
) -> None:
    order = data.draw(st.permutations(range(len(rho))))
    known = data.draw(st.lists(st.booleans(), min_size=len(rho), max_size=len(rho)))
    before = betas(rho, base, known=known)
    after = betas([rho[i] for i in order], base, known=[known[i] for i in order])
    # The mean is summed up in another order, over logits of up to 700.
    assert after == pytest.approx([before[i] for i in order], abs=1e-12)


@given(
    rho=st.lists(plain_ratios, min_size=2, max_size=5),
    factor=st.floats(1.01, 1e3),
    base=bases,
    strength=st.floats(0.1, 2),
)
@quick
def test_momentum_falls_as_the_own_ratio_rises_and_the_others_give_way(
    rho: list[float], factor: float, base: float, strength: float
) -> None:
    risen = [rho[0] * factor, *rho[1:]]
    before, after = betas(rho, base, strength), betas(risen, base, strength)
    assert after[0] <= before[0]
    assert all(b <= a for b, a in zip(before[1:], after[1:], strict=True))
    # Before the clip it is strict.
    lifted = (unclipped(risen, base, strength) - unclipped(rho, base, strength)).tolist()
    assert lifted[0] > 0
    assert all(change < 0 for change in lifted[1:])


@given(low=ratios, high=ratios)
@quick
def test_gain_and_logit_rise_with_the_ratio(low: float, high: float) -> None:
    low, high = sorted((low, high))
    ratio = drift_ratio(vector(low, high), vector(1.0, 1.0))
    for function in (kalman_gain, logit_gain):
        first, second = function(ratio).tolist()
        assert first <= second
    # Strict as soon as the ratios differ by more than the logits' last digits.
    assume(ratio[1] > 1.001 * ratio[0])
    assert logit_gain(ratio).diff().item() > 0


@given(rho=st.lists(plain_ratios, min_size=2, max_size=6), base=bases, strength=strengths)
@quick
def test_mean_log_odds_stay_at_the_base_where_nothing_is_clipped(
    rho: list[float], base: float, strength: float
) -> None:
    mean = math.log((1 - base) / base)
    logits = unclipped(rho, base, strength)
    assert logits.mean().item() == pytest.approx(mean, abs=1e-12)
    found = 1 - momentum(logits, (1e-12, 1 - 1e-12))
    assume(logits.abs().max() < 20)  # the momentum itself has no digits left beyond
    assert torch.logit(found).mean().item() == pytest.approx(mean, abs=1e-6)


@given(rho=st.lists(plain_ratios, min_size=2, max_size=6), base=bases)
@quick
def test_equal_ratios_keep_the_base(rho: list[float], base: float) -> None:
    assert betas([rho[0]] * len(rho), base) == pytest.approx([base] * len(rho), abs=1e-12)
    assert betas(rho, base, strength=0) == pytest.approx([base] * len(rho), abs=1e-12)


@given(rho=st.lists(plain_ratios, min_size=2, max_size=6), strength=strengths)
@quick
def test_log_odds_lie_at_strength_times_their_distances(rho: list[float], strength: float) -> None:
    logits = unclipped(rho, strength=strength)
    for i, first in enumerate(rho):
        apart = math.log(first / rho[0]) - math.log(
            kalman_gain(vector(first)).item() / kalman_gain(vector(rho[0])).item()
        )
        assert (logits[i] - logits[0]).item() == pytest.approx(strength * apart, abs=1e-11)


# Which modalities count


@pytest.mark.parametrize(
    ("rho", "known"),
    [
        ((0.1, 5.0, 0.01), (True, False, True)),
        ((5.0, 0.1, 0.01), (False, True, True)),
        ((0.1, math.nan, 0.01), (True, False, True)),
        ((0.1, math.nan, 0.01, math.nan, 1e300, 0.0), (True, False, True, False, False, False)),
    ],
)
def test_unknown_modality_keeps_the_base_and_stays_out_of_the_mean(
    rho: tuple[float, ...], known: tuple[bool, ...]
) -> None:
    found = betas(rho, known=known)
    alone = betas((0.1, 0.01))
    assert [beta for beta, k in zip(found, known, strict=True) if k] == alone
    rest = [beta for beta, k in zip(found, known, strict=True) if not k]
    assert rest == pytest.approx([0.9] * len(rest), abs=1e-15)


@pytest.mark.parametrize("known", [(True, False, False), (False, False, False)])
def test_one_known_modality_or_none_keeps_the_base(known: tuple[bool, ...]) -> None:
    assert betas((7.0, math.nan, 0.01), known=known) == pytest.approx([0.9] * 3, abs=1e-15)


def test_each_modality_moves_from_its_own_base() -> None:
    logits = logit_gain(vector(0.1, 0.01))
    both = torch.tensor([True, True])
    found = torch.stack(centred_logit(logits, both, vector(0.1, 0.2), 1.0))
    same = torch.stack(centred_logit(logits, both, vector(0.1, 0.1), 1.0))
    assert found[0] == same[0]
    shift = math.log(0.2 / 0.8) - math.log(0.1 / 0.9)
    assert (found - same)[1].item() == pytest.approx(shift, abs=1e-14)


@pytest.mark.parametrize("modalities", [2, 3, 6])
def test_several_modalities_against_the_formula_by_hand(modalities: int) -> None:
    rho = [0.02 * 1.7**i for i in range(modalities)]
    gains = [(math.sqrt(r * r + 4 * r) - r) / 2 for r in rho]
    odds = [math.log(k / (1 - k)) for k in gains]
    expected: list[float] = []
    for own in odds:
        centred = math.log(0.1 / 0.9) + own - sum(odds) / modalities
        expected.append(1 - min(max(1 / (1 + math.exp(-centred)), 0.01), 0.30))
    assert betas(rho) == pytest.approx(expected, abs=1e-13)
