"""Arms over data sets: ranks, critical differences, interquartile means, improvement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from vcmm.bench.statistics import (
    cliques,
    friedman,
    improvement,
    interquartile_mean,
    overall,
    ranking,
)

# Demsar (2006), table 6: AUC of C4.5 in four variants on 14 data sets. The paper gives the mean
# ranks, Friedman's chi^2 = 9.28, and Nemenyi's critical difference of 1.25 at .05.
DEMSAR = {
    "C4.5": [
        *(0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661),
        *(0.583, 0.775, 1.000, 0.940, 0.619, 0.972, 0.957),
    ],
    "C4.5+m": [
        *(0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668),
        *(0.583, 0.838, 1.000, 0.962, 0.666, 0.981, 0.978),
    ],
    "C4.5+cf": [
        *(0.771, 0.590, 0.968, 0.654, 0.886, 0.916, 0.609),
        *(0.563, 0.866, 1.000, 0.965, 0.614, 0.9751, 0.946),
    ],
    "C4.5+m+cf": [
        *(0.798, 0.569, 0.967, 0.657, 0.898, 0.931, 0.685),
        *(0.625, 0.875, 1.000, 0.962, 0.669, 0.975, 0.970),
    ],
}


def test_the_ranks_of_demsar() -> None:
    found = ranking(DEMSAR)
    ranks = dict(zip(found.arms, found.ranks, strict=True))
    assert found.arms[0] == "C4.5+m+cf"
    assert ranks["C4.5"] == pytest.approx(3.143, abs=0.001)
    assert ranks["C4.5+m"] == pytest.approx(2.000, abs=0.001)
    assert ranks["C4.5+cf"] == pytest.approx(2.893, abs=0.001)
    assert ranks["C4.5+m+cf"] == pytest.approx(1.964, abs=0.001)
    assert found.critical == pytest.approx(1.25, abs=0.005)
    assert found.data == 14
    # scipy corrects chi^2 for ties, which the paper does not: 9.28 becomes a little larger.
    assert found.p is not None
    assert found.p <= stats.chi2.sf(9.28, 3) + 1e-4
    assert found.cliques == ((0, 3),)  # 3.143 - 1.964 is less than 1.25, as the paper says


@pytest.mark.parametrize(("arms", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_differences_are_those_of_the_tables(arms: int, q: float) -> None:
    # Demsar's table 5a, alpha = .05.
    found = ranking({str(arm): [float(arm), 0.0] for arm in range(arms)})
    expected = q * math.sqrt(arms * (arms + 1) / 12)
    assert found.critical == pytest.approx(expected, abs=0.001 * expected)


def test_where_friedman_finds_nothing_all_are_one_clique() -> None:
    found = ranking({"a": [1, 0, 0, 1], "b": [0, 1, 1, 0], "c": [0.5, 0.5, 0.5, 0.5]})
    assert found.p == pytest.approx(1)
    assert found.cliques == ((0, 2),)


def test_cliques_are_as_long_as_they_can_be() -> None:
    assert cliques([1, 1.5, 2.2, 3.9, 4.0], 1.0) == [(0, 1), (1, 2), (3, 4)]
    assert cliques([1, 1.5, 2.0], 1.0) == [(0, 2)]
    assert cliques([1, 3, 5], 1.0) == []


def test_there_must_be_something_to_rank() -> None:
    with pytest.raises(ValueError, match="two arms or more"):
        ranking({"a": [1.0]})
    with pytest.raises(ValueError, match="the same data sets"):
        ranking({"a": [1.0], "b": [1.0, 2.0]})


def test_friedman_needs_three_arms_and_two_data_sets() -> None:
    assert friedman([[1.0, 2.0], [2.0, 3.0]]) is None
    assert friedman([[1.0, 2.0, 3.0]]) is None
    assert friedman([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]) == 1
    rows = [[0.1, 0.5, 0.3], [0.2, 0.4, 0.3], [0.9, 0.8, 0.7]]
    # Ranks (3, 1, 2), (3, 1, 2), (1, 2, 3): sums 7, 4, 7, so chi^2 = 12/36 * 114 - 36 = 2.
    assert friedman(rows) == pytest.approx(math.exp(-1))


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    assert interquartile_mean([0, 100, 3, 5]) == 4
    assert interquartile_mean([1, 2, 9]) == 4  # a quarter of three is none
    values = list(np.random.default_rng(0).normal(size=37))
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-12)
    with pytest.raises(ValueError, match="at least one"):
        interquartile_mean([])


def test_overall_pools_the_runs_of_all_data_sets() -> None:
    found = overall([[0.1, 0.2, 0.3, 0.4], [0.7, 0.8, 0.9, 1.0]])
    assert found.value == pytest.approx((0.3 + 0.4 + 0.7 + 0.8) / 4)
    assert found.low < found.value < found.high
    assert overall([[0.5], [0.5]]) == (0.5, 0.5, 0.5)


def test_improvement_by_hand() -> None:
    # 1 beats 0; 2 beats 0 and ties with 2: (1 + 0) and (1 + .5) of four pairs; all of the other.
    found = improvement([[1, 2], [5, 6]], [[0, 2], [1, 2]])
    assert found.value == pytest.approx((2.5 / 4 + 1) / 2)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_improvement_is_mann_whitneys_u_and_turns_with_its_sides() -> None:
    source = np.random.default_rng(1)
    ours, theirs = source.normal(0.5, 1, 9), source.normal(0, 1, 7)
    u = stats.mannwhitneyu(ours, theirs).statistic
    found = improvement([list(ours)], [list(theirs)])
    assert found.value == pytest.approx(u / 63)
    assert improvement([list(theirs)], [list(ours)]).value == pytest.approx(1 - u / 63)


def test_improvement_wants_the_same_data_sets() -> None:
    with pytest.raises(ValueError, match="the same ones"):
        improvement([[1.0]], [[1.0], [2.0]])
