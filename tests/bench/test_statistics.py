"""Means, intervals and tests, against textbook values and against scipy's own."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vcmm.bench.statistics import (
    Interval,
    Paired,
    bootstrap,
    holm,
    interval,
    least,
    paired,
    wilcoxon,
)

quick = settings(max_examples=100, deadline=None, derandomize=True)
shares = st.floats(0, 1, allow_subnormal=False)


def test_an_interval_by_hand() -> None:
    # t(0.975; 4) = 2.776445105 and s = sqrt(2.5): 3 -+ 2.776445105 * sqrt(2.5 / 5)
    found = interval([1, 2, 3, 4, 5])
    assert found.n == 5
    assert found.mean == 3
    assert found.sd == pytest.approx(math.sqrt(2.5), rel=1e-14)
    assert (found.low, found.high) == pytest.approx((1.036756838522, 4.963243161478), rel=1e-12)


def test_the_level_widens_the_interval() -> None:
    # t(0.995; 4) = 4.60409487
    found = interval([1, 2, 3, 4, 5], level=0.99).high
    assert found == pytest.approx(3 + 4.60409487 * math.sqrt(0.5), rel=1e-8)


def test_one_value_has_no_spread() -> None:
    assert interval([0.7]) == Interval(1, 0.7, None, None, None)


def test_equal_values_have_none_to_show() -> None:
    assert interval([0.1 + 0.2, 0.3, 0.3]).sd == 0


def test_no_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        interval([])


@quick
@given(st.lists(shares, min_size=2, max_size=12).filter(lambda v: max(v) - min(v) > 1e-6))
def test_intervals_are_those_of_scipy(values: list[float]) -> None:
    found = interval(values)
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values)
    )
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-12)


# Student's own table of 1908: additional hours of sleep by two drugs, on ten patients.
DRUG_1 = dict(enumerate([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]))
DRUG_2 = dict(enumerate([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]))


def test_students_sleep() -> None:
    found = paired(DRUG_2, DRUG_1)
    assert found is not None
    assert found.mean == pytest.approx(1.58)
    assert found.p == pytest.approx(0.00283289, rel=1e-5)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), rel=1e-6)


def test_only_common_seeds_count() -> None:
    found = paired({0: 0.7, 1: 0.8, 7: 0.1}, {1: 0.5, 0: 0.6, 9: 0.9})
    assert found is not None
    assert found.n == 2
    assert found.mean == pytest.approx(0.2)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_one_common_seed_is_a_difference_without_a_test() -> None:
    assert paired({0: 0.75}, {0: 0.5}) == Paired(1, 0.25, None, None, None, None)


def test_no_difference_at_all_is_certain_to_be_none() -> None:
    same = {0: 0.7, 1: 0.8, 2: 0.6}
    assert paired(same, same) == Paired(3, 0.0, 0.0, 0.0, 0.0, 1.0)


def test_equal_differences_leave_the_spread_unknown() -> None:
    ours = {seed: value + 0.1 for seed, value in enumerate((0.1, 0.2, 0.3, 0.7))}
    found = paired(ours, dict(enumerate((0.1, 0.2, 0.3, 0.7))))
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert (found.sd, found.low, found.high, found.p) == (0.0, None, None, None)


@quick
@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=10))
def test_the_test_is_that_of_scipy_and_turns_with_its_sides(
    rows: list[tuple[float, float]],
) -> None:
    ours, theirs = (dict(enumerate(side)) for side in zip(*rows, strict=True))
    found, turned = paired(ours, theirs), paired(theirs, ours)
    assert found is not None
    assert turned is not None
    assert turned.mean == -found.mean
    assert turned.p == found.p
    differences = [a - b for a, b in rows]
    if max(differences) - min(differences) > 1e-6:
        expected = stats.ttest_rel(list(ours.values()), list(theirs.values())).pvalue
        assert found.p == pytest.approx(expected, rel=1e-6, abs=1e-12)
        assert found.low is not None
        assert found.high is not None
        # The interval and the test say the same.
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


def test_holm_by_hand() -> None:
    # 4 x .005, 3 x .01, 2 x .03, and .04 which may not fall below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_stops_at_one_and_passes_over_what_was_not_tested() -> None:
    assert holm([0.6, None, 0.7]) == [1.0, None, 1.0]
    assert holm([None]) == [None]
    assert holm([]) == []


@quick
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_holm_keeps_the_order_and_only_raises(p_values: list[float], random: Random) -> None:
    adjusted = holm(p_values)
    assert all(q is not None and p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted[i] or 0.0 for i in order)
    shuffled = list(range(len(p_values)))
    random.shuffle(shuffled)
    assert holm([p_values[i] for i in shuffled]) == [adjusted[i] for i in shuffled]
    assert (
        min(q for q in adjusted if q is not None) <= min(1, len(p_values) * min(p_values)) + 1e-15
    )


# Wilcoxon (1945) in scipy's own example, from Hollander and Wolfe: depression scale factors.
BEFORE = dict(enumerate([1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]))
AFTER = dict(enumerate([0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]))


def test_wilcoxon_by_the_book() -> None:
    found = wilcoxon(BEFORE, AFTER)
    assert found is not None
    assert (found.n, found.statistic) == (9, 5)
    assert found.p == pytest.approx(0.0390625)  # 20 of 512
    assert found.least == 2 / 2**9


def test_five_seeds_can_never_show_a_difference_at_05() -> None:
    ours = {seed: 0.9 + 0.01 * seed for seed in range(5)}
    found = wilcoxon(ours, dict.fromkeys(range(5), 0.1))
    assert found is not None
    assert found.p == found.least == 0.0625
    assert least(6) == 0.03125
    assert least(1) == 1


def test_equal_pairs_are_left_out() -> None:
    assert wilcoxon({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7}) is None
    assert wilcoxon({0: 0.5}, {1: 0.5}) is None
    found = wilcoxon({0: 0.5, 1: 0.7, 2: 0.9}, {0: 0.5, 1: 0.6, 2: 0.7})
    assert found is not None
    assert found.n == 2


def test_differences_that_are_equal_but_for_rounding_share_their_rank() -> None:
    # +.1, +.1, -.1 and +.2 have the ranks 2, 2, 2 and 4.
    found = wilcoxon({0: 0.3, 1: 0.8, 2: 0.2, 3: 0.4}, {0: 0.2, 1: 0.7, 2: 0.3, 3: 0.2})
    assert found is not None
    assert found.statistic == 2
    # 2 is reached by no sign, one alone of the three: 4 of 16, on both sides.
    assert found.p == pytest.approx(8 / 16)


@quick
@given(st.lists(st.integers(-40, 40).filter(bool), min_size=1, max_size=12, unique_by=abs))
def test_wilcoxon_is_that_of_scipy(differences: list[int]) -> None:
    found = wilcoxon(dict(enumerate(map(float, differences))), dict.fromkeys(range(12), 0.0))
    expected = stats.wilcoxon(differences, method="exact")
    assert found is not None
    assert found.statistic == expected.statistic
    assert found.p == pytest.approx(expected.pvalue, rel=1e-12)


def test_many_pairs_are_tested_by_the_normal_law() -> None:
    source = Random(0)
    ours = {seed: source.gauss(0.3, 1) for seed in range(60)}
    found = wilcoxon(ours, dict.fromkeys(range(60), 0.0))
    assert found is not None
    assert found.p == pytest.approx(stats.wilcoxon(list(ours.values())).pvalue, rel=0.05)


def test_the_percentile_bootstrap_is_that_of_all_draws() -> None:
    # Of 1, 2, 3 there are 27 draws; their means have the 2.5 % quantile 1 and the 97.5 % one 3.
    assert bootstrap([1, 2, 3], kind="percentile") == (1, 3)


def test_the_bootstrap_covers_what_the_t_interval_covers() -> None:
    values = [Random(seed).gauss(0, 1) for seed in range(200)]
    found, by_t = bootstrap(values), interval(values)
    assert found is not None
    assert by_t.low is not None
    assert by_t.high is not None
    # Both are about 3.9 standard errors wide; 10000 draws place a quantile within some percent.
    assert found == pytest.approx((by_t.low, by_t.high), abs=0.02)
    assert bootstrap(values) == found


def test_bca_leans_to_the_side_of_the_long_tail() -> None:
    values = [Random(seed).expovariate(1) for seed in range(30)]
    corrected, plain = bootstrap(values), bootstrap(values, kind="percentile")
    assert corrected is not None
    assert plain is not None
    assert corrected[0] > plain[0]
    assert corrected[1] > plain[1]


def test_the_bootstrap_takes_other_statistics() -> None:
    found = bootstrap([1.0, 2.0, 3.0, 4.0, 50.0], statistic=max, kind="percentile", resamples=999)
    assert found is not None
    assert found[1] == 50


def test_without_spread_there_is_nothing_to_draw_from() -> None:
    assert bootstrap([0.5]) is None
    assert bootstrap([0.3, 0.3, 0.1 + 0.2]) is None
    # Leaving one out changes the maximum of these never: BCa has nothing to correct.
    assert bootstrap([1.0, 2.0, 2.0], statistic=max) == (1, 2)
