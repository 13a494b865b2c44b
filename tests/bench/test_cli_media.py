"""`vcmm data check` and `prepare`: what they say, where, and how they exit."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vcmm.bench import data
from vcmm.bench.cli.data import told
from vcmm.bench.cli.decoding import Lines
from vcmm.bench.cli.errors import Mistake, mistakes
from vcmm.bench.cli.inventory import amount, show_lists, show_reasons, show_remarks
from vcmm.bench.cli.media import named
from vcmm.bench.cli.tables import printable
from vcmm.bench.media.prepare import Progress, folder_of

from .media import letters
from .media.test_prepare import alive, until
from .test_cli import Vcmm

PROGRAM = """
import sys
from bench.media import letters
from vcmm.bench import data
from vcmm.bench.cli import main
if __name__ == "__main__":
    data.COLLECTIONS["letters"] = letters.COLLECTION
    main(sys.argv[1:])
"""


@pytest.fixture
def vcmm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Vcmm:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("VCMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(data.COLLECTIONS, "letters", letters.COLLECTION)
    return Vcmm(capsys)


def test_a_collection_brings_its_options(vcmm: Vcmm) -> None:
    for command in ("check", "prepare"):
        told = vcmm("data", command, "letters", "--help").flat
        assert "Options of letters" in told
        assert "--scale VALUE a number (default: 1)" in told
        assert "--sizes VALUE a whole number,a whole number,... (default: 3)" in told
        assert "--scale" not in vcmm("data", command, "--help").flat


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("letters --root x", "letters"),
        ("--root letters --quick letters", "letters"),
        ("--root=x --json letters", "letters"),
        ("--root letters", None),
        ("mine.npz", "mine.npz"),
        ("", None),
    ],
)
def test_the_name_is_what_no_flag_takes(vcmm: Vcmm, arguments: str, name: str | None) -> None:
    assert named(arguments.split()) == name


@pytest.mark.parametrize("command", ["check", "prepare"])
def test_mistakes_are_a_paragraph(vcmm: Vcmm, command: str, tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 2)
    cases = {
        ("letters",): f"say where the files are: vcmm data {command} letters --root DIR",
        ("leters", "--root", "x"): "did you mean 'letters'?",
        ("watch", "--root", "x"): "'watch' is not made of media files; try vcmm data info watch",
        ("letters", "--root", "none"): "there is no folder 'none'",
        ("letters", "--root", str(tmp_path)): "text/<label>_<number>.txt",
        ("letters", "--root", str(root), "--scale", "x"): "--scale is 'x'; it must be a number",
        ("letters", "--root", str(root), "--scale", "-1"): "scale is -1.0; it must be above 0",
        ("letters", "--root", str(root), "--scael", "1"): "--scael",
    }
    for arguments, message in cases.items():
        said = vcmm("data", command, *arguments)
        assert (said.code, said.out) == (2, ""), arguments
        assert message in said.err
        assert "Traceback" not in said.err
    assert letters.COLLECTION.layout in vcmm("data", command, "letters").err
    assert not (tmp_path / "cache").exists()


def test_a_quick_look_decodes_nothing(vcmm: Vcmm, tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 12, a_003="crash")
    said = vcmm("data", "check", "letters", "--root", root, "--quick", "--sizes", "4,5")
    assert (said.code, said.err) == (0, "")
    lines = [line.split() for line in said.out.splitlines()]
    assert "letters  12 samples have all their files" in said.out
    assert ["list", "samples", "a", "b", "c", "hash"] in lines
    assert [line[:5] for line in lines if line[:1] == ["train"]] == [["train", "9", "3", "3", "3"]]
    assert "made up" in said.out
    assert said.out.endswith(f"\nNext   vcmm data prepare letters --root {root} --sizes 4,5\n")
    assert letters.COLLECTION.layout not in said.out
    found = json.loads(vcmm("data", "check", "letters", "--root", root, "--quick", "--json").out)
    assert (found["samples"], found["complete"], found["decoded"]) == (12, True, False)
    # What lacks is named, and how to obtain it.
    for number in range(12):
        if number:
            (root / "number" / f"{'abc'[number % 3]}_{number:03d}.npy").unlink()
    said = vcmm("data", "check", "letters", "--root", root, "--quick")
    assert said.code == 2
    assert "11 lacking" in said.out
    assert "a_003  number/a_003.npy" in said.out
    assert "and 1 more; --json has all" in said.out
    assert letters.COLLECTION.layout in said.out


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "prepare"])
def test_a_library_that_lacks_is_said(vcmm: Vcmm, tmp_path: Path, command: str) -> None:
    root = letters.write(tmp_path / "root", 2, a_000="lacks av")
    said = vcmm("data", command, "letters", "--root", root, "--workers", "1")
    assert said.code == 2
    assert "No module named 'av'" in said.err
    assert 'pip install "vcmm[media]"' in said.err
    assert "Traceback" not in said.err


@pytest.mark.slow
def test_a_part_of_a_store_does_not_replace_it(vcmm: Vcmm, tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 4)
    assert vcmm("data", "prepare", "letters", "--root", root, "--workers", "1").code == 0
    (root / "text" / "a_003.txt").unlink()
    said = vcmm("data", "prepare", "letters", "--root", root, "--workers", "1")
    assert said.code == 2
    assert "1 of the 4 samples" in said.err
    assert "vcmm data prepare letters --root DIR --force" in said.err
    # Damage is told, and that is no success.
    path = folder_of(letters.COLLECTION, {})
    (path / "number.npy").write_bytes((path / "number.npy").read_bytes()[:-1] + b"?")
    said = vcmm("data", "check", "letters", "--root", root, "--workers", "1")
    assert said.code == 2
    assert "The store that was prepared is damaged" in said.out
    assert "number.npy has changed since it was written" in said.flat


@pytest.mark.slow
def test_prepared_once_and_told_what_was_left_out(vcmm: Vcmm, tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 12, b_004="", a_003="raise hell")
    command = ["letters", "--root", str(root), "--workers", "1", "--scale", "2"]
    said = vcmm("data", "prepare", *command)
    path = folder_of(letters.COLLECTION, {"scale": 2.0})
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("letters: decoding, 0 of 12 samples\n")
    assert "\nb_004: text/b_004.txt is empty\n" in said.out
    assert "\nletters: decoding, 12 of 12 samples, 2 failed\n" in said.out
    assert "letters  10 of 12 samples are prepared" in said.out
    assert "2 left out" in said.out
    assert f"\nStore  {path}  (" in said.out
    assert said.out.endswith("\nNext   vcmm compare --data letters --data.scale 2\n")
    # Again, for a program: one JSON value on stdout, the rest on stderr.
    said = vcmm("data", "prepare", *command, "--json")
    found = json.loads(said.out)
    assert (found["path"], found["samples"], len(found["failed"])) == (str(path), 10, 2)
    assert "comparing" in said.err
    assert path.is_dir()
    # Looking at it agrees, and has nothing left to try.
    said = vcmm("data", "check", *command)
    assert said.code == 2
    assert "2 cannot be decoded" in said.out
    assert f"Split  {found['split_hash']}," in said.out


def test_a_data_set_of_media_is_listed_with_its_command(vcmm: Vcmm) -> None:
    for name in data.COLLECTIONS.keys() & data.DATA.keys():
        assert not data.available(name)
        assert f"(first: vcmm data prepare {name} --root DIR)" in vcmm("data", "list").out
        assert "of files that you have: vcmm data check" in vcmm("data", "get", name).err
        said = vcmm("run", "--data", name)
        assert said.code == 2
        assert f"run: vcmm data prepare {name} --root DIR" in said.err


# As a person sees it


def started(tmp_path: Path, root: Path, **streams: int) -> subprocess.Popen[bytes]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")},
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "VCMM_CACHE": str(tmp_path / "cache"),
        "TERM": "xterm-256color",
        "COLUMNS": "100",
    }
    command = [sys.executable, str(program), "data", "prepare", "letters", "--root", str(root)]
    return subprocess.Popen(command, env=environment, **streams)


@pytest.mark.slow
def test_a_person_sees_a_bar_and_every_failure(tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 12, b_004="", a_003="sleep 0.5")
    master, terminal = pty.openpty()
    process = started(tmp_path, root, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(master, 1 << 16)
        except OSError:  # it has ended
            break
    os.close(master)
    text = shown.decode()
    assert process.wait() == 0, text
    assert "━" in text
    assert "/12" in text
    assert "b_004" in text
    assert "11 of 12 samples are prepared" in text


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    root = letters.write(tmp_path / "root", 12, a_000=f"tell {tmp_path / 'pid'}")
    process = started(tmp_path, root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pid = tmp_path / "pid"
    until(lambda: pid.exists() and pid.read_text() != "")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert b"Stopped. What was decoded is kept" in said
    assert f"vcmm data prepare letters --root {root}".encode() in said
    assert b"Traceback" not in said
    until(lambda: not alive(int(pid.read_text())))


# Words


def test_lines_are_said_at_every_stage_and_for_every_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell = Lines("x", err=False)
    tell(Progress("comparing", 1, 3))
    tell(Progress("comparing", 2, 3))
    tell(Progress("decoding", 2, 3))
    tell(Progress("decoding", 3, 3, 1, "a", "it is empty"))
    tell(Progress("writing", 10, 2_000_000))
    assert capsys.readouterr().out.splitlines() == [
        "x: comparing with what was decoded, 1 of 3 samples",
        "x: decoding, 2 of 3 samples",
        "a: it is empty",
        "x: decoding, 3 of 3 samples, 1 failed",
        "x: writing 2.0 MB",
    ]


HOSTILE = "a\x1b]0;title\x07\x1b[2J\r\n\x9b31m\u202eb"
SHOWN = r"a\x1b]0;title\x07\x1b[2J\r\n\x9b31m\u202eb"


def test_what_strangers_wrote_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = {"classes": {HOSTILE: 1}, "samples": 1, "hash": "0"}
    show_lists({HOSTILE: counts}, (HOSTILE,), "0")
    show_lists({HOSTILE: {**counts, "classes": {HOSTILE: 1, **MANY}}}, (HOSTILE, *MANY), "0")
    show_reasons("left out", {HOSTILE: HOSTILE})
    show_remarks([HOSTILE])
    Lines("x", err=False)(Progress("decoding", 1, 1, 1, HOSTILE, HOSTILE))
    split = {"groups": None, "samples": 1, "classes": {HOSTILE: 1}}
    found = {
        "name": "x",
        "about": "",
        "hash": "",
        "modalities": {"a": FORM},
        "splits": {"s": split},
    }
    with pytest.raises(Mistake) as error, mistakes():
        raise ValueError(f"{HOSTILE}: two\nlines")
    said = "\n".join([capsys.readouterr().out, *told(found), str(error.value)])
    assert said.count(SHOWN) == 11
    assert r"\x9b31m\u202eb: two" in said
    assert all(one.isprintable() or one == "\n" for one in said)
    assert printable("größe 音\u3000é") == "größe 音\u3000é"
    assert printable("\udcff\n") == r"\udcff\n"


MANY = {f"class {number}": number for number in range(31)}
FORM = {"kind": "vector", "shape": [1], "dtype": "float32"}


def test_every_class_of_many_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lists = {
        name: {
            "classes": {label: k + count for label, k in MANY.items()},
            "samples": 9,
            "hash": "0",
        }
        for name, count in (("own/train", 100), ("own/test", 0))
    }
    show_lists(lists, tuple(MANY), "0")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["class", "own/test", "own/train"] in lines
    for label, k in MANY.items():
        assert [*label.split(), str(k), str(100 + k)] in lines


def test_amounts_of_bytes() -> None:
    sizes = (0, 999, 1000, 27_400_000, 14.2e9, 3e12)
    assert list(map(amount, sizes)) == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "27.4 MB",
        "14.2 GB",
        "3000.0 GB",
    ]
