from __future__ import annotations

import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vcmm.bench.media.paths import inside, lines


@pytest.fixture
def root(tmp_path):
    """A folder with a file, beside one that is none of its business."""
    folder = tmp_path / "root"
    (folder / "AudioWAV").mkdir(parents=True)
    (folder / "AudioWAV" / "a.wav").write_bytes(b"here")
    (tmp_path / "secret").write_bytes(b"there")
    return folder


@pytest.mark.parametrize("entry", ["AudioWAV/a.wav", "./AudioWAV/a.wav", "new/файл 音.wav", "..."])
def test_an_entry_below_the_root_is_its_path(root, entry):
    assert inside(root, entry) == root / entry


HOSTILE = {
    "../secret": "leads out",
    "AudioWAV/../../secret": "leads out",
    "AudioWAV/..": "leads out",
    "AudioWAV/../AudioWAV/a.wav": "leads out",
    "..\\secret": "leads out",
    "/etc/passwd": "absolute",
    "//host/share": "absolute",
    "C:\\secret": "absolute",
    "C:secret": "absolute",
    "\\secret": "absolute",
    "a\0.wav": "no file name",
    "a\ud800.wav": "no file name",
    "": "names no file",
    " ": "names no file",
    ".": "names no file",
}


@pytest.mark.parametrize(("entry", "why"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_a_hostile_entry_is_named_and_refused(root, entry, why):
    with pytest.raises(ValueError, match=why) as problem:
        inside(root, entry)
    assert repr(entry) in str(problem.value)


def test_a_link_out_of_the_root_is_refused(root, tmp_path):
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    (root / "dangling").symlink_to(tmp_path / "nothing")
    (root / "chain").symlink_to(root / "up")
    for entry in ("out", "up/secret", "up/nothing", "dangling", "chain/secret"):
        with pytest.raises(ValueError, match=f"{entry}.*leads out"):
            inside(root, entry)


def test_a_folder_with_the_same_beginning_is_another(root, tmp_path):
    (tmp_path / "root-of-all").mkdir()
    (root / "link").symlink_to(tmp_path / "root-of-all")
    with pytest.raises(ValueError, match="leads out"):
        inside(root, "link/x")


def test_links_within_the_root_are_followed_and_it_may_be_one_itself(root, tmp_path):
    (root / "link").symlink_to(root / "AudioWAV")
    (root / "relative").symlink_to("AudioWAV/a.wav")
    (tmp_path / "alias").symlink_to(root)
    assert inside(root, "link/a.wav").read_bytes() == b"here"
    assert inside(tmp_path / "alias", "AudioWAV/a.wav").read_bytes() == b"here"
    assert inside(tmp_path / "alias", "relative").read_bytes() == b"here"


def test_a_loop_of_links_is_refused(root):
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(ValueError, match="'loop/x'"):
        inside(root, "loop/x")


parts = st.lists(st.one_of(st.sampled_from(["..", ".", "", "up", "a", "~"]), st.text(max_size=3)))


@given(parts, st.sampled_from(["/", "\\", "//"]))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_ever_leads_out(root, parts, separator):
    if not (root / "up").is_symlink():
        (root / "up").symlink_to("..")
    try:
        path = inside(root, separator.join(parts))
    except ValueError:
        return
    assert path.resolve().is_relative_to(root.resolve())


def test_lines_without_their_ends(tmp_path):
    path = tmp_path / "list.csv"
    # A tweet holds whatever Unicode calls a separator, and a lone carriage return.
    path.write_bytes("\ufeffa,1\r\nb\u2028b,\x0b2\x85\n\nc\rc,3\n".encode())
    assert lines(path) == ["a,1", "b\u2028b,\x0b2\x85", "", "c\rc,3"]
    path.write_bytes(b"a\nb")
    assert lines(path) == ["a", "b"]
    path.write_bytes(b"")
    assert lines(path) == []


BROKEN = {
    "utf-16": ("clip,ANG\n".encode("utf-16"), "UTF-16; save it as UTF-8"),
    "latin-1": ("a\nb\nvidéo\n".encode("latin-1"), "line 3: byte 0xe9 is not UTF-8"),
    "cut": ("音".encode()[:-1], "line 1: byte 0xe9 is not UTF-8"),
    "binary": (b"RIFF\x00\x01", "binary"),
    "long": (b"x" * 101, "longer than 100 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_list_that_is_no_text_says_what_it_is(tmp_path, name):
    path = tmp_path / "list.txt"
    content, why = BROKEN[name]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(os.fspath(path))}.*{why}"):
        lines(path, most=100)


def test_a_list_as_long_as_allowed_is_read(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"x" * 99 + b"\n")
    assert lines(path, most=100) == ["x" * 99]


def test_no_list_and_a_folder_in_its_place(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no list .*train\.csv"):
        lines(tmp_path / "train.csv")
    with pytest.raises(ValueError, match="not a file"):
        lines(tmp_path)
