"""What lies in a folder: in natural order, and nothing that leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vcmm.bench.media.folders import astray, entries, lacking, natural, pictures, tree


def names(root: Path, folder: str = "") -> list[str]:
    return [one.name for one in entries(root, folder)]


def test_numbers_are_sorted_by_their_value(tmp_path: Path) -> None:
    wanted = ["2.jpg", "10.jpg", "a2b1.jpg", "a2b12.jpg", "a10.jpg", "frame_9.JPG", "frame_010.png"]
    for name in sorted(wanted, reverse=True):
        (tmp_path / name).touch()
    assert names(tmp_path) == wanted
    assert sorted(["01", "1", "001"], key=natural) == ["001", "01", "1"]  # decided, whatever else
    assert sorted(["²", "1", "٣"], key=natural) == ["1", "²", "٣"]  # digits of others are letters


def test_hidden_files_folders_and_other_kinds_are_no_pictures(tmp_path: Path) -> None:
    for name in ("._1.jpg", "1.jpg", "2.txt", "音.jpeg"):
        (tmp_path / name).touch()
    (tmp_path / "3.jpg").mkdir()
    assert [one.path for one in pictures(tmp_path, "")] == ["1.jpg", "音.jpeg"]
    assert entries(tmp_path, "nowhere") == []
    assert entries(tmp_path, "1.jpg") == []


def test_a_folder_of_a_list_stays_below_the_root(tmp_path: Path) -> None:
    for folder in ("..", "/etc", "a/../../b"):
        with pytest.raises(ValueError, match=r"leads out|absolute"):
            entries(tmp_path, folder)


def test_links_are_told_apart(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "within").mkdir(parents=True)
    outside.mkdir()
    (root / "within" / "a.wav").touch()
    (outside / "b.wav").touch()
    (root / "good.wav").symlink_to(root / "within" / "a.wav")
    (root / "bad.wav").symlink_to(outside / "b.wav")
    (root / "folder").symlink_to(outside)
    (root / "loop").symlink_to(root)
    found = {one.name: one for one in entries(root)}
    assert not found["good.wav"].wrong
    assert "leads out" in found["bad.wav"].wrong
    assert "leads out" in found["folder"].wrong
    assert not found["folder"].folder
    assert found["loop"].folder
    assert [folder for folder, _ in tree(root)] == ["", "within"]  # neither out nor in circles
    assert astray(root, "good.wav") == ""
    assert "leads out" in astray(root, "bad.wav")


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff.wav")
    try:
        Path(os.fsdecode(path)).touch()
    except OSError:
        pytest.skip("this file system has names in UTF-8 alone")
    (one,) = entries(tmp_path)
    assert one.wrong == "'?.wav' has a name that is not UTF-8"
    one.path.encode()  # so that it can be listed


def test_why_a_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").mkdir()
    assert lacking(tmp_path, "a") == ""
    assert lacking(tmp_path, "b") == "b is not there"
    assert "leads out" in lacking(tmp_path, "../a")
    assert "File name too long" in lacking(tmp_path, "c" * 300)


def test_folders_that_go_too_deep_are_left(tmp_path: Path) -> None:
    (tmp_path / "/".join("abcdefghijk")).mkdir(parents=True)
    assert len(list(tree(tmp_path, depth=3))) == 4


def test_folders_that_are_not_looked_into_are_told(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / ".hidden/inner").mkdir(parents=True)
    (tmp_path / ".file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    passed: dict[str, str] = {}
    assert [folder for folder, _ in tree(tmp_path, depth=1, passed=passed)] == ["", "a"]
    assert passed == {"a/b": "too deep", ".hidden": "hidden", "link": "a link"}
    assert names(tmp_path) == ["a", "link"]
