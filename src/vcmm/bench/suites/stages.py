"""A suite that looks at its own runs before it asks for more: a search, say, and what it found.

Such a suite is a generator. It yields specs, is sent the runs that are finished by then, and may
yield again; all that it has asked for is the suite. A suite without a question in the middle is a
list. Nothing is remembered between two launches: the runs are there, so a suite that is started
again asks the same questions, gets the same answers at once, and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

from ..records import Run
from ..spec import Spec

Done = Mapping[Spec, Run]
Stages = Generator[list[Spec], Done, None]
Asked = list[Spec] | Stages


def staged(asked: Asked) -> Stages:
    """A suite as a generator, also if it is a list."""
    if isinstance(asked, list):
        yield asked
    else:
        yield from asked


def driven(asked: Asked, train: Callable[[list[Spec]], Done]) -> list[Spec]:
    """All specs that a suite asks for, in the order in which it did.

    Args:
        asked: what the suite gave.
        train: is given the new specs of a stage and returns the runs that they made. A run that
            failed is left out.
    """
    stages = staged(asked)
    done: dict[Spec, Run] = {}
    all_of_them: dict[Spec, None] = {}
    specs = next(stages, None)
    while specs is not None:
        new = [spec for spec in dict.fromkeys(specs) if spec not in all_of_them]
        all_of_them.update(dict.fromkeys(new))
        if new:
            done.update(train(new))
        try:
            specs = stages.send(done)
        except StopIteration:
            specs = None
    return list(all_of_them)
