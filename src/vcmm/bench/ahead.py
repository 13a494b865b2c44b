"""Batches made ahead by threads, in order: decoding and augmenting leave Python's lock alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Job = TypeVar("Job")
Made = TypeVar("Made")

LEAD = 2  # jobs in hand for every thread


def ahead(make: Callable[[Job], Made], jobs: Iterable[Job], threads: int) -> Generator[Made]:
    """`map(make, jobs)`, up to some jobs ahead of who asks; without threads, `map` itself."""
    if not threads:
        yield from map(make, jobs)
        return
    queue = iter(jobs)
    with ThreadPoolExecutor(threads, thread_name_prefix="batches") as pool:
        waiting: deque[Future[Made]] = deque(
            pool.submit(make, job) for job in islice(queue, LEAD * threads)
        )
        try:
            while waiting:
                made = waiting.popleft().result()
                waiting.extend(pool.submit(make, job) for job in islice(queue, 1))
                yield made
        finally:
            for future in waiting:
                future.cancel()
