"""What docs/data.md says: its code runs, and its numbers are those of the data."""

import re
from pathlib import Path

import pytest

from vcmm.bench.data import COLLECTIONS, DATA, available, describe, load

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
TEXT = PAGE.read_text("utf-8")


def test_the_code_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), namespace)
    assert (tmp_path / "large" / "x_audio_train.npy").stat().st_size > 400 * 50 * 8 * 4


def rows():
    """The table of data sets: the name, and the other cells."""
    found = re.findall(r"^\| `(\w+)` \|(.*)\|$", TEXT, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def test_every_data_set_that_anybody_can_have_is_in_the_table():
    assert rows().keys() == DATA.keys() - COLLECTIONS.keys()


@pytest.mark.parametrize("name", [name for name in DATA if available(name)])
def test_the_table_says_what_there_is(name):
    told = describe(load(name))
    modalities, classes, *sizes = rows()[name][:5]
    assert modalities.startswith(", ".join(told["modalities"]))
    assert int(classes) == len(told["labels"])
    assert [int(size) for size in sizes] == [part["samples"] for part in told["splits"].values()]


def test_the_size_of_the_shipped_file():
    import vcmm.bench.data

    (said,) = re.findall(r"shipped with vcmm, ([\d.]+) MB", TEXT)
    size = Path(vcmm.bench.data.__file__).with_name("watch.npz").stat().st_size
    assert round(size / 1e6, 1) == float(said)
