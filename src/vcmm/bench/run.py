"""`run(spec)`: from a spec to a folder of records, in one piece or in many.

Interrupted at any moment, it goes on from its last checkpoint, and the records come out the same
bytes. What it costs and where it ran is recorded too, but apart: those differ from run to run.
"""

from __future__ import annotations

import math
import os
import platform
import socket
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from . import data as data_sets
from . import folder, judge
from .build import Training, build, momenta
from .encoders.weights import digest
from .events import Event, Kind
from .execution import Execution
from .folder import Lines
from .memory import held_bytes, peak_bytes
from .spec import RESULT_VERSION, Spec, run_hash
from .train import EpochEnded, Progress, Stepped, fit
from .types import Data

ROWS = 400  # about as many steps of a run are written down
DEFAULT = Execution()
COUNTS = ("forwards", "backwards", "updates")
RECORDED = ("recorded_forwards", "recorded_backwards")  # beside the training

Watch = Callable[[Event], None]


def run(
    spec: Spec,
    root: str | Path = "runs",
    *,
    execution: Execution = DEFAULT,
    checkpoint_every: float = 10.0,
    watch: Watch | None = None,
) -> Path:
    """Train what the spec says, unless its record is there already, and return the record's folder.

    Args:
        spec: what to train.
        root: where the records of all runs lie.
        execution: where and how.
        checkpoint_every: so many seconds; 0 is after every step.
        watch: is told of everything that happens.
    """
    root = Path(root)
    data = data_sets.load(spec.data.name, **spec.data.options)
    identity = identity_of(spec, data, execution)
    teller = Teller(watch, identity, spec)
    if folder.is_done(root, identity):
        folder.tidy(root, identity)
        teller.tell("cached")
        return root / identity
    with folder.locked(root, identity) as work, repeatable(execution.threads):
        if folder.is_done(root, identity):  # by the process that held the lock before
            work.rmdir()
            teller.tell("cached")
            return root / identity
        (work / "error.txt").unlink(missing_ok=True)  # of an earlier attempt
        try:
            with closing(Record(work, spec, data, identity, execution)) as record:
                record.make(checkpoint_every, teller)
        except Exception:
            (work / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            raise
        path = folder.publish(root, identity, work)
    teller.tell("done", step=record.training.steps, steps=record.training.steps)
    return path


def identity_of(spec: Spec, data: Data, execution: Execution = DEFAULT) -> str:
    """The hash of a run, whose files of weights are looked at for it."""
    return run_hash(spec, data.hash, execution, weights_of(spec))


def weights_of(spec: Spec) -> dict[str, str]:
    """The sha256 of every file that an encoder starts from, by its path."""
    encoders = (spec.encoder, *spec.encoders.values())
    files = {str(one.options["weights"]) for one in encoders if one.options.get("weights")}
    return {path: digest(path) for path in sorted(files)}


@contextmanager
def repeatable(threads: int) -> Generator[None]:
    """torch as every run finds it; afterwards it is as the caller had it, randomness included."""
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # or its sums differ from run to run
    had, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("error")  # deterministic, or not at all
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.set_num_threads(had)


@dataclass(frozen=True, slots=True)
class Teller:
    """Tells what happens to whoever watches."""

    watch: Watch | None
    run: str
    spec: Spec

    def tell(self, kind: Kind, **more: Any) -> None:
        if self.watch is not None:
            spec = self.spec
            self.watch(Event(kind, self.run, spec.to_json(), epochs=spec.epochs, **more))


class Record:
    """A run in the making: the training and the files that it fills."""

    def __init__(
        self, work: Path, spec: Spec, data: Data, identity: str, execution: Execution
    ) -> None:
        self.work = work
        self.spec = spec
        self.execution = execution
        weights = weights_of(spec)
        folder.write_json(
            work / "spec.json",
            {
                "result_version": RESULT_VERSION,
                "data_hash": data.hash,
                "metric": "map" if data.multilabel else "accuracy",
                **execution.identity(),
                **({"weights": weights} if weights else {}),
                "spec": spec.to_json(),
            },
        )
        self.training: Training = build(spec, data, execution)
        self.progress = Progress()
        self.attempt = 1
        self.started = now()
        self.seconds = 0.0  # of training, in this epoch
        self.cost: Counter[str] = Counter()  # of this epoch
        sizes = self._resume() if (work / "checkpoint.pt").exists() else dict[str, int]()
        self.lines = {
            name: Lines(work / name, sizes.get(name, 0)) for name in (*folder.RECORDS, "cost.jsonl")
        }
        self.saved = time.monotonic()

    def make(self, checkpoint_every: float, teller: Teller) -> None:
        """Train to the end and write down what is left to be written."""
        training, spec = self.training, self.spec
        every = max(1, training.steps // ROWS)
        at = {"epoch": self.progress.epoch, "step": self.progress.step, "steps": training.steps}
        teller.tell("started", **at)
        fitting = fit(
            training.method,
            training.data,
            training.schedule,
            epochs=spec.epochs,
            batch_size=spec.batch_size,
            seed=spec.seed,
            progress=self.progress,
            loaders=self.execution.workers,
        )
        with closing(fitting) as events:  # interrupted or not, no loader is left behind
            while (event := self._timed(events)) is not None:
                at = {"epoch": event.epoch, "step": event.step, "steps": training.steps}
                if isinstance(event, EpochEnded):
                    teller.tell("epoch", **at, values=self._judged(event))
                    self._count_cost(event.epoch)
                elif event.step % every == 0 or event.step == 1 or self._recorded():
                    teller.tell("step", **at, values=self._written(event))
                if time.monotonic() - self.saved >= checkpoint_every:
                    self._save()
        self._finish()

    def _timed(self, events: Any) -> Stepped | EpochEnded | None:
        """The next event; the time until then was spent on training alone."""
        start = time.perf_counter()
        event = next(events, None)
        self.seconds += time.perf_counter() - start
        if isinstance(event, Stepped):
            self.cost["steps"] += 1
            self.cost["samples"] += event.samples
        return event

    def _recorded(self) -> bool:
        """Whether a recorder measured something in this step."""
        recorder = self.training.recorder
        return recorder is not None and recorder.measured

    def _written(self, event: Stepped) -> dict[str, float]:
        """A row of steps.jsonl."""
        recorder = self.training.recorder
        found = {} if recorder is None else recorder.taken()
        values = {"lr": event.lr, **numbers(event.values), **momenta(self.training), **found}
        values = finite(values)
        self.lines["steps.jsonl"].write(
            {"step": event.step, "epoch": event.epoch, "values": values}
        )
        return values

    def _judged(self, event: EpochEnded) -> dict[str, float]:
        """Rows of evals.jsonl, valid first; returns what valid shows."""
        training = self.training
        last = event.epoch == self.spec.epochs - 1
        loaders = self.execution.workers
        probes = judge.probe(training.method, training.data, loaders) if last else {}
        values: dict[str, dict[str, float]] = {}
        for split in ("valid", "test"):
            found = judge.evaluate(training.method, training.data, split, loaders)
            values[split] = finite({**found, **probes.get(split, {})})
            row = {"epoch": event.epoch, "step": event.step, "split": split}
            self.lines["evals.jsonl"].write({**row, "values": values[split]})
        return values["valid"]

    def _count_cost(self, epoch: int) -> None:
        """A row of cost.jsonl."""
        counts = self.training.method.counts
        row = {"attempt": self.attempt, "epoch": epoch, "seconds": round(self.seconds, 6)}
        row |= {name: int(self.cost[name]) for name in ("steps", "samples")}
        row |= {name: counts[name] for name in COUNTS}
        row |= {name: counts[name] for name in RECORDED if name in counts}
        self.lines["cost.jsonl"].write(row)
        self.seconds = 0.0
        self.cost.clear()
        counts.clear()

    def _save(self) -> None:
        """Write the checkpoint, atomically, once all that belongs to it is on the disk."""
        training = self.training
        state = {
            "sizes": {name: lines.sync() for name, lines in self.lines.items()},
            "progress": asdict(self.progress),
            "method": training.method.state_dict(),
            "optimizer": training.method.optimizer.state_dict(),
            "schedule": training.schedule.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.on_cuda else None,
            "attempt": self.attempt,
            "started": self.started,
            "seconds": self.seconds,
            "cost": dict(self.cost),
            "counts": dict(training.method.counts),
        }
        temporary = self.work / "checkpoint.tmp"
        torch.save(state, temporary)
        folder.sync(temporary)
        os.replace(temporary, self.work / "checkpoint.pt")
        self.saved = time.monotonic()

    def _resume(self) -> dict[str, int]:
        """Go back to the checkpoint. Returns how long the files were then."""
        training = self.training
        # What belongs on the device is copied there by whoever takes it.
        state = torch.load(self.work / "checkpoint.pt", map_location="cpu", weights_only=True)
        training.method.load_state_dict(state["method"])
        training.method.optimizer.load_state_dict(state["optimizer"])
        training.schedule.load_state_dict(state["schedule"])
        training.method.counts.update(state["counts"])
        torch.set_rng_state(state["random"])
        if self.on_cuda:
            torch.cuda.set_rng_state(state["random_cuda"], self.device)
        self.progress = Progress(**state["progress"])
        self.attempt = state["attempt"] + 1
        self.started = state["started"]
        self.seconds = state["seconds"]
        self.cost.update(state["cost"])
        return state["sizes"]

    def _finish(self) -> None:
        """What it took in memory, and where it ran."""
        self.lines["cost.jsonl"].write({"attempt": self.attempt, "peak_bytes": self._peak()})
        for lines in self.lines.values():
            lines.sync()
        environment = {
            **machine(),
            "device": str(self.device),
            "execution": self.execution.to_json(),
            "threads": self.execution.threads,
            "started": self.started,
            "finished": now(),
            "attempts": self.attempt,
        }
        folder.write_json(self.work / "env.json", environment)

    @property
    def device(self) -> torch.device:
        """Where it is trained."""
        return self.training.method.device

    @property
    def on_cuda(self) -> bool:
        """Whether the device draws randomness of its own."""
        return self.device.type == "cuda"

    def close(self) -> None:
        """Nothing more will be written; least of all later, into the files of another attempt."""
        for lines in self.lines.values():
            lines.close()

    def _peak(self) -> int:
        """Of two more steps, whose outcome nobody will see, on top of what lies there anyway."""
        training, spec = self.training, self.spec
        batch = training.data.batch("train", torch.arange(spec.batch_size).clamp_max_(self._last))
        batch = batch.to(training.method.device)
        held = held_bytes(training.method, training.method.optimizer)

        def two_steps() -> None:
            training.method.train()
            for _ in range(2):
                training.method.step(batch)

        return held + peak_bytes(two_steps, training.method.device)

    @property
    def _last(self) -> int:
        return len(self.training.data.splits["train"]) - 1


def numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    """By one copy from the device for all of them."""
    host = cast(list[float], torch.stack(list(values.values())).tolist())
    return dict(zip(values, host, strict=True))


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """JSON has no infinity and no nan: what is neither is left out, and so reads as undefined."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def now() -> str:
    """The time, in words that sort."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    """Where and with what this process runs."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "vcmm": version("vcmm"),
        "commit": commit(),
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "host": socket.gethostname(),
    }


def commit() -> str:
    """The commit that the package's own source is at, or "" if it is not in a checkout of it."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "log", "-1", "--format=%H", "--", str(here)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
