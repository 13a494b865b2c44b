"""Worker processes: what they run, what they survive, and how they end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vcmm.bench.data import load
from vcmm.bench.events import Event
from vcmm.bench.folder import locked
from vcmm.bench.launch import cores, launch
from vcmm.bench.spec import Choice, Spec, run_hash

pytestmark = [pytest.mark.slow, pytest.mark.distributed]
RECORDS = ("spec.json", "steps.jsonl", "evals.jsonl")
PATIENCE = 60.0  # seconds until something that should happen soon counts as not happening


def tiny(**changes: object) -> Spec:
    settings: dict[str, object] = {
        "data": Choice("synthetic", samples=64, size=4),
        "encoder": Choice("mlp", width=4, outputs=4),
        "epochs": 2,
        "batch_size": 16,
    }
    return Spec(**{**settings, **changes})  # pyright: ignore[reportArgumentType]


LONG = {"epochs": 100, "controller": Choice("vcmm")}


def until(fact: Callable[[], object]) -> None:
    """Wait for it; a deadline only bounds how long a broken test hangs."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def the_bytes(root: Path) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(root.glob("*/*"))
        if path.name in RECORDS
    }


def kinds(events: list[Event], spec: Spec) -> list[str]:
    return [e.kind for e in events if e.spec == spec.to_json() and e.kind not in ("step", "epoch")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The records of the long run, in one go."""
    root = tmp_path_factory.mktemp("undisturbed")
    assert [e.kind for e in launch([tiny(**LONG)], root, threads=1)][-1] == "done"
    return the_bytes(root)


def test_a_failed_run_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    good, other = tiny(), tiny(seed=1)
    bad = tiny(encoder=Choice("conv1d"))  # the data are vectors
    events = list(launch([bad, good, other, good], tmp_path, workers=2, threads=1))
    assert kinds(events, good) == kinds(events, other) == ["started", "done"]
    assert kinds(events, bad)[-1] == "failed"
    failed = next(e for e in events if e.kind == "failed")
    assert failed.error.startswith("Traceback")
    assert "conv1d" in failed.error or "sequence" in failed.error
    story = (tmp_path / ".work" / failed.run / "error.txt").read_text()
    assert story.splitlines()[-1] == failed.error.splitlines()[-1]
    done = [e.run for e in events if e.kind == "done"]
    assert sorted(p.parent.name for p in tmp_path.glob("*/done")) == sorted(done)
    assert multiprocessing.active_children() == []
    # And again: what is done is there, what failed is tried anew.
    again = list(launch([good, bad], tmp_path, threads=1))
    assert kinds(again, good) == ["cached"]
    assert kinds(again, bad)[-1] == "failed"
    # The number of workers changes no record.
    list(launch([good, other], tmp_path / "one", threads=1))
    assert len(the_bytes(tmp_path)) == 2 * len(RECORDS)
    assert the_bytes(tmp_path / "one") == the_bytes(tmp_path)


def test_a_killed_worker_is_replaced_and_its_run_continues_bitwise(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    spec, kills = tiny(**LONG), 0
    events: list[Event] = []
    for event in launch([spec], tmp_path, threads=1, checkpoint_every=0.0):
        events.append(event)
        if event.kind == "step" and event.step > 100 and kills == 0:
            (child,) = multiprocessing.active_children()
            os.kill(child.pid or 0, signal.SIGKILL)
            kills = 1
    assert kinds(events, spec) == ["started", "started", "done"]
    assert [e.step for e in events if e.kind == "started"][1] >= 100
    assert the_bytes(tmp_path) == undisturbed


def test_a_run_whose_worker_dies_every_time_fails_and_says_so(tmp_path: Path) -> None:
    spec, next_one = tiny(**LONG), tiny()
    events: list[Event] = []
    for event in launch([spec, next_one], tmp_path, threads=1):
        events.append(event)
        if event.kind == "started" and event.spec == spec.to_json():
            (child,) = multiprocessing.active_children()
            os.kill(child.pid or 0, signal.SIGKILL)
    assert kinds(events, spec) == ["started", "started", "failed"]
    assert kinds(events, next_one) == ["started", "done"]
    failed = next(e for e in events if e.kind == "failed")
    assert "signal 9 (SIGKILL)" in failed.error
    assert (tmp_path / ".work" / failed.run / "error.txt").read_text() == failed.error


def test_a_spec_that_another_process_runs_is_waited_for(tmp_path: Path) -> None:
    mine, theirs = tiny(), tiny(seed=1)
    data = load(theirs.data.name, **theirs.data.options)
    run = run_hash(theirs, data.hash)
    events: list[Event] = []
    with ExitStack() as elsewhere:
        elsewhere.enter_context(locked(tmp_path, run))
        for event in launch([theirs, mine], tmp_path, threads=1):
            events.append(event)
            if event.kind == "done" and event.spec == mine.to_json():
                elsewhere.close()  # the other process gives up, or is killed
    assert kinds(events, mine) == ["started", "done"]
    assert kinds(events, theirs) == ["busy", "started", "done"]


def test_closing_the_launch_ends_its_workers(tmp_path: Path) -> None:
    events = launch([tiny(**LONG)], tmp_path, threads=1)
    assert next(events).kind == "started"
    (child,) = multiprocessing.active_children()
    events.close()
    assert not child.is_alive()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("name", "value"), [("workers", 0), ("threads", 0)])
def test_counts_start_at_one(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        next(launch([], tmp_path, **{name: value}))


def test_there_is_a_core() -> None:
    assert cores() >= 1


# Whole processes

DATA = "--data synthetic --data.samples 64 --data.size 4"
MODEL = "--encoder mlp --encoder.width 4 --encoder.outputs 4"
TRAINING = "--epochs 100 --batch-size 16 --controller vcmm --plain"
LONG_RUN = [*DATA.split(), *MODEL.split(), *TRAINING.split()]


def start(*arguments: str, **settings: object) -> subprocess.Popen[str]:
    """`vcmm`, at the head of a process group of its own, as a terminal would have it."""
    return subprocess.Popen(
        [sys.executable, "-c", "from vcmm.bench.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **settings,  # pyright: ignore[reportArgumentType, reportCallIssue]
    )


def group(leader: int) -> Iterator[int]:
    """The living processes of a group."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgid, *_ = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(pgid) == leader and state != "Z":
            yield int(path.parent.name)


def begun(root: Path) -> bool:
    """Whether a run has its first checkpoint."""
    return any(root.glob(".work/*/checkpoint.pt"))


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's /proc")


@linux
def test_ctrl_c_leaves_in_order_and_the_same_command_continues_to_the_same_bytes(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    command = ["run", *LONG_RUN, "--runs", str(tmp_path), "--checkpoint-every", "0"]
    process = start(*command)
    until(lambda: begun(tmp_path))
    os.killpg(process.pid, signal.SIGINT)  # everybody gets it, as from a terminal
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "0 of 1 runs are complete" in err
    assert f"vcmm run --data synthetic {' '.join(command[3:])}" in err
    assert "Traceback" not in err
    until(lambda: not list(group(process.pid)))
    assert not list(tmp_path.glob("*/done"))
    process = start(*command)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "continues at step" in out
    assert the_bytes(tmp_path) == undisturbed


@linux
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    process = start("run", *LONG_RUN, "--runs", str(tmp_path), "--checkpoint-every", "0")
    until(lambda: begun(tmp_path))
    assert len(list(group(process.pid))) >= 2
    process.kill()
    process.communicate()
    until(lambda: not list(group(process.pid)))
