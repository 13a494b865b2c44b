"""Parts are whole or not there, and are used again for the same bytes alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from vcmm.bench.media.collection import Item
from vcmm.bench.media.parts import Entry, Part, asked, entries, stamped

ITEM = Item("é 1", "x", ("train",), {"text": ("a/ü.txt", "b.txt")}, "someone", {"start": 3})
ARRAYS = {"text": np.arange(6, dtype=np.int16).reshape(2, 3), "odd": np.array([True])}


def files(root: Path) -> Path:
    (root / "a").mkdir()
    (root / "a" / "ü.txt").write_text("one")
    (root / "b.txt").write_text("two")
    return root


def kept(folder: Path, root: Path) -> Entry:
    part = Part(folder / "p.part")
    part.add(Entry(asked(ITEM), stamped(root, ITEM)), ARRAYS)
    part.add(Entry({"id": "other"}, None, "why"), {})
    part.keep()
    first, second = entries(folder)
    assert (second.id, second.error, dict(second.arrays)) == ("other", "why", {})
    return first


def test_a_part_gives_back_what_was_added(tmp_path: Path) -> None:
    entry = kept(tmp_path, files(tmp_path))
    assert entry.id == ITEM.id
    assert entry.error is None
    for modality, array in ARRAYS.items():
        np.testing.assert_array_equal(entry.arrays[modality](), array, strict=True)
    assert [path.name for path in tmp_path.glob("p.*")] == ["p.part"]


def test_an_entry_fits_the_bytes_it_was_made_of(tmp_path: Path) -> None:
    entry = kept(tmp_path, root := files(tmp_path))
    assert entry.fits(root, ITEM)
    assert entry.fits(root, replace(ITEM, label="y", group=None, lists=("test",)))
    assert not entry.fits(root, replace(ITEM, more={"start": 4}))
    assert not entry.fits(root, replace(ITEM, files={"text": ("b.txt",)}))
    os.utime(root / "b.txt", ns=(1, 1))  # copied: another time, the same bytes
    assert entry.fits(root, ITEM)
    (root / "b.txt").write_text("owt")  # the same size
    assert not entry.fits(root, ITEM)
    (root / "b.txt").write_text("two!")
    assert not entry.fits(root, ITEM)
    (root / "b.txt").unlink()
    assert not entry.fits(root, ITEM)
    assert not Entry(asked(ITEM), None, "unreadable").fits(root, ITEM)


def test_a_part_that_is_cut_short_is_none(tmp_path: Path) -> None:
    kept(tmp_path, files(tmp_path))
    content = (tmp_path / "p.part").read_bytes()
    for size in (0, 5, len(content) // 2, len(content) - 1):
        (tmp_path / "p.part").write_bytes(content[:size])
        assert list(entries(tmp_path)) == []


def test_a_part_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    part = Part(tmp_path / "p.part")
    part.add(Entry({"id": "one"}, None), ARRAYS)
    part.drop()
    assert list(tmp_path.iterdir()) == []


def test_parts_of_before_can_be_left_out(tmp_path: Path) -> None:
    kept(tmp_path, files(tmp_path))
    assert list(entries(tmp_path, besides={tmp_path / "p.part"})) == []
    assert len(list(entries(tmp_path, besides={tmp_path / "q.part"}))) == 2
