"""The benchmark of the input pipeline runs, and says what it should; never how fast."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        before = set(sys.modules)
        import data

        yield data
        for name in ({"data", "overhead", "measure", "models"} - before) & set(sys.modules):
            del sys.modules[name]


@pytest.fixture
def sizes(script: Any) -> Iterator[Any]:
    threads = cv2.getNumThreads()
    yield script.Sizes(
        stored=6, batch=4, step=2, width=2, side=40, pixels=32, sound=(33, 20), mels=(20, 33)
    )
    cv2.setNumThreads(threads)


def test_every_kind_of_data_has_a_row(
    script: Any, sizes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = script.Plan(least=1, most=1, seconds=0, precision=0)
    path = tmp_path / "data.json"
    script.main(["--threads", "1", "--json", str(path)], sizes, plan)
    result = json.loads(path.read_text())
    rows = {row["what"]: row for row in result["rows"]}
    assert rows.keys() == script.cases(sizes).keys()
    assert all(row["made"] > 0 and row["trained"] > 0 and row["bar"] == 20 for row in rows.values())
    assert result["settings"]["threads"] == 1
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in rows)


class Recorded:
    """Data that remembers what it was asked for."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.asked: list[tuple[Any, int]] = []

    def batch(self, split: str, rows: Any, draw: int) -> Any:
        self.asked.append((rows, draw))
        return self.data.batch(split, rows, draw)


@pytest.mark.parametrize(
    ("what", "audio", "video"),
    [
        ("1 frame, 3 s of sound", (1, 33, 20), (3, 1, 32, 32)),
        ("3 frames, 10 s of sound", (1, 20, 33), (3, 3, 32, 32)),
        ("a picture with RandAugment, 3 s", (1, 33, 20), (3, 32, 32)),
    ],
)
def test_what_is_measured_is_augmented_and_comes_out_of_a_store(
    script: Any, sizes: Any, tmp_path: Path, what: str, audio: Any, video: Any
) -> None:
    data = script.noise(script.cases(sizes)[what], sizes, tmp_path / "store")
    assert isinstance(data.splits["train"].sources["video"].stored, np.memmap)
    recorded = Recorded(data)
    side = script.maker(recorded, sizes)
    side(), side()
    (first, before), (second, after) = recorded.asked
    assert before != after
    assert len(first) == len(second) == 4
    assert first.tolist() != second.tolist()
    batch, other = (data.batch("train", first, draw).inputs for draw in (before, after))
    assert {name: x.shape for name, x in batch.items()} == {
        "audio": (4, *audio),
        "video": (4, *video),
    }
    assert not torch.equal(batch["video"], other["video"])
    assert script.trainer(data, sizes)() > 0


def test_a_row_says_whether_the_bar_is_met(script: Any) -> None:
    def said(low: float, median: float, high: float) -> str:
        return script.Row("x", median, low, high, 1.0, 1.0, 9).line()

    assert said(19, 21, 25).endswith("yes")
    assert said(18, 19, 21).endswith("within noise")
    assert said(17, 18, 19).endswith("NO")
