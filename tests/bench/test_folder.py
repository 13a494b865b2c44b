"""Locks between real processes, folders that appear whole or not at all, lines cut back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from vcmm.bench import folder
from vcmm.bench.folder import Busy, Lines, is_done, locked, publish, tidy, write_json

RUN = "0123456789abcdef"


@contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process of its own; it is gone in the end."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stdin=pipe, text=True) as made:
        try:
            yield made
        finally:
            made.kill()


def line(made: subprocess.Popen[str]) -> str:
    assert made.stdout is not None
    return made.stdout.readline().strip()


HOLD = """
    import sys
    from pathlib import Path
    from vcmm.bench.folder import locked
    with locked(Path(sys.argv[1]), sys.argv[2]):
        print("held", flush=True)
        sys.stdin.readline()
    print("given back", flush=True)
"""

CONTEND = """
    # Each takes the lock again and again. Whoever has it must find nobody else who has it.
    import os, random, sys, time
    from pathlib import Path
    from vcmm.bench import folder

    root, run, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    chance = random.Random(seed)
    flock = folder.fcntl.flock

    def slowly(descriptor, how):
        time.sleep(chance.random() * 0.002)  # opened, but not locked yet: the owner may unlink now
        flock(descriptor, how)

    folder.fcntl.flock = slowly
    owned = busy = 0
    while owned < 60:
        try:
            with folder.locked(root, run) as work:
                inside = os.open(root / "inside", os.O_CREAT | os.O_EXCL)  # fails if it is there
                assert work.is_dir()
                time.sleep(chance.random() * 0.002)
                os.close(inside)
                os.unlink(root / "inside")
                owned += 1
        except folder.Busy:
            busy += 1
    print(owned, busy, len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0)
"""


def test_a_second_process_is_told_that_the_run_is_busy(tmp_path: Path) -> None:
    with process(HOLD, tmp_path, RUN) as owner:
        assert line(owner) == "held"
        with pytest.raises(Busy, match=rf"{RUN}\.lock is held by another process"):
            locked(tmp_path, RUN).__enter__()
        with locked(tmp_path, "f" * 16):  # another run is not concerned
            pass
        assert owner.stdin is not None
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert line(owner) == "given back"
    with locked(tmp_path, RUN) as work:
        assert work == tmp_path / ".work" / RUN
        assert work.is_dir()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    with process(HOLD, tmp_path, RUN) as owner:
        assert line(owner) == "held"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert (tmp_path / ".work" / f"{RUN}.lock").exists()  # its file is no lock
    with locked(tmp_path, RUN):
        pass


def test_one_process_takes_the_lock_once(tmp_path: Path) -> None:
    with locked(tmp_path, RUN):
        with pytest.raises(Busy):
            locked(tmp_path, RUN).__enter__()
        with pytest.raises(Busy):  # the failed attempt has not given back what is not its own
            locked(tmp_path, RUN).__enter__()
    with locked(tmp_path, RUN):
        pass


def test_a_lock_is_given_back_when_its_holder_raises(tmp_path: Path) -> None:
    def interrupted() -> None:
        with locked(tmp_path, RUN) as work:
            (work / "kept").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (tmp_path / ".work" / f"{RUN}.lock").exists()
    with locked(tmp_path, RUN) as work:
        assert (work / "kept").exists()


def test_among_contending_processes_there_is_one_owner_at_any_time(tmp_path: Path) -> None:
    crowd = [process(CONTEND, tmp_path, RUN, seed) for seed in range(4)]
    entered = [one.__enter__() for one in crowd]
    told = [one.communicate(timeout=120)[0].split() for one in entered]
    assert [one.returncode for one in entered] == [0] * 4
    owned, busy, open_files = zip(*(map(int, words) for words in told), strict=True)
    assert owned == (60,) * 4
    assert sum(busy) > 0, "they never met, so nothing was tested"
    assert max(open_files) < 10, "descriptors were left open"
    assert os.listdir(tmp_path / ".work") == [RUN]


# Publishing


def filled(work: Path) -> dict[str, bytes]:
    contents = {name: f"{name}\n".encode() for name in folder.SUMMED}
    for name, content in contents.items():
        (work / name).write_bytes(content)
    for name in ("checkpoint.pt", "checkpoint.tmp"):
        (work / name).write_bytes(b"half")
    return contents


def test_a_published_run_is_whole_and_its_sums_are_those_of_its_files(tmp_path: Path) -> None:
    with locked(tmp_path, RUN) as work:
        contents = filled(work)
        assert not is_done(tmp_path, RUN)
        final = publish(tmp_path, RUN, work)
    assert final == tmp_path / RUN
    assert is_done(tmp_path, RUN)
    assert sorted(os.listdir(final)) == sorted([*contents, "done"])
    sums = {name: sha256(content).hexdigest() for name, content in contents.items()}
    assert json.loads((final / "done").read_text()) == sums
    assert os.listdir(tmp_path / ".work") == []


class Killed(BaseException):
    """Stands for a SIGKILL, behind which no line is executed."""


@pytest.mark.parametrize("call", ["replace", "fsync", "unlink"])
def test_interrupted_anywhere_publishing_has_happened_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Every system call that changes a file is the last one that is made, in turn."""
    real = getattr(os, call)
    for last in range(100):
        root = tmp_path / str(last)
        root.mkdir()
        work = root / ".work" / RUN
        work.mkdir(parents=True)
        contents = filled(work)
        left = iter(range(last))

        def dying(*args: object, left: Iterator[int] = left, **kwargs: object) -> object:
            if next(left, None) is None:
                raise Killed
            return real(*args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, dying)
            try:
                publish(root, RUN, work)
            except Killed:
                pass
            else:
                assert last > 0
                return
        if is_done(root, RUN):
            assert {name: (root / RUN / name).read_bytes() for name in contents} == contents
        else:
            assert not (root / RUN).exists()
            assert {name: (work / name).read_bytes() for name in contents} == contents
            if call == "fsync":  # the slow part, which must not cost the training
                assert (work / "checkpoint.pt").exists()
            publish(root, RUN, work)  # whoever comes next ends it
            assert is_done(root, RUN)
    pytest.fail("publishing never came to its end")


def test_what_lies_in_place_without_being_done_is_replaced(tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "remains").touch()
    assert not is_done(tmp_path, RUN)
    with locked(tmp_path, RUN) as work:
        filled(work)
        publish(tmp_path, RUN, work)
    assert not (tmp_path / RUN / "remains").exists()


def test_what_a_process_left_that_died_after_publishing_is_tidied(tmp_path: Path) -> None:
    with locked(tmp_path, RUN) as work:
        filled(work)
        publish(tmp_path, RUN, work)
    left = tmp_path / ".work" / f"{RUN}.lock"
    left.touch()
    tidy(tmp_path, RUN)
    assert os.listdir(tmp_path / ".work") == []
    assert is_done(tmp_path, RUN)
    tidy(tmp_path, RUN)  # with nothing to do


def test_a_lock_that_is_held_is_not_tidied(tmp_path: Path) -> None:
    with process(HOLD, tmp_path, RUN) as owner:
        assert line(owner) == "held"
        tidy(tmp_path, RUN)
        with pytest.raises(Busy):
            locked(tmp_path, RUN).__enter__()


def test_a_json_file_is_whole_or_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "env.json"
    write_json(path, {"b": 1, "a": [1, 2]})
    before = path.read_bytes()
    assert json.loads(before) == {"a": [1, 2], "b": 1}
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patched:

            def dying(*_: object) -> None:
                raise Killed

            patched.setattr(os, call, dying)
            with pytest.raises(Killed):
                write_json(path, {"other": "values"})
        assert path.read_bytes() == before
    write_json(path, {"other": "values"})
    assert os.listdir(tmp_path) == ["env.json"]


# Lines


def test_lines_are_cut_back_to_where_a_checkpoint_was_taken(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    lines = Lines(path, 0)
    assert lines.sync() == 0
    lines.write({"step": 1})
    size = lines.sync()
    assert size == path.stat().st_size > 0
    lines.write({"step": 2, "never": "checkpointed"})
    lines.close()
    with path.open("a") as file:
        file.write('{"step": 3, "torn')
    again = Lines(path, size)
    again.write({"step": 2})
    again.close()
    assert path.read_text() == '{"step":1}\n{"step":2}\n'
    Lines(path, 0).close()
    assert path.read_text() == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_lines_refuse_what_is_not_json(tmp_path: Path, value: float) -> None:
    lines = Lines(tmp_path / "steps.jsonl", 0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        lines.write({"loss": value})
    lines.write({"loss": 1.0})
    lines.close()
    assert (tmp_path / "steps.jsonl").read_text() == '{"loss":1.0}\n'
