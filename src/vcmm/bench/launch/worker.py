"""A worker: a process that runs one spec after another and reports what happens.

It imports torch once and keeps the data that it has loaded. It ends when it is told to, and also
when its parent is gone, however that came about: killing it is always safe, because a run continues
bit-exactly from its last checkpoint.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..events import Event
from ..execution import Execution

if TYPE_CHECKING:
    from ..spec import Spec

SpecJson = Mapping[str, Any]
STOP = "stop"
_GLANCE = 1.0  # seconds between two looks at whether the parent still lives


class Stopped(BaseException):
    """Leave the run that is being trained. Not an Exception, for nothing has failed."""


class Inbox:
    """What the parent sends, read by a thread, so that its end is noticed during a step too."""

    def __init__(self, link: Connection, parent: int) -> None:
        self.stopped = threading.Event()
        self._link, self._parent = link, parent
        self._specs = queue.SimpleQueue[SpecJson | None]()
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> SpecJson | None:
        """The next spec to run; None when there is none any more."""
        return self._specs.get()

    def _listen(self) -> None:
        while True:
            try:
                while not self._link.poll(_GLANCE):
                    if os.getppid() != self._parent:
                        raise EOFError
                message = self._link.recv()
            except (EOFError, OSError):
                os._exit(1)  # nobody is there to report to, and the record is safe
            if message == STOP:
                self.stopped.set()
                self._specs.put(None)
                return
            self._specs.put(message)


class Reporter:
    """Sends the events of one spec, and leaves the run once the parent has said stop."""

    def __init__(self, link: Connection, inbox: Inbox, spec: SpecJson) -> None:
        self.last = Event("started", "", spec)
        self._link, self._inbox = link, inbox

    def __call__(self, event: Event) -> None:
        self._link.send(event)
        self.last = event
        if self._inbox.stopped.is_set() and event.kind in ("started", "step", "epoch"):
            raise Stopped

    def end(self, event: Event) -> None:
        """The last event, unless the run has already sent one of its kind."""
        if self.last.kind != event.kind:
            self(event)


def work(
    tasks: Connection,
    events: Connection,
    output: Connection,
    root: Path,
    execution: Execution,
    checkpoint_every: float,
    parent: int,
) -> None:
    """Run the specs that arrive on `tasks` until told to stop; after each, send None."""
    # The terminal sends Ctrl-C to everybody, but it is the parent that decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output.fileno(), stream.fileno())
    output.close()
    inbox = Inbox(tasks, parent)
    while (spec := inbox.next()) is not None:
        try:
            _run(spec, root, execution, checkpoint_every, Reporter(events, inbox, spec))
        except Stopped:
            return
        events.send(None)


def _run(
    spec: SpecJson, root: Path, execution: Execution, checkpoint_every: float, report: Reporter
) -> None:
    from ..folder import Busy
    from ..run import run
    from ..spec import Spec

    given = Spec.from_json(spec)
    try:
        run(given, root, execution=execution, checkpoint_every=checkpoint_every, watch=report)
    except Busy:
        report.end(replace(report.last, kind="busy"))
    except Exception:  # noqa: BLE001  one failed run must not stop the others
        error = traceback.format_exc()
        name = report.last.run or _name(given, execution)
        report.end(replace(report.last, kind="failed", run=name, error=error))


def _name(spec: Spec, execution: Execution) -> str:
    """The hash of a run that failed before it told anything; "" if its data cannot be loaded."""
    from ..data import load
    from ..run import identity_of

    try:
        data = load(spec.data.name, **spec.data.options)
    except (ValueError, OSError):
        return ""
    return identity_of(spec, data, execution)
