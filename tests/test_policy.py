"""Kalman, Fixed and Frozen as objects: what they answer, what they keep, what they refuse."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vcmm import Fixed, Frozen, Kalman, MomentumController, Policy, Probe, reference
from vcmm.probe import Batch, Memory, Number, direct_probe, half_sums
from vcmm.record import pack, unpack

NAN = math.nan
PAIR = {"audio": 0.9, "video": 0.9}
TRIO = {"audio": 0.9, "video": 0.9, "text": 0.9}


def first(noise: float = 1.0) -> Probe:
    return Probe(noise=noise, change=NAN, previous_noise=NAN, energy=0.0)


def following(rho: float, noise: float = 1.0) -> Probe:
    """With smoothing=0, what makes R = noise and Q / R = rho."""
    return Probe(noise=noise, change=noise * (2 + rho), previous_noise=noise, energy=0.0)


def at(ratios: Mapping[str, float], base: Mapping[str, float] = PAIR, **settings: Any) -> Kalman:
    """A policy that has just been shown these ratios."""
    kalman = Kalman(smoothing=0, **settings)
    kalman.update({modality: first() for modality in ratios}, base)
    kalman.update({modality: following(rho) for modality, rho in ratios.items()}, base)
    return kalman


def noisy_steps(steps: int, modalities: Sequence[str], seed: int = 0) -> list[dict[str, Probe]]:
    """Probes like real ones: drifting and noisy, each with the noise of the one before."""
    generator = torch.Generator().manual_seed(seed)
    before: dict[str, float] = {}
    history: list[dict[str, Probe]] = []
    for _ in range(steps):
        probes: dict[str, Probe] = {}
        for i, modality in enumerate(modalities):
            u = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
            noise, previous = (0.5 + u[0]) * 10**i, before.get(modality, NAN)
            change = (noise + previous) * (0.8 + 0.6 * (i + 1) * u[1])
            probes[modality] = Probe(noise, change, previous, 3 * u[2] * 10**i)
            before[modality] = noise
        history.append(probes)
    return history


def ratios(kalman: Kalman, modalities: Sequence[str]) -> dict[str, float | None]:
    return {m: kalman.metrics().get(f"{m}/rho") for m in modalities}


def same(found: Mapping[str, Any], expected: Mapping[str, float], rel: float = 1e-12) -> None:
    assert dict(found) == pytest.approx(dict(expected), rel=rel)


# Kalman: the numbers of the method


def test_kalman_has_the_methods_momenta() -> None:
    kalman = at({"audio": 0.1, "video": 0.01})
    answer = kalman.update({}, PAIR)
    same(answer, {"audio": 0.827474995, "video": 0.944097083}, rel=1e-9)
    answer = at({"audio": 0.1, "video": 0.01}, strength=0.5).update({}, PAIR)
    same(answer, {"audio": 0.867901531, "video": 0.924973140}, rel=1e-9)
    answer = at({"audio": 0.1, "video": 0.01, "text": 0.001}, TRIO).update({}, TRIO)
    same(answer, {"audio": 0.723699475, "video": 0.902178042, "text": 0.967926432}, rel=1e-9)


def test_kalman_metrics_are_r_q_their_ratio_and_its_gain() -> None:
    kalman = Kalman(smoothing=0)
    assert kalman.metrics() == {}
    kalman.update({"audio": first(3.0)}, PAIR)
    kalman.update({"audio": following(0.1, noise=3.0)}, PAIR)
    expected = {"audio/R": 3.0, "audio/Q": 0.3, "audio/rho": 0.1, "audio/gain": 0.270156211872}
    same(kalman.metrics(), expected, rel=1e-11)


@pytest.mark.parametrize("base", [0.7, 0.8, 0.9, 0.95, 0.99])
def test_first_observation_answers_the_base(base: float) -> None:
    bases = dict.fromkeys(TRIO, base)
    probes = {"audio": first(1e-6), "video": first(1.0), "text": first(1e9)}
    for policy in (Kalman(), Kalman(center=False), Kalman(floor_after_smoothing=True)):
        assert policy.update(probes, bases) == pytest.approx(bases, abs=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strength": 0.5},
        {"strength": 2.0},
        {"smoothing": 0.8},
        {"floor": 0.05},
        {"gain_range": (0.08, 0.15)},
        {"subtract_noise": False},
        {"center": False},
        {"center": False, "strength": 0.0},
        {"floor_after_smoothing": True},
    ],
    ids=str,
)
def test_kalman_is_the_reference_step_by_step(settings: dict[str, Any]) -> None:
    kalman = Kalman(**settings)
    mean = {k: settings[k] for k in settings.keys() - {"strength", "gain_range", "center"}}
    tail = {k: settings[k] for k in settings.keys() & {"strength", "gain_range", "center"}}
    slow = {m: reference.Estimator(0.9, **mean) for m in TRIO}
    moved = 0.0
    for t, probes in enumerate(noisy_steps(40, list(TRIO))):
        answer = kalman.update(probes, TRIO)
        for modality, estimator in slow.items():
            p = probes[modality]
            change = None if t == 0 else p.change
            estimator.update(reference.Observation(p.noise, change, p.energy, torch.zeros(1)))
            assert kalman.metrics()[f"{modality}/R"] == pytest.approx(estimator.noise, rel=1e-12)
            assert kalman.metrics()[f"{modality}/Q"] == pytest.approx(estimator.drift, rel=1e-11)
        expected = reference.centred_betas({m: e.ratio for m, e in slow.items()}, 0.9, **tail)
        assert answer == pytest.approx(expected, abs=1e-11)
        moved = max(moved, *(abs(beta - 0.9) for beta in answer.values()))
    assert moved > 0.02


# Kalman: the ablations as formulas


def test_without_centring_each_gain_is_its_own_and_strength_is_unused() -> None:
    shown = {"audio": 0.1, "video": 0.01, "text": 10.0}
    expected = {"audio": 1 - 0.270156211872, "video": 1 - 0.095124921973, "text": 0.70}
    for strength in (0.0, 0.5, 1.0):
        kalman = at(shown, TRIO, center=False, strength=strength)
        same(kalman.update({}, TRIO), expected, rel=1e-11)


def test_without_centring_a_single_modality_moves_and_unknown_ones_do_not() -> None:
    kalman = at({"audio": 0.1}, {"audio": 0.9}, center=False)
    same(kalman.update({}, {"audio": 0.9}), {"audio": 1 - 0.270156211872}, rel=1e-11)
    same(at({"audio": 0.1}, center=False).update({}, PAIR), {"audio": 1 - 0.270156211872}, 1e-11)


def test_without_noise_subtraction_the_drift_is_the_whole_change() -> None:
    drifts: dict[bool, float] = {}
    for subtract in (True, False):
        kalman = Kalman(subtract_noise=subtract)
        kalman.update({"audio": Probe(1.0, NAN, NAN, 2.0)}, PAIR)
        kalman.update({"audio": Probe(2.0, 3.5, 1.0, 2.0)}, PAIR)
        drifts[subtract] = kalman.metrics()["audio/Q"]
    start = 0.95 / 90
    same(drifts, {True: start + 0.05 * 0.5, False: start + 0.05 * 3.5})
    kalman = Kalman(subtract_noise=False)
    kalman.update({"audio": Probe(1.0, NAN, NAN, 1e6)}, PAIR)
    kalman.update({"audio": Probe(1.0, 3.5, 1.0, 1e6)}, PAIR)
    assert kalman.metrics()["audio/Q"] == pytest.approx(start + 0.05 * 1e6 * 1e-4, rel=1e-12)


# Kalman: when it keeps the base


@pytest.mark.parametrize("warmup", [1, 2, 7])
def test_warmup_keeps_the_base_for_that_many_steps_while_statistics_run(warmup: int) -> None:
    waiting, running = Kalman(warmup=warmup), Kalman()
    for t, probes in enumerate(noisy_steps(12, list(PAIR)), start=1):
        answer, other = waiting.update(probes, PAIR), running.update(probes, PAIR)
        assert waiting.metrics() == running.metrics()
        assert answer == ({} if t <= warmup else other)
        assert t == 1 or other != PAIR


def test_warmup_counts_steps_without_a_probe_too() -> None:
    kalman = Kalman(warmup=3, smoothing=0)
    kalman.update({m: first() for m in PAIR}, PAIR)
    kalman.update({"audio": following(0.1), "video": following(0.01)}, PAIR)
    assert kalman.update({}, PAIR) == {}
    same(kalman.update({}, PAIR), {"audio": 0.827474995, "video": 0.944097083}, rel=1e-9)


def test_strength_zero_keeps_any_base_while_statistics_run() -> None:
    base = {"audio": 0.5, "video": 0.999, "text": 0.0}
    kalman = Kalman(strength=0)
    for probes in noisy_steps(5, list(base)):
        assert kalman.update(probes, base) == {}
    assert kalman.metrics()["audio/R"] > 0


def test_a_single_modality_keeps_the_base() -> None:
    kalman = Kalman()
    for probes in noisy_steps(5, ["audio"]):
        assert kalman.update(probes, {"audio": 0.9}) == {}


def test_a_single_estimated_modality_keeps_the_base() -> None:
    kalman = Kalman()
    for probes in noisy_steps(5, ["audio"]):
        assert kalman.update(probes, TRIO) == {}
    assert "video/R" not in kalman.metrics()


def test_no_probe_yet_keeps_the_base() -> None:
    kalman = Kalman()
    assert kalman.update({}, PAIR) == {}
    assert kalman.metrics() == {}


def test_modality_without_an_estimate_is_left_out_of_answer_and_mean() -> None:
    two, three = Kalman(), Kalman()
    for probes in noisy_steps(10, ["audio", "video"]):
        answer = three.update(probes, TRIO)
        assert "text" not in answer
        assert answer == two.update(probes, PAIR)
    assert any(abs(beta - 0.9) > 1e-3 for beta in answer.values())


def test_no_noise_and_no_drift_is_no_estimate() -> None:
    kalman = Kalman()
    for _ in range(3):
        probes = {"audio": first(1.0), "video": first(2.0), "text": Probe(0.0, 0.0, 0.0, 0.0)}
        assert kalman.update(probes, TRIO).keys() == {"audio", "video"}


def test_drift_without_noise_is_the_largest_gain_and_the_reverse_the_smallest() -> None:
    kalman = Kalman(smoothing=0)
    kalman.update({"audio": first(0.0), "video": first(1.0)}, PAIR)
    gone = {"audio": Probe(0.0, 1.0, 0.0, 0.0), "video": Probe(1.0, 0.0, 1.0, 0.0)}
    assert kalman.update(gone, PAIR) == {"audio": 0.70, "video": 0.99}


# Kalman: modalities that come and go, and a base that moves


def test_centring_uses_the_latest_estimate_of_absent_modalities() -> None:
    """And an absent modality still gives way as the mean moves."""
    kalman = at({"audio": 0.1, "video": 0.01})
    answer = kalman.update({"audio": following(0.5)}, PAIR)
    same(ratios(kalman, list(PAIR)), {"audio": 0.5, "video": 0.01}, rel=1e-10)
    same(answer, reference.centred_betas({"audio": 0.5, "video": 0.01}, 0.9), rel=1e-10)
    assert answer["video"] > 0.9442  # it was .9441


def test_modality_added_later_starts_at_the_base_and_joins_the_mean() -> None:
    kalman = at({"audio": 0.1, "video": 0.01})
    kalman.update({}, TRIO)
    before = kalman.metrics()
    # Also in front of the others, so that the order of the entries changes.
    grown = {"text": 0.9, **PAIR}
    answer = kalman.update({"text": first(5.0)}, grown)
    after = kalman.metrics()
    assert {name: after[name] for name in before} == before
    assert after["text/R"] == 5.0
    assert after["text/rho"] == pytest.approx(1 / 90, rel=1e-12)
    same(answer, reference.centred_betas({"audio": 0.1, "video": 0.01, "text": 1 / 90}, 0.9), 1e-10)


def test_order_of_the_modalities_does_not_matter() -> None:
    one, other = Kalman(), Kalman()
    for t, probes in enumerate(noisy_steps(10, list(TRIO))):
        names = list(TRIO)
        order = names[t % 3 :] + names[: t % 3]  # another one in every step
        base = dict.fromkeys(order, 0.9)
        shuffled = {name: probes[name] for name in reversed(order)}
        same(other.update(shuffled, base), one.update(probes, TRIO))
        same(other.metrics(), one.metrics())


@pytest.mark.parametrize("seen", ["the same", "other probes", "another base"])
@pytest.mark.parametrize("wrap", [Kalman, lambda: Frozen(Kalman(), after=20, average=5)])
def test_working_ahead_changes_nothing_whatever_comes_then(
    wrap: Callable[[], Policy], seen: str
) -> None:
    ahead, plain = wrap(), wrap()
    history = noisy_steps(30, tuple(PAIR))
    for step, probes in enumerate(history):
        before = pack(ahead.state_dict())
        expected = {"another base": {"audio": 0.9, "video": 0.85}}.get(seen, PAIR)
        ahead.anticipate(history[step - 1] if seen == "other probes" else probes, PAIR)
        assert pack(ahead.state_dict()) == before
        assert ahead.update(probes, expected) == plain.update(probes, expected)
        assert ahead.metrics() == plain.metrics()


def test_what_was_worked_out_ahead_does_not_outlive_a_load() -> None:
    first, second = noisy_steps(2, tuple(PAIR))
    ahead, plain = Kalman(), Kalman()
    ahead.anticipate(second, PAIR)
    plain.update(first, PAIR)
    ahead.load_state_dict(plain.state_dict())
    assert ahead.update(second, PAIR) == plain.update(second, PAIR)


def test_base_is_read_live() -> None:
    kalman = at({"audio": 0.1, "video": 0.01})
    for beta in (0.9, 0.85, 0.95, 0.9):
        base = dict.fromkeys(PAIR, beta)
        expected = reference.centred_betas({"audio": 0.1, "video": 0.01}, beta)
        same(kalman.update({}, base), expected, rel=1e-10)


def test_first_drift_takes_the_base_of_its_own_step() -> None:
    kalman = Kalman()
    kalman.update({"audio": first()}, PAIR)
    kalman.update({"video": first()}, dict.fromkeys(PAIR, 0.8))
    same(ratios(kalman, list(PAIR)), {"audio": 0.01 / 0.9, "video": 0.04 / 0.8})


def test_a_base_that_leaves_the_gain_range_is_an_error_in_its_step() -> None:
    kalman = Kalman()
    kalman.update({}, PAIR)
    with pytest.raises(ValueError, match=r"'video' has base momentum 0\.5.*gain_range"):
        kalman.update({}, {"audio": 0.9, "video": 0.5})


def test_probes_of_tensors_give_what_probes_of_floats_give() -> None:
    floats, tensors = Kalman(), Kalman()
    for probes in noisy_steps(8, list(PAIR)):
        rows = {
            m: Probe(*(torch.tensor(x).double() for x in (p.noise, p.change, p.previous_noise, 1)))
            for m, p in probes.items()
        }
        plain = {
            m: Probe(*(float(x) for x in (r.noise, r.change, r.previous_noise, 1)))
            for m, r in rows.items()
        }
        assert tensors.update(rows, PAIR) == floats.update(plain, PAIR)


# Kalman: the scale of a modality's gradients


def betas_of_gradients(scales: Mapping[str, float], seed: int) -> list[dict[str, Number]]:
    """Through the real probe, with the gradients of each modality times its scale."""
    generator = torch.Generator().manual_seed(seed)
    kalman, answers = Kalman(), []
    memories: dict[str, Memory | None] = dict.fromkeys(scales)
    for t in range(8):
        probes: dict[str, Probe] = {}
        for i, (modality, scale) in enumerate(scales.items()):
            residuals = torch.randn(6, 3, dtype=torch.float64, generator=generator) + (i + 1) * t
            features = torch.randn(6, 4, dtype=torch.float64, generator=generator)
            batch = Batch(scale * residuals, features, torch.ones(6, dtype=torch.float64))
            probe, memories[modality] = direct_probe(half_sums(batch, 0), memories[modality])
            fields = (probe.noise, probe.change, probe.previous_noise, probe.energy)
            probes[modality] = Probe(*(float(field) for field in fields))
        answers.append(dict(kalman.update(probes, dict.fromkeys(scales, 0.9))))
    assert any(abs(beta - 0.9) > 1e-3 for beta in answers[-1].values())
    return answers


@given(exponent=st.integers(-100, 100), seed=st.integers(0, 50), which=st.integers(0, 2))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_rescaling_one_modality_by_a_power_of_two_changes_no_bit(
    exponent: int, seed: int, which: int
) -> None:
    scales = {name: 2.0**exponent if i == which else 1.0 for i, name in enumerate(TRIO)}
    assert betas_of_gradients(scales, seed) == betas_of_gradients(dict.fromkeys(TRIO, 1.0), seed)


@given(exponent=st.floats(-30, 30), seed=st.integers(0, 50), which=st.integers(0, 2))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_rescaling_one_modality_changes_nothing_but_rounding(
    exponent: int, seed: int, which: int
) -> None:
    scales = {name: 10.0**exponent if i == which else 1.0 for i, name in enumerate(TRIO)}
    plain = betas_of_gradients(dict.fromkeys(TRIO, 1.0), seed)
    for found, expected in zip(betas_of_gradients(scales, seed), plain, strict=True):
        assert found == pytest.approx(expected, abs=1e-10)


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -0.1}, "strength is -0.1"),
        ({"strength": math.inf}, "strength is inf"),
        ({"strength": NAN}, "strength is nan"),
        ({"smoothing": 1.0}, r"smoothing is 1.0; it must be in \[0, 1\)"),
        ({"smoothing": -0.1}, "smoothing is -0.1"),
        ({"smoothing": NAN}, "smoothing is nan"),
        ({"floor": -1e-4}, "floor is -0.0001"),
        ({"floor": math.inf}, "floor is inf"),
        ({"gain_range": (0.0, 0.3)}, r"gain_range is \(0.0, 0.3\)"),
        ({"gain_range": (0.3, 0.01)}, r"gain_range is \(0.3, 0.01\)"),
        ({"gain_range": (0.1, 1.0)}, r"gain_range is \(0.1, 1.0\)"),
        ({"warmup": -1}, "warmup is -1"),
    ],
    ids=str,
)
def test_kalman_refuses_settings_with_the_value_and_the_bounds(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"Kalman: {message}"):
        Kalman(**settings)


@pytest.mark.parametrize("beta", [0.5, 0.69, 0.991, 0.999, 0.0])
def test_a_base_outside_of_the_gain_range_is_refused_by_name(beta: float) -> None:
    base = {"audio": 0.9, "video": beta}
    with pytest.raises(ValueError, match=rf"'video' has base momentum {beta:g}.*gain_range"):
        Kalman().check(base)
    Kalman(strength=0).check(base)
    Kalman(center=False).check(base)


@pytest.mark.parametrize("beta", [0.7, 0.99])
def test_the_ends_of_the_gain_range_are_within(beta: float) -> None:
    """Even though 1 - .7 is .30000000000000004."""
    Kalman().check({"audio": beta})
    assert Kalman().update({"audio": first()}, {"audio": beta, "video": 0.9}) == {}


def test_a_gain_range_that_holds_the_base_serves_it() -> None:
    wide = Kalman(gain_range=(0.001, 0.9))
    base = dict.fromkeys(PAIR, 0.5)
    wide.check(base)
    answer = wide.update({"audio": first(), "video": first()}, base)
    assert answer == pytest.approx(base, abs=1e-12)


# Fixed


def test_fixed_answers_its_betas_whatever_was_measured() -> None:
    fixed = Fixed(audio=0.95, video=0.80)
    fixed.check(TRIO)
    assert fixed.update({}, TRIO) == {"audio": 0.95, "video": 0.80}
    assert fixed.update({"audio": first()}, TRIO) == {"audio": 0.95, "video": 0.80}
    assert fixed.metrics() == {}
    assert fixed.state_dict() == {}


@pytest.mark.parametrize("beta", [-0.1, 1.0, 1.5, NAN])
def test_fixed_refuses_what_is_no_momentum(beta: float) -> None:
    with pytest.raises(ValueError, match=f"momentum of 'video' is {beta}; it must be in"):
        Fixed(audio=0.9, video=beta)


def test_fixed_refuses_a_modality_that_no_group_carries() -> None:
    with pytest.raises(ValueError, match=r"'audoi', which no parameter group .*audio, video"):
        Fixed(audoi=0.9).check(PAIR)


# Frozen


class Script(Policy):
    """Answers what it was given, step by step, and counts how often it was asked."""

    def __init__(self, *answers: Mapping[str, float]) -> None:
        self.answers = answers
        self.asked = 0

    def update(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number]:
        self.asked += 1
        return self.answers[self.asked - 1]

    def metrics(self) -> dict[str, float]:
        return {"audio/asked": float(self.asked)}

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.asked = int(state["asked"])


def script(*betas: float) -> Script:
    return Script(*({"audio": beta} for beta in betas))


@pytest.mark.parametrize(("after", "average"), [(1, 1), (5, 1), (5, 2), (5, 3), (5, 5)])
def test_frozen_keeps_the_mean_of_exactly_the_last_steps(after: int, average: int) -> None:
    given = [0.71, 0.93, 0.78, 0.86, 0.97][:after]
    inner = script(*given)
    frozen = Frozen(inner, after=after, average=average)
    for beta in given:
        assert frozen.update({}, PAIR) == {"audio": beta}
    mean = sum(given[-average:]) / average
    for _ in range(4):
        assert frozen.update({}, PAIR) == pytest.approx({"audio": mean, "video": 0.9}, rel=1e-15)
    assert inner.asked == after


def test_frozen_counts_a_modality_that_was_left_out_as_its_base() -> None:
    frozen = Frozen(Script({"audio": 0.8}, {}, {"audio": 0.7, "video": 0.96}), after=3, average=3)
    for _ in range(3):
        frozen.update({}, PAIR)
    assert frozen.update({}, PAIR) == pytest.approx({"audio": 0.8, "video": 0.92}, rel=1e-14)


@pytest.mark.parametrize("beta", [0.9, 0.83, 0.1 + 0.7, 1 / 3, 0.99])
@pytest.mark.parametrize("average", [1, 3, 7, 10])
def test_frozen_mean_of_a_constant_is_that_constant_bitwise(beta: float, average: int) -> None:
    frozen = Frozen(Fixed(audio=beta), after=10, average=average)
    answers = [frozen.update({}, PAIR)["audio"] for _ in range(15)]
    assert answers == [beta] * 15


def test_frozen_wraps_kalman() -> None:
    frozen, plain = Frozen(Kalman(), after=10, average=4), Kalman()
    last: list[Mapping[str, Number]] = []
    for t, probes in enumerate(noisy_steps(15, list(PAIR)), start=1):
        answer = frozen.update(probes, PAIR)
        if t <= 10:
            last = [*last[-3:], plain.update(probes, PAIR)]
            assert answer == last[-1]
            numbers = plain.metrics()
        else:
            mean = {m: sum(float(betas[m]) for betas in last) / 4 for m in PAIR}
            assert answer == pytest.approx(mean, rel=1e-14)
            assert mean["audio"] != pytest.approx(last[-1]["audio"], abs=1e-6)
        assert frozen.metrics() == numbers


def test_frozen_wraps_frozen() -> None:
    frozen = Frozen(Frozen(script(0.8, 0.9), after=2, average=2), after=4, average=2)
    betas = [frozen.update({}, {"audio": 0.9})["audio"] for _ in range(6)]
    assert betas == pytest.approx([0.8, 0.9, 0.85, 0.85, 0.85, 0.85])


def test_frozen_takes_in_a_modality_that_joins_while_it_averages() -> None:
    inner = Script({"audio": 0.8}, {"audio": 0.7, "video": 0.95}, {"audio": 0.9, "video": 0.95})
    frozen = Frozen(inner, after=3, average=3)
    frozen.update({}, {"audio": 0.9})
    frozen.update({}, {"audio": 0.9, "video": 0.95})
    frozen.update({}, {"audio": 0.9, "video": 0.95})
    answer = frozen.update({}, {"audio": 0.9, "video": 0.95})
    assert answer == pytest.approx({"audio": 0.8, "video": 0.95}, rel=1e-14)


def test_frozen_leaves_a_modality_that_joins_later_at_its_base() -> None:
    frozen = Frozen(script(0.8, 0.8), after=2, average=2)
    for _ in range(2):
        frozen.update({}, {"audio": 0.9})
    assert frozen.update({}, PAIR) == {"audio": 0.8}


def test_frozen_checks_what_it_wraps() -> None:
    with pytest.raises(ValueError, match="gain_range"):
        Frozen(Kalman(), after=2, average=1).check({"audio": 0.5})
    with pytest.raises(ValueError, match="no parameter group carries"):
        Frozen(Fixed(text=0.5), after=2, average=1).check(PAIR)


@pytest.mark.parametrize(("after", "average"), [(5, 0), (5, 6), (0, 0), (0, 1), (5, -1)])
def test_frozen_refuses_a_mean_of_nothing(after: int, average: int) -> None:
    message = f"average is {average} and after is {after} steps"
    with pytest.raises(ValueError, match=message):
        Frozen(Kalman(), after=after, average=average)


# Saved and loaded


def saved(policy: Policy) -> dict[str, Any]:
    """Through the format that checkpoints use."""
    return unpack(pack(policy.state_dict()))


@pytest.mark.parametrize("stop", [0, 1, 2, 5])
@pytest.mark.parametrize(
    "settings",
    [{}, {"warmup": 4}, {"floor_after_smoothing": True}, {"subtract_noise": False}],
    ids=str,
)
def test_kalman_resumes_bitwise(settings: dict[str, Any], stop: int) -> None:
    steps = noisy_steps(10, list(TRIO))
    for probes in steps[:4]:
        del probes["text"]  # no estimate yet where it is saved: nan travels too
    whole, before, after = (Kalman(**settings) for _ in range(3))
    for probes in steps[:stop]:
        whole.update(probes, TRIO)
        before.update(probes, TRIO)
    after.load_state_dict(saved(before))
    assert after.metrics() == whole.metrics()
    for probes in steps[stop:]:
        assert after.update(probes, TRIO) == whole.update(probes, TRIO)
        assert after.metrics() == whole.metrics()


def test_kalman_loads_modalities_by_name() -> None:
    before, after = at({"audio": 0.1, "video": 0.01}), Kalman(smoothing=0)
    after.update({"video": first(7.0)}, {"video": 0.9, "audio": 0.9})
    after.load_state_dict(saved(before))
    answer = after.update({}, {"video": 0.9, "audio": 0.9})
    same(answer, {"audio": 0.827474995, "video": 0.944097083}, rel=1e-9)


@pytest.mark.parametrize("stop", [0, 2, 4, 5, 7])
def test_frozen_resumes_bitwise_before_within_and_after_its_average(stop: int) -> None:
    """It averages steps 3, 4 and 5."""
    steps = noisy_steps(10, list(PAIR))
    whole, before, after = (Frozen(Kalman(), after=5, average=3) for _ in range(3))
    for probes in steps[:stop]:
        whole.update(probes, PAIR)
        before.update(probes, PAIR)
    after.load_state_dict(saved(before))
    for probes in steps[stop:]:
        assert after.update(probes, PAIR) == whole.update(probes, PAIR)
        assert after.metrics() == whole.metrics()


def test_fixed_resumes() -> None:
    fixed = Fixed(audio=0.95)
    fixed.load_state_dict(saved(Fixed(audio=0.8)))
    assert fixed.update({}, PAIR) == {"audio": 0.95}


# In a controller, on a real optimizer


def optimizer(seed: int = 0) -> tuple[torch.optim.Adam, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.randn(4, generator=generator, requires_grad=True) for _ in range(3)]
    groups = [
        {"params": [p], "modality": m}
        for p, m in zip(parameters, ("audio", "video", None), strict=True)
    ]
    return torch.optim.Adam(groups, lr=1e-2), parameters


def train(policy: Policy | None, steps: int = 12) -> tuple[list[Tensor], list[dict[str, float]]]:
    adam, parameters = optimizer()
    controller = None if policy is None else MomentumController(adam, policy)
    generator = torch.Generator().manual_seed(1)
    betas: list[dict[str, float]] = []
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(4, generator=generator)
        adam.step()
        if controller is not None:
            betas.append(controller.betas)
    return [parameter.detach() for parameter in parameters], betas


def bits(parameters: Sequence[Tensor]) -> list[list[float]]:
    return [parameter.tolist() for parameter in parameters]


@pytest.mark.parametrize(
    "policy",
    [
        Fixed(audio=0.9, video=0.9),
        Fixed(),
        Frozen(Fixed(audio=0.9), after=5, average=3),
        Frozen(Kalman(strength=0), after=7, average=7),
        Kalman(),
    ],
    ids=["fixed", "none", "frozen-fixed", "frozen-kalman", "nothing-observed"],
)
def test_fact_12_a_policy_that_stays_at_the_base_is_the_plain_optimizer_bitwise(
    policy: Policy,
) -> None:
    parameters, betas = train(policy)
    assert bits(parameters) == bits(train(None)[0])
    assert betas == [PAIR] * 12


def test_fixed_leaves_the_modalities_it_does_not_name_alone() -> None:
    parameters, betas = train(Fixed(audio=0.95))
    assert betas == [{"audio": 0.95, "video": 0.9}] * 12
    audio, video, shared = bits(parameters)
    plain = bits(train(None)[0])
    assert audio != plain[0]
    assert [video, shared] == plain[1:]


def test_frozen_fixed_is_fixed_bitwise() -> None:
    frozen = Frozen(Fixed(audio=0.95, video=0.8), after=5, average=3)
    assert bits(train(frozen)[0]) == bits(train(Fixed(audio=0.95, video=0.8))[0])
