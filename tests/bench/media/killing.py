"""Prepares a collection over and over, killed at chosen moments, until it is complete.

A program of its own, because it forks: also the processes that decode are forked here, which saves
them the imports. `test_prepare.py` calls it with a folder and reads what it prints.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import letters

from vcmm.bench.media import crew
from vcmm.bench.media.prepare import Progress, prepare

COUNT = 24
Hook = Callable[..., Any]


def prepared(root: Path, cache: Path, watch: Callable[[Progress], object]) -> None:
    """Once those who were killed have given their lock back."""
    until = time.monotonic() + 20
    while True:
        try:
            prepare(letters.COLLECTION, root, {}, cache=cache, workers=2, watch=watch)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def forked(work: Callable[[], object]) -> int:
    """The exit code of a child, which takes with it all that it has started; -9 if killed."""
    pid = os.fork()
    if not pid:
        code = 1
        os.setsid()
        try:
            work()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hooked(place: Any, name: str, nth: int, mark: Path, *, after: bool, worker: bool) -> None:
    """Have the nth call of a function be the last of the first process that comes to it."""
    real, parent, calls = getattr(place, name), os.getpid(), [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        here = (os.getpid() != parent) == worker
        calls[0] += here
        if not here or calls[0] != nth or mark.exists():
            return real(*args, **kwargs)
        mark.touch()
        try:
            return real(*args, **kwargs) if after else None
        finally:
            suicide()

    setattr(place, name, counted)


def whole(root: Path, cache: Path, least: int = 0) -> None:
    """Bring it to its end; at least so many samples are not decoded again."""
    began: list[int] = []

    def watch(progress: Progress) -> None:
        if progress.stage == "decoding":
            began.append(progress.done)

    assert forked(lambda: _checked(root, cache, watch, began, least)) == 0, cache


def _checked(
    root: Path, cache: Path, watch: Callable[[Progress], object], began: list[int], least: int
) -> None:
    prepared(root, cache, watch)
    assert began[0] >= least, f"{began[0]} of {least} samples were kept"


def kill_when_told(root: Path, cache: Path) -> list[str]:
    """Kill whoever prepares at many events that it tells of, and go on."""
    caches: list[str] = []
    for stop in (1, 2, 3, 9, 17, 24, 25, 26, 30, 60, 70):
        where = cache / f"event-{stop}"
        kept = where.with_suffix(".kept")

        def watch(progress: Progress, stop: int = stop, seen: list[int] = [0]) -> None:  # noqa: B006
            seen[0] += 1
            if progress.stage == "decoding":
                kept.write_text(str(progress.done))  # noqa: B023 - it is called in here
            if seen[0] == stop:
                suicide()

        code = forked(lambda: prepared(root, where, watch))  # noqa: B023
        assert code == -signal.SIGKILL, (stop, code)
        assert not list(where.glob("letters-*")), stop
        whole(root, where, int(kept.read_text()))
        caches.append(str(where))
    return caches


MOMENTS = {  # of a function: which process, and which of its calls
    ("replace", "parent"): (os, (1, 2)),  # the manifest, the store
    ("replace", "worker"): (os, (1, 2)),  # parts
    ("fsync", "parent"): (os, (1, 3, 6)),
    ("fsync", "worker"): (os, (1,)),
    ("rmtree", "parent"): (shutil, (1, 2, 3)),
}


def kill_at_moments(root: Path, cache: Path) -> list[str]:
    """Kill whoever prepares, or a process that decodes, before and after what must not be cut."""
    caches: list[str] = []
    for (name, who), (place, calls) in MOMENTS.items():
        for nth in calls:
            for after in (False, True):
                where = cache / f"{name}-{who}-{nth}-{'after' if after else 'before'}"
                mark = where.with_suffix(".mark")

                def work(
                    where: Path = where,
                    aim: tuple[Any, str, int, Path] = (place, name, nth, mark),
                    who: str = who,
                    after: bool = after,
                ) -> None:
                    hooked(*aim, after=after, worker=who == "worker")
                    prepared(root, where, repr)

                code = forked(work)
                assert mark.exists(), f"{where.name} did not come to pass"
                assert code == (0 if who == "worker" else -signal.SIGKILL), (where.name, code)
                whole(root, where)
                caches.append(str(where))
    return caches


def replace_killed(root: Path, cache: Path) -> list[str]:
    """Kill whoever replaces a store by that of changed lists, while neither is in place."""
    caches: list[str] = []
    for nth in (2, 3):  # the old one steps aside, the new one takes its place
        where = cache / f"again-{nth}"
        whole(root, where)
        (store,) = where.glob("letters-*")
        manifest = json.loads((store / "manifest.json").read_text())
        manifest["remarks"] = ["of another time"]
        (store / "manifest.json").write_text(json.dumps(manifest))
        mark = where.with_suffix(".mark")

        def work(nth: int = nth, where: Path = where, mark: Path = mark) -> None:
            hooked(os, "replace", nth, mark, after=nth == 2, worker=False)
            prepared(root, where, repr)

        assert forked(work) == -signal.SIGKILL
        assert not list(where.glob("letters-*")), "there is a moment without a store"
        whole(root, where, COUNT)
        caches.append(str(where))
    return caches


def full(root: Path, cache: Path) -> list[dict[str, Any]]:
    """Files can only be so large: too small for parts, and too small for the store."""
    found: list[dict[str, Any]] = []
    for limit in (500, 6000):
        where = cache / f"full-{limit}"
        said = where.with_suffix(".said")

        def work(limit: int = limit, where: Path = where, said: Path = said) -> None:
            # What is said has to fit.
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                prepared(root, where, repr)
            except OSError as error:
                said.write_text(str(error))
                return
            raise AssertionError("it was not full")

        assert forked(work) == 0
        parts = len(list(where.glob(".work/*/parts/*.part")))
        found.append({"cache": str(where), "said": said.read_text(), "parts": parts})
        whole(root, where, COUNT if parts else 0)
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    real = multiprocessing.get_context
    crew.multiprocessing.get_context = lambda _: real("fork")
    root = letters.write(folder / "root", COUNT)
    whole(root, folder / "clean")
    report = {
        "clean": str(folder / "clean"),
        "told": kill_when_told(root, folder),
        "moments": kill_at_moments(root, folder),
        "replaced": replace_killed(root, folder),
        "full": full(root, folder),
    }
    print(json.dumps(report))  # noqa: T201 - that is how it reports


if __name__ == "__main__":
    main()
