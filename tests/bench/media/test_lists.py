"""Rows of lists with their line, names that are no paths, and the hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcmm.bench.media.lists import add, apart, checked, first_of, list_hash, rows


def test_rows_have_their_line_and_stripped_cells(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes('\ufeffa, b\r\n\r\n"x, y",z \n'.encode())
    found = [(row.where, row.cells) for row in rows(path)]
    assert found == [
        ("train.csv, line 1", ("a", "b")),
        ("train.csv, line 3", ("x, y", "z")),
    ]


def test_a_quotation_that_does_not_end_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n"c,d\n')
    with pytest.raises(ValueError, match=r"a\.csv, line 2: .* is no csv"):
        list(rows(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "a\\b", "..\\a", "C:a", "a\0b", "a\nb", "a\x1b[31m"]
)
def test_a_path_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"list, line 3: .* is no name of a clip"):
        checked(name, "list, line 3")


@pytest.mark.parametrize("name", ["1001_DFA_ANG_XX", "-_..a", "größe 音", "a b"])
def test_names(name: str) -> None:
    assert checked(name, "") == name


def test_a_clip_has_one_label_in_one_list() -> None:
    of: dict[str, str] = {}
    assert add(of, "a", "x", "line 1")
    assert not add(of, "a", "x", "line 2")
    with pytest.raises(ValueError, match="line 3: 'a' is 'y', and 'x' further up"):
        add(of, "a", "y", "line 3")
    apart({"train": "ab", "test": "c"})
    with pytest.raises(ValueError, match="'b' is in train and in test"):
        apart({"train": "ab", "test": "bc"})


def test_the_first_place_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").touch()
    assert first_of(tmp_path, ["a", "b", "b/c"]) == "b/c"
    assert first_of(tmp_path, ["a"]) is None


def test_the_hash_does_not_know_the_order() -> None:
    assert list_hash({"a": "1", "b": "2"}) == list_hash({"b": "2", "a": "1"})
    assert len({list_hash({"a": "1"}), list_hash({"a": "2"}), list_hash({"b": "1"})}) == 3
    # printf 'a,1\n' | sha256sum
    assert (
        list_hash({"a": "1"}) == "a763c2b572d8bdf96960a1511f6928ec35879ec98363a3e14e3c75ca1cbc8994"
    )
