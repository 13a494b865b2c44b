"""From a store to `Data`: lists, what is held out, and the hash."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vcmm.bench.media.assembled import assembled, chosen_ids, content_hash, held_out
from vcmm.bench.types import Form


@dataclass(frozen=True)
class Plain:
    """A view that gives what is stored, scaled."""

    scale: float = 1.0

    @property
    def form(self) -> Form:
        return Form("vector", (2,), None, np.zeros(1), np.ones(1))

    def __call__(self, sample: Any, chance: np.random.Generator | None) -> Any:
        return (sample * self.scale).astype(np.float32)


@dataclass
class Stored:
    """What `assembled` asks of a store, in memory."""

    ids: list[str]
    target: np.ndarray
    lists: list[tuple[str, ...]]
    groups: list[str | None]
    labels: tuple[str, ...] = ("no", "yes")
    digest: str = "d"
    path: Path = Path("here")
    manifest: dict[str, Any] = field(default_factory=lambda: {"failed": {}, "missing": {}})

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {"x": np.arange(2 * len(self.ids)).reshape(-1, 2)}


def store(count: int = 60) -> Any:
    return Stored(
        [f"clip-{n:03d}" for n in range(count)],
        np.arange(count) % 2,
        [("own/test",) if n % 5 == 0 else ("own/train",) for n in range(count)],
        [f"who-{n // 5}" for n in range(count)],
    )


LISTS: Any = {"train": "own/train", "test": "own/test"}


def data(of: Any, **options: Any) -> Any:
    return assembled("own", of, lists=LISTS, views={"x": Plain()}, about="Ours.", **options)


def test_the_lists_divide_the_store_and_train_gives_valid() -> None:
    of = store()
    made = data(of)
    assert {name: len(part) for name, part in made.splits.items()} == {
        "train": 43,
        "valid": 5,
        "test": 12,
    }
    rows = {split: made.splits[split].sources["x"].rows.tolist() for split in made.splits}
    assert rows["test"] == list(range(0, 60, 5))
    assert sorted(rows["train"] + rows["valid"] + rows["test"]) == list(range(60))
    assert {0, 1} == set(made.splits["valid"].target.tolist())
    batch = made.batch("test", np.array([1, 0]))
    assert batch.inputs["x"].tolist() == [[10, 11], [0, 1]]
    assert batch.target.tolist() == [1, 0]
    assert made.about == "Ours. Samples: 43 train, 5 valid, 12 test."


def test_train_stays_whole_when_nothing_is_held_out_or_valid_is_a_list() -> None:
    assert "valid" not in data(store(), valid=0.0).splits
    of = store()
    of.lists[1] = ("own/dev",)
    of.lists[2] = ("own/dev",)
    made = assembled("own", of, lists={**LISTS, "valid": "own/dev"}, views={}, about="")
    assert made.splits["valid"].target.tolist() == [1, 0]
    assert list(made.splits) == ["train", "valid", "test"]


def test_what_lacks_and_what_failed_is_told() -> None:
    of = store()
    of.manifest = {"failed": {"a": "why"}, "missing": {"b": "no", "c": "no"}}
    assert data(of).about.endswith(" test; 1 did not decode; 2 lack.")


def test_a_manifest_that_lost_what_failed_says_what_mends_it() -> None:
    of = store()
    of.manifest = {"name": "own", "missing": {}}
    with pytest.raises(ValueError, match=r"no 'failed'.* remove here .*vcmm data prepare own"):
        data(of)


def test_who_is_held_out_depends_on_ids_and_seed_alone() -> None:
    ids = [f"v{n}" for n in range(200)]
    classes = [n % 4 for n in range(200)]
    chosen = chosen_ids(ids, classes, 0.1, 0)
    assert len(chosen) == 20
    assert [sum(classes[ids.index(one)] == c for one in chosen) for c in range(4)] == [5] * 4
    assert chosen_ids(ids[::-1], classes[::-1], 0.1, 0) == chosen
    assert chosen_ids(ids, classes, 0.1, 1) != chosen
    lost = chosen_ids(ids[1:], classes[1:], 0.1, 0)  # a file lacks: the others stay, but for one
    assert len(set(chosen) - {"v0"} - set(lost)) <= 1


def test_classes_are_in_proportion_and_none_is_used_up() -> None:
    ids = [f"v{n}" for n in range(101)]
    classes = ["rare"] + ["a"] * 30 + ["b"] * 70
    chosen = chosen_ids(ids, classes, 0.1, 3)
    assert [sum(classes[ids.index(one)] == c for one in chosen) for c in ("rare", "a", "b")] == [
        0,
        3,
        7,
    ]
    with pytest.raises(ValueError, match="last of a class"):
        chosen_ids(["a", "b"], [0, 1], 0.5, 0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        chosen_ids(ids, classes, 1.0, 0)


def test_groups_are_kept_whole() -> None:
    of = store()
    of.lists = [("own/test",) if n < 10 else ("own/train",) for n in range(60)]
    made = data(of, grouped=True, valid=0.2)
    who = {name: set(part.group.tolist()) for name, part in made.splits.items()}
    assert not who["train"] & who["valid"]
    assert not who["train"] & who["test"]
    assert who["train"] | who["valid"] | who["test"] == set(of.groups)
    of.lists[0] = ("own/train",)
    with pytest.raises(ValueError, match="group 'who-0' is in"):
        data(of, grouped=True)


def test_rows_of_a_split_in_any_order_hold_out_the_same() -> None:
    of = store()
    rows = np.arange(60)
    rest, held = held_out(of.ids, of.target, rows, 0.1, 0)
    again = held_out(of.ids, of.target, rows[::-1], 0.1, 0)
    assert set(held) == set(again[1])
    assert set(rest) == set(again[0])


def test_a_wrong_list_names_those_that_are_there() -> None:
    of = store()
    of.lists = [("actor/train",)] * 60
    with pytest.raises(ValueError, match=r"no sample is in list 'own/train'.*actor/train") as error:
        data(of)
    assert "put it below the root and run: vcmm data prepare own --root DIR" in str(error.value)
    of.lists = [("own/train", "own/test")] * 60
    with pytest.raises(ValueError, match="'clip-000' is in list 'own/train' and in 'own/test'"):
        data(of)


def test_the_hash_covers_store_splits_and_views() -> None:
    of, view = store(), {"x": Plain()}
    rows = {"train": np.arange(3), "test": np.arange(3, 5)}
    hashes = {
        content_hash(of, rows, view),
        content_hash(of, {"train": np.arange(3), "test": np.arange(4, 5)}, view),
        content_hash(of, rows, {"x": Plain(2.0)}),
        content_hash(of, rows, {"y": Plain()}),
        content_hash(replace(of, digest="e"), rows, view),
        content_hash(replace(of, labels=("a", "b")), rows, view),
    }
    assert len(hashes) == 6
    assert content_hash(store(), dict(reversed(rows.items())), view) in hashes
