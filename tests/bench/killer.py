"""Runs sweeps whose processes are killed, at random and at chosen moments, until they are complete.

A program of its own, because it forks: it imports what takes long, but starts no thread.
`test_kills.py` calls it with a folder and reads what it prints.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from toys import tiny, warm

from vcmm.bench import folder
from vcmm.bench.run import run
from vcmm.bench.spec import Choice, Spec

KILLS = 30
SWEEP = [
    tiny(controller="vcmm", epochs=3),
    tiny(method="multi_loss", optimizer="sgd", schedule="one_cycle"),
    tiny(3, method="ensemble", controller=Choice("frozen", after=0.5, average=0.3)),
    tiny(method="unimodal", optimizer="adamw", epochs=3),
]
ONE = SWEEP[:1]
Hook = Callable[..., Any]


def sweep(specs: list[Spec], root: Path, every: float) -> None:
    for spec in specs:
        run(spec, root, checkpoint_every=every)


def forked(work: Callable[[], object]) -> int:
    """A child that does this, and nothing of what its parent still has to do."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)
    raise AssertionError


def ended(pid: int) -> bool:
    """Wait for a child; whether it came to its end. It fails if the child failed."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    assert os.waitstatus_to_exitcode(status) == 0, "a run failed; see above"
    return True


def kill_at_random(root: Path, seconds: float) -> dict[str, Any]:
    """Kill sweeps until enough was killed; every sweep goes on until it is complete."""
    chance = random.Random(20)
    kills = cut = 0
    roots: list[Path] = []
    while kills < KILLS:
        roots.append(root / f"random-{len(roots)}")
        every = (0.0, 0.0, 0.01)[len(roots) % 3]
        while True:
            pid = forked(lambda where=roots[-1], every=every: sweep(SWEEP, where, every))
            if kills < KILLS:
                time.sleep(chance.uniform(0.0, seconds))
                os.kill(pid, signal.SIGKILL)  # a child that has ended is there until we wait
            if ended(pid):
                break
            kills += 1
            cut += any((roots[-1] / ".work").glob("*/checkpoint.pt"))
    return {"kills": kills, "cut": cut, "roots": list(map(str, roots))}


def suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# What may be the last thing that a process does. Each is told what is really to be done.


def before(real: Hook, *args: Any, **kwargs: Any) -> None:
    suicide()


def after(real: Hook, *args: Any, **kwargs: Any) -> None:
    try:
        real(*args, **kwargs)
    finally:  # there may be nothing to be removed
        suicide()


def half_a_checkpoint(real: Hook, state: Any, path: Path) -> None:
    buffer = io.BytesIO()
    real(state, buffer)
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    suicide()


def half_a_row(real: Hook, lines: Any, row: Any) -> None:
    real(lines, row)
    lines._file.flush()
    lines._file.truncate(lines._file.tell() - 9)
    suicide()


MOMENTS: dict[str, tuple[Any, str, Hook]] = {
    "half a checkpoint": (torch, "save", half_a_checkpoint),
    "half a row": (folder.Lines, "write", half_a_row),
    "before a file is in place": (os, "replace", before),
    "after a file is in place": (os, "replace", after),
    "before a file is on the disk": (os, "fsync", before),
    "after a file is removed": (os, "unlink", after),
    "before a file is removed": (os, "unlink", before),
    "before a folder is made": (os, "mkdir", before),
    "after a folder is made": (os, "mkdir", after),
}


def hooked(place: Any, name: str, nth: int, hook: Hook, calls: Counter[str]) -> None:
    """Let a hook stand in for the nth call of a function. For good: only a child does this."""
    real = getattr(place, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return hook(real, *args, **kwargs) if calls[name] == nth else real(*args, **kwargs)

    setattr(place, name, counted)


def counts(root: Path) -> dict[str, int]:
    """How often one run calls what the moments are about."""
    calls: Counter[str] = Counter()

    def work() -> None:
        for place, name in {(place, name) for place, name, _ in MOMENTS.values()}:
            hooked(place, name, 0, before, calls)
        sweep(ONE, root, 0.0)
        (root / "counts.json").write_text(json.dumps(calls))

    assert ended(forked(work))
    return json.loads((root / "counts.json").read_text())


def spread(count: int) -> Iterator[int]:
    """The first, the last, and some between."""
    yield from sorted({1, 2, count // 3, 2 * count // 3, count - 1, count} - {0, -1})


def kill_at_moments(root: Path) -> dict[str, Any]:
    """One run for each moment, killed then, and afterwards brought to its end."""
    calls = counts(root / "counted")
    roots: list[Path] = []
    for label, (place, name, hook) in MOMENTS.items():
        for nth in spread(calls[name]):
            where = root / f"{label.replace(' ', '-')}-{nth}-of-{calls[name]}"

            def work(
                where: Path = where,
                aim: tuple[Any, str, int, Hook] = (place, name, nth, hook),
            ) -> None:
                hooked(*aim, Counter())
                sweep(ONE, where, 0.0)

            assert not ended(forked(work)), f"{where.name} was not killed"
            assert ended(forked(lambda where=where: sweep(ONE, where, 0.0)))
            roots.append(where)
    return {"roots": list(map(str, roots))}


def main() -> None:
    root = Path(sys.argv[1])
    warm()  # what is imported now, no child has to import
    start = time.monotonic()
    assert ended(forked(lambda: sweep(SWEEP, root / "whole", 0.0)))
    seconds = (time.monotonic() - start) / len(SWEEP)
    report = {
        "whole": str(root / "whole"),
        "random": kill_at_random(root, seconds),
        "moments": kill_at_moments(root),
    }
    print(json.dumps(report))  # noqa: T201 - that is how it reports


if __name__ == "__main__":
    main()
