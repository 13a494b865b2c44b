"""Whatever dies and whenever: nothing is lost, nothing is decoded twice, nothing is silent."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vcmm.bench.folder import locked
from vcmm.bench.media import crew
from vcmm.bench.media.check import inspect
from vcmm.bench.media.codec import decoding
from vcmm.bench.media.collection import Collection, Found, Item, Undecodable
from vcmm.bench.media.crew import Job, attempt
from vcmm.bench.media.prepare import Progress, folder_of, load_store, prepare
from vcmm.bench.media.splits import counted, split_hash
from vcmm.bench.media.store import verify

from . import letters
from .letters import COLLECTION, told

KILLING = Path(__file__).with_name("killing.py")


class Watch:
    """Remembers which samples were decoded."""

    def __init__(self) -> None:
        self.decoded: list[str] = []
        self.stages: list[str] = []

    def __call__(self, progress: Progress) -> None:
        if progress.id:
            self.decoded.append(progress.id)
        if progress.stage not in self.stages:
            self.stages.append(progress.stage)


# What needs no process


def test_a_store_is_named_by_what_decides_it(tmp_path: Path) -> None:
    def name(**parameters: Any) -> str:
        return folder_of(COLLECTION, parameters, cache=tmp_path).name

    assert name() == name(scale=1) == name(scale=1.0, mode="one")
    assert re.fullmatch("letters-[0-9a-f]{12}", name())
    again = folder_of(replace(COLLECTION, version=2), {}, cache=tmp_path).name
    assert len({name(), name(scale=2), name(sizes=(3, 4)), name(mode="two"), again}) == 5


def test_the_cache_is_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCMM_CACHE", str(tmp_path))
    assert folder_of(COLLECTION, {}).parent == tmp_path


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"scale": 0}, "scale is 0.0; it must be above 0"),
        ({"scal": 1}, "did you mean 'scale'"),
        ({"mode": 1}, "option 'mode' is 1"),
    ],
)
def test_wrong_parameters(tmp_path: Path, parameters: dict[str, Any], message: str) -> None:
    for call in (
        lambda: prepare(COLLECTION, tmp_path, parameters, cache=tmp_path),
        lambda: load_store(COLLECTION, parameters, cache=tmp_path),
        lambda: inspect(COLLECTION, tmp_path, parameters),
    ):
        with pytest.raises((ValueError, TypeError), match=re.escape(message)):
            call()


def test_what_is_not_prepared_says_how_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        load_store(COLLECTION, {"scale": 2, "sizes": (4, 5)}, cache=tmp_path)
    assert str(error.value).endswith(
        "run: vcmm data prepare letters --root DIR --scale 2 --sizes 4,5"
    )


def test_a_folder_without_anything(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="there is no folder"):
        prepare(COLLECTION, tmp_path / "none", {}, cache=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nothing of 'letters'[^$]*text/<label>"):
        prepare(COLLECTION, tmp_path, {}, cache=tmp_path / "cache")
    root = letters.write(tmp_path / "root", 1)
    (root / "number" / "a_000.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"a_000: number/a_000\.npy"):
        inspect(COLLECTION, root, {})
    assert not (tmp_path / "cache").exists()


def finds(*items: Item) -> Collection:
    return replace(COLLECTION, find=lambda root, parameters: Found(items, ("a", "b")))


def test_a_collection_that_contradicts_itself(tmp_path: Path) -> None:
    one = Item("one", "a", (), {})
    with pytest.raises(ValueError, match="names sample 'one' twice"):
        prepare(finds(one, one), tmp_path, {}, cache=tmp_path)
    with pytest.raises(ValueError, match="label 'z', which is no class"):
        prepare(finds(replace(one, label="z")), tmp_path, {}, cache=tmp_path)


def test_one_process_prepares_it_at_a_time(tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 2)
    final = folder_of(COLLECTION, {}, cache=tmp_path)
    with (
        locked(tmp_path, final.name),
        pytest.raises(BlockingIOError, match="being prepared by another process"),
    ):
        prepare(COLLECTION, root, {}, cache=tmp_path)


def test_counts_and_hash_are_of_who_is_in_which_list() -> None:
    items = [Item(f"s{k}", "ab"[k % 2], ("train",) if k < 3 else ("test",), {}) for k in range(4)]
    found = counted(items, ("a", "b"))
    assert {name: (one["samples"], one["classes"]) for name, one in found.items()} == {
        "train": (3, {"a": 2, "b": 1}),
        "test": (1, {"a": 0, "b": 1}),
    }
    assert split_hash(items) == split_hash(items[::-1])
    others = [items[1:], [replace(items[0], label="b"), *items[1:]]]
    others.append([replace(items[0], lists=("test",)), *items[1:]])
    assert len({split_hash(items), *map(split_hash, others)}) == 4


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (np.array([np.nan]), "modality 'x' has values that are no numbers"),
        (np.array([1j, np.inf]), "modality 'x' has values that are no numbers"),
        (np.array([{}]), "modality 'x' is object (1,)"),
        (np.zeros((0, 2)), "modality 'x' is float64 (0, 2)"),
        (np.float64(1), "modality 'x' is float64 ()"),
        (None, "AttributeError: 'NoneType'"),
        (np.ones(2), None),
    ],
)
def test_what_a_decoder_may_make(tmp_path: Path, made: Any, error: str | None) -> None:
    collection = replace(COLLECTION, decode=lambda root, item, parameters: {"x": made})
    job = Job(collection, tmp_path, {}, None)
    found = attempt(job, Item("one", "a", (), {}))[0].error
    assert found == error if error is None else str(found).startswith(error)


def test_a_reason_is_a_line_that_does_not_tell_the_root(tmp_path: Path) -> None:
    def decode(root: Path, item: Item, parameters: Any) -> Any:
        raise RuntimeError(f"{root}/a.wav\n is\tbroken" + 600 * "!")

    job = Job(replace(COLLECTION, decode=decode), tmp_path, {}, None)
    entry, arrays = attempt(job, Item("one", "a", (), {}))
    assert str(entry.error).startswith("RuntimeError: a.wav is broken!!")
    assert (len(str(entry.error)), arrays) == (500, {})


def test_only_where_a_path_begins_is_the_root_left_out(tmp_path: Path) -> None:
    def decode(root: Path, item: Item, parameters: Any) -> Any:
        raise Undecodable(f"x{root}/a '{root}/b' {root}/c{root}/d")

    job = Job(replace(COLLECTION, decode=decode), tmp_path, {}, None)
    entry, _ = attempt(job, Item("one", "a", (), {}))
    assert entry.error == f"x{tmp_path}/a 'b' c{tmp_path}/d"


def failing(root: Path, error: Exception, *, wrapped: bool = False) -> Any:
    """What comes of a letter whose decoder raises this; its parts would be kept."""

    def decode(root: Path, item: Item, parameters: Any) -> Any:
        if not wrapped:
            raise error
        with decoding(root / item.files["text"][0]):
            raise error

    collection = replace(COLLECTION, decode=decode)
    (item,) = collection.find(root, {}).items
    entry, _ = attempt(Job(collection, root, {}, root), item)
    return entry, item


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("error", "remembered"),
    [
        (Undecodable("it is empty"), True),
        (UnicodeDecodeError("utf-8", b"?", 0, 1, "odd"), True),
        (RuntimeError("the codec is sorry"), True),
        (OSError("cannot identify image file"), True),  # Pillow's, which has no number
        (OSError(errno.EMFILE, "Too many open files"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (OSError(errno.EIO, "Input/output error"), False),
        (MemoryError("Unable to allocate 1 GiB"), False),
        (AttributeError("a mistake of a decoder"), False),
    ],
)
def test_what_the_machine_did_is_not_held_against_a_file(
    tmp_path: Path, error: Exception, remembered: bool, wrapped: bool
) -> None:
    root = letters.write(tmp_path / "root", 1)
    entry, item = failing(root, error, wrapped=wrapped)
    assert entry.error
    assert entry.fits(root, item) == remembered


def test_a_library_that_lacks_ends_it_all(tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 1)
    lacks = ModuleNotFoundError("No module named 'av'")
    broken = RuntimeError("failed to import")
    broken.__cause__ = lacks
    for error in (lacks, broken):
        for wrapped in (False, True):
            with pytest.raises(ImportError, match=r'pip install "vcmm\[media\]"'):
                failing(root, error, wrapped=wrapped)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 1)
    (item,) = COLLECTION.find(root, {}).items
    job = Job(COLLECTION, root, {"scale": 1.0}, tmp_path)
    entry, _ = attempt(job, item)
    assert entry.error is None
    (root / "text" / "a_000.txt").unlink()
    os.mkfifo(root / "text" / "a_000.txt")
    assert not entry.fits(root, item)
    assert attempt(job, item)[0].error == "text/a_000.txt: it is not a file"


# With processes


@pytest.mark.slow
def test_what_the_machine_did_is_tried_again(tmp_path: Path) -> None:
    root, cache = tmp_path / "root", tmp_path / "cache"
    letters.write(root, 6, a_003="busy", b_004="")
    prepare(COLLECTION, root, {}, cache=cache, workers=1)
    failed = load_store(COLLECTION, {}, cache=cache).manifest["failed"]
    assert failed["a_003"] == "OSError: [Errno 24] Too many open files"
    assert list(failed) == ["a_003", "b_004"]
    prepare(COLLECTION, root, {}, cache=cache, workers=1, watch=(watch := Watch()))
    assert watch.decoded == ["a_003"]


@pytest.mark.slow
def test_nothing_is_stored_where_a_library_lacks(tmp_path: Path) -> None:
    root, cache = letters.write(tmp_path / "root", 4, a_003="lacks av"), tmp_path / "cache"
    for call in (prepare, inspect):
        with pytest.raises(ImportError, match=r"No module named 'av'; get it with: pip install"):
            call(COLLECTION, root, {}, cache=cache, workers=1)
    assert not folder_of(COLLECTION, {}, cache=cache).exists()


@pytest.mark.slow
def test_what_cannot_be_decoded_is_listed_and_the_rest_is_there(tmp_path: Path) -> None:
    root, cache = tmp_path / "root", tmp_path / "cache"
    bad = {"a_003": "crash", "b_004": "", "c_005": "raise hell", "b_007": "killed"}
    letters.write(root, 24, a_006=f"once {tmp_path / 'mark'}", **bad)
    (root / "number" / "c_008.npy").unlink()
    (root / "number" / "b_010.npy").write_bytes(b"\x93NUMPY")
    (root / "text" / "c_011.txt").write_bytes(b"\xff")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    path = prepare(COLLECTION, root, {}, cache=cache, workers=2, watch=(watch := Watch()))
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert os.listdir(cache / ".work") == []
    store = load_store(COLLECTION, {}, cache=cache)
    verify(store)
    assert store.path == path
    failed = store.manifest["failed"]
    assert list(failed) == ["a_003", "b_004", "b_007", "b_010", "c_005", "c_011"]
    assert failed["a_003"] == "decoding it ends the process with signal 11 (SIGSEGV)"
    assert failed["b_004"] == "text/b_004.txt is empty"
    assert failed["b_007"].endswith("signal 9 (SIGKILL); memory may have run out")
    assert failed["c_005"] == "KeyError: 'hell'"
    assert failed["c_011"].startswith("UnicodeDecodeError")
    assert store.manifest["missing"] == {"c_008": "number/c_008.npy"}
    assert store.manifest["remarks"] == ["made up"]
    assert {*store.ids, *failed} == set(watch.decoded)
    assert len(store) == 17
    assert list(store.ids) == sorted(store.ids)
    for row, name in enumerate(store.ids):
        number = int(name.split("_")[1])
        text = (root / "text" / f"{name}.txt").read_bytes()
        assert bytes(store.arrays["text"][row][-1].tolist()) == text
        assert len(store.arrays["text"][row]) == number % 3 + 1
        assert store.more[row] == {"length": number % 3 + 1}
        np.testing.assert_array_equal(store.arrays["number"][row], np.full((2, 3), number))
        assert store.labels[store.target[row]] == name[0]
        assert store.groups[row] == f"by {number % 2}"
        assert store.lists[row] == ("test" if number % 4 == 0 else "train",)
    assert sum(one["samples"] for one in store.manifest["lists"].values()) == len(store)
    sources = {one["asked"]["id"]: one for one in store.sources()}
    assert sources.keys() == set(watch.decoded)
    again = [name for name, one in sources.items() if one["stamps"] is None]
    assert again == ["b_007"]  # who was killed may have been killed for something else
    names = [stamp[0] for stamp in sources["a_000"]["stamps"]]
    assert names == ["number/a_000.npy", "text/a_000.txt"]
    assert str(tmp_path) not in "".join(p.read_text() for p in path.glob("*.json*")).replace(
        f"once {tmp_path}", ""
    )


@pytest.mark.slow
def test_nothing_is_decoded_twice(tmp_path: Path) -> None:
    root, cache = letters.write(tmp_path / "root", 12, b_004=""), tmp_path / "cache"

    def again(**changes: Any) -> tuple[list[str], list[str]]:
        watch = Watch()
        path = prepare(COLLECTION, root, {}, cache=cache, workers=1, watch=watch, **changes)
        assert path == folder_of(COLLECTION, {}, cache=cache)
        verify(load_store(COLLECTION, {}, cache=cache))
        return sorted(watch.decoded), watch.stages

    assert len(again()[0]) == 12
    path = folder_of(COLLECTION, {}, cache=cache)
    first = told(path)
    # The same: nothing is decoded or written, not even what failed.
    assert again() == ([], ["comparing", "decoding"])
    # A store is put in place anew for other lists, without decoding, and the arrays stay.
    manifest = json.loads(first["manifest.json"])
    (path / "manifest.json").write_text(json.dumps({**manifest, "missing": {"b": "b"}}))
    assert again() == ([], ["comparing", "decoding", "writing"])
    assert told(path) == first
    # Other times: the bytes are compared. Other bytes are decoded; what is gone is gone.
    os.utime(root / "text" / "a_003.txt", ns=(1, 1))
    assert again()[0] == []
    (root / "text" / "b_004.txt").write_text("mended")
    (root / "text" / "a_006.txt").write_text("Sample 6")  # as long as it was
    assert again()[0] == ["a_006", "b_004"]
    store = load_store(COLLECTION, {}, cache=cache)
    assert (len(store), store.manifest["failed"]) == (12, {})
    assert bytes(store.arrays["text"][store.ids.index("a_006")][0].tolist()) == b"Sample 6"
    # A broken store is made anew, and so is any when that is asked for.
    numbers = (path / "number.npy").read_bytes()
    flipped = numbers[:-1] + b"?"
    for name, content in (("number.npy", b""), ("number.npy", flipped), ("manifest.json", b"{}")):
        (path / name).unlink()  # `store` has it open
        (path / name).write_bytes(content)
        assert len(again()[0]) == 12
        assert load_store(COLLECTION, {}, cache=cache).digest == store.digest
    assert len(again(force=True)[0]) == 12
    # Other parameters have a store of their own.
    other = prepare(COLLECTION, root, {"scale": 2.0}, cache=cache, workers=1)
    assert other != path
    doubled = load_store(COLLECTION, {"scale": 2.0}, cache=cache)
    np.testing.assert_array_equal(doubled.arrays["number"], 2 * store.arrays["number"][:])
    assert doubled.parameters == {"scale": 2.0, "sizes": [3], "mode": "one"}


@pytest.mark.slow
def test_a_store_is_not_replaced_by_a_part_of_it(tmp_path: Path) -> None:
    root, cache = letters.write(tmp_path / "root", 12), tmp_path / "cache"
    part = letters.write(tmp_path / "part", 9, a_003="")
    path = prepare(COLLECTION, root, {}, cache=cache, workers=1)
    before = told(path)
    # Before anything is decoded, if samples are not there, and after it, if they do not decode.
    watch = Watch()
    with pytest.raises(ValueError, match=r"3 of the 12 [^$]*\n  a_009: not there[^$]* --force$"):
        prepare(COLLECTION, part, {}, cache=cache, workers=1, watch=watch)
    assert (watch.decoded, told(path)) == ([], before)
    (root / "text" / "a_003.txt").write_text("")
    with pytest.raises(ValueError, match=r"1 of the 12 [^$]*\n  a_003: text/a_003\.txt is empty"):
        prepare(COLLECTION, root, {}, cache=cache, workers=1)
    assert told(path) == before
    assert prepare(COLLECTION, part, {}, cache=cache, workers=1, force=True) == path
    assert len(load_store(COLLECTION, {}, cache=cache)) == 8


@pytest.mark.slow
def test_a_look_writes_nothing_and_finds_what_preparing_finds(tmp_path: Path) -> None:
    root, cache = letters.write(tmp_path / "root", 12, b_004="", a_003="crash"), tmp_path / "cache"
    quick = inspect(COLLECTION, root, {}, decode=False, cache=cache)
    assert (quick.samples, quick.complete, dict(quick.unreadable)) == (12, True, {})
    found = inspect(COLLECTION, root, {}, cache=cache, workers=2)
    assert not cache.exists()
    assert (found.samples, found.complete, found.decoded) == (10, False, True)
    assert list(found.unreadable) == ["a_003", "b_004"]
    assert found.split_hash != quick.split_hash
    prepare(COLLECTION, root, {}, cache=cache, workers=2)
    manifest = load_store(COLLECTION, {}, cache=cache).manifest
    assert found.unreadable == manifest["failed"]
    assert (found.lists, found.split_hash) == (manifest["lists"], manifest["split_hash"])
    # What was decoded for these parameters is not decoded once more.
    watch = Watch()
    assert inspect(COLLECTION, root, {}, cache=cache, watch=watch) == found
    assert watch.decoded == []
    assert json.loads(json.dumps(found.as_json()))["layout"] == COLLECTION.layout
    # A store that was damaged is told of, and tells nothing.
    path = folder_of(COLLECTION, {}, cache=cache)
    content = (path / "number.npy").read_bytes()
    (path / "number.npy").write_bytes(content[:-1] + b"?")
    damaged = inspect(COLLECTION, root, {}, cache=cache, workers=2, watch=watch)
    assert "number.npy has changed since it was written" in str(damaged.damage)
    assert len(watch.decoded) == 12
    assert replace(damaged, damage=None) == found
    assert not replace(damaged, missing={}, unreadable={}).complete


@pytest.mark.slow
def test_a_decoder_that_hangs_costs_its_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "PATIENCE", 3.0)
    root = letters.write(tmp_path / "root", 4, a_003=f"tell {tmp_path / 'pid'}")
    prepare(COLLECTION, root, {}, cache=tmp_path / "cache", workers=1)
    store = load_store(COLLECTION, {}, cache=tmp_path / "cache")
    assert store.manifest["failed"] == {"a_003": "decoding it takes more than 3 s"}
    assert len(store) == 3
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_where_nothing_can_be_decoded_there_is_no_store(tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 2, a_000="", b_001="raise hell")
    with pytest.raises(ValueError, match=r"none of the 2 samples[^$]*a_000: text/a_000\.txt is"):
        prepare(COLLECTION, root, {}, cache=tmp_path / "cache", workers=1)
    assert not folder_of(COLLECTION, {}, cache=tmp_path / "cache").exists()


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(KILLING), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    (clean,) = Path(report["clean"]).glob("letters-*")
    caches = [*report["told"], *report["moments"], *report["replaced"]]
    caches += [one["cache"] for one in report["full"]]
    assert len(caches) == 37
    for cache in map(Path, caches):
        (path,) = cache.glob("letters-*")
        assert told(path) == told(clean), cache.name
        assert os.listdir(cache / ".work") == [], cache.name
    # A full disk says where it is. What had been decoded by then was used again.
    small, large = report["full"]
    assert (small["parts"], large["parts"]) == (0, 3)
    for one in (small, large):
        assert one["said"].startswith("[Errno 27] File too large; what was decoded is kept")
        assert one["cache"] in one["said"]


def until(fact: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


PROGRAM = """
import sys
from pathlib import Path
from bench.media import letters
from vcmm.bench.media.prepare import prepare
if __name__ == "__main__":
    root, cache = map(Path, sys.argv[1:])
    prepare(letters.COLLECTION, root, {}, cache=cache, workers=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_who_decodes_does_not_outlive_who_asked(tmp_path: Path, how: signal.Signals) -> None:
    """By SIGKILL once it is through with its item, and by Ctrl-C at once."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    pid = tmp_path / "pid"
    texts = {"a_000": f"tell {pid}"} if how == signal.SIGINT else {}
    root = letters.write(tmp_path / "root", 12, **texts)
    if how == signal.SIGKILL:
        (root / "text" / "a_000.txt").write_text(f"pause {pid}")
    process = subprocess.Popen(
        [sys.executable, str(program), str(root), str(tmp_path / "cache")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
    )
    until(lambda: pid.exists() and pid.read_text() != "")
    process.send_signal(how)
    _, said = process.communicate()
    assert process.returncode != 0
    assert (b"KeyboardInterrupt" in said) == (how == signal.SIGINT)
    until(lambda: not alive(int(pid.read_text())))
