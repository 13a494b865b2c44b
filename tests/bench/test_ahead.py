"""Batches made ahead: the same ones in the same order, and no thread is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from vcmm.bench.ahead import LEAD, ahead

THREADS = (0, 1, 3)


def loaders() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("batches")]


def in_turn(number: int) -> Callable[[int], int]:
    """Squares, of which every other one is made only after the one that follows it."""
    made = [threading.Event() for _ in range(number)]

    def make(job: int) -> int:
        if job % 2 == 0 and job + 1 < number:
            assert made[job + 1].wait(60)
        made[job].set()
        return job * job

    return make


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("jobs", [0, 1, 5, 40])
def test_it_is_map(jobs: int, threads: int) -> None:
    assert list(ahead(lambda job: job * job, range(jobs), threads)) == [j * j for j in range(jobs)]
    assert not loaders()


def test_what_is_ready_first_waits_for_its_turn() -> None:
    made = list(ahead(in_turn(20), range(20), 2))
    assert made == [job * job for job in range(20)]


@pytest.mark.parametrize("threads", THREADS)
def test_jobs_are_taken_only_so_far_ahead(threads: int) -> None:
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for job in range(100):
            taken.append(job)
            yield job

    with closing(ahead(lambda job: job, jobs(), threads)) as made:
        assert next(made) == 0
        assert len(taken) == (LEAD * threads + 1 if threads else 1)
    assert len(taken) < 100


@pytest.mark.parametrize("threads", THREADS)
def test_an_error_comes_at_its_place(threads: int) -> None:
    def make(job: int) -> int:
        if job == 3:
            raise ValueError("row 3 cannot be read")
        return job

    seen: list[int] = []
    with pytest.raises(ValueError, match="row 3 cannot be read"):
        seen.extend(ahead(make, range(9), threads))
    made = ahead(make, range(9), threads)
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="row 3"):
        next(made)
    assert list(made) == []
    assert not loaders()


@pytest.mark.parametrize("threads", THREADS)
def test_an_error_among_the_jobs_comes_too(threads: int) -> None:
    def jobs() -> Iterator[int]:
        yield from range(9)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        list(ahead(lambda job: job, jobs(), threads))
    assert not loaders()


@pytest.mark.parametrize("threads", [1, 3])
def test_closing_early_leaves_no_thread_and_makes_no_more(threads: int) -> None:
    begun: list[int] = []

    def make(job: int) -> int:
        begun.append(job)
        return job

    made = ahead(make, range(1000), threads)
    assert next(made) == 0
    assert 1 <= len(loaders()) <= threads
    made.close()
    assert not loaders()
    assert len(begun) <= LEAD * threads + 1


def test_one_that_was_never_asked_starts_nothing() -> None:
    made = ahead(lambda job: job, range(5), 2)
    assert not loaders()
    made.close()
    assert not loaders()
