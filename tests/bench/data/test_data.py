"""Loading by name or path, once; describing; and what a wrong name is told."""

import json
import os

import numpy as np
import pytest

from vcmm.bench import data
from vcmm.bench.data import DATA, available, check, describe, get, load
from vcmm.bench.signature import parameters

from .files import good, save


def test_a_misspelt_name():
    with pytest.raises(FileNotFoundError, match="there is no data 'wach'") as error:
        load("wach")
    for part in ("did you mean 'watch'?", *DATA, "mine.npz or a folder of .npy files"):
        assert part in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"there is no data '/nowhere/mine\.npz'"):
        load("/nowhere/mine.npz")


def test_a_misspelt_option():
    with pytest.raises(ValueError, match="data 'watch' has no option 'strid'; did you mean"):
        load("watch", strid=3)
    with pytest.raises(TypeError, match="'stride' is 'x'; it must be a whole number"):
        load("watch", stride="x")


@pytest.mark.parametrize("name", DATA)
def test_options_are_keywords_with_types_and_defaults(name):
    """They become the flags of the command line."""
    assert all(not p.required and p.annotation for p in parameters(DATA[name]).values())


def test_data_is_loaded_once():
    assert load("synthetic", seed=1) is load("synthetic", seed=1, modalities=2)
    assert load("synthetic", noise=[1, 2]) is load("synthetic", noise=(1.0, 2.0))
    assert load("synthetic", seed=1) is not load("synthetic", seed=2)


@pytest.mark.parametrize("name", ["mine", "mine.npz"])
def test_own_data_is_loaded_again_when_it_has_changed(tmp_path, name):
    arrays = good()
    path = save(tmp_path / name, arrays)
    first = load(str(path))
    assert load(str(path)) is first
    assert load(str(path), kinds={"audio": "sequence"}) is not first
    arrays["x_audio_test"] += 1
    if path.is_dir():
        np.save(path / "x_audio_test.npy", arrays["x_audio_test"])
        file = path / "x_audio_test.npy"
    else:
        file = save(path, arrays)
    later = file.stat().st_mtime_ns + 10**9  # a clock may tick more slowly than this test
    os.utime(file, ns=(later, later))
    assert load(str(path)).hash != first.hash


def test_a_name_comes_before_a_path(tmp_path, monkeypatch):
    save(tmp_path / "watch", good())
    monkeypatch.chdir(tmp_path)
    assert load("watch").name == "watch"
    assert load("watch").modalities == ("accelerometer", "gyroscope")
    assert load("./watch").modalities == ("audio", "video")


def test_what_can_be_downloaded():
    assert available("watch")
    assert available("synthetic")
    with pytest.raises(ValueError, match="'watch' comes with vcmm"):
        get("watch")
    with pytest.raises(ValueError, match="'digit' cannot be downloaded; what can be: digits, mfe"):
        get("digit")


def test_get_by_name(monkeypatch):
    asked = []
    monkeypatch.setattr(data.fetch, "get", lambda recipe, force: asked.append((recipe, force)))
    get("digits", force=True)
    assert asked == [(data.RECIPES["digits"], True)]


def test_a_description_is_json_and_counts(tmp_path):
    arrays = good() | {"group_train": np.arange(60) // 6}
    told = describe(load(str(save(tmp_path / "mine.npz", arrays))))
    assert json.loads(json.dumps(told)) == told
    assert told["modalities"] == {
        "audio": {"kind": "sequence", "shape": [3, 12], "dtype": "float32"},
        "video": {"kind": "image", "shape": [3, 9, 8], "dtype": "uint8"},
    }
    assert told["splits"]["train"] == {
        "samples": 60,
        "groups": 10,
        "classes": {"3": 20, "7": 20, "11": 20},
    }
    assert told["splits"]["valid"]["groups"] is None
    assert (told["name"], told["multilabel"], len(told["hash"])) == ("mine", False, 64)


def test_a_description_of_several_labels(tmp_path):
    arrays = good()
    for split in ("train", "valid", "test"):
        arrays[f"y_{split}"] = np.tile([1, 0, 1], (len(arrays[f"y_{split}"]), 1))
        arrays[f"y_{split}"][::2, 1] = 1
    path = save(tmp_path / "mine.npz", arrays)
    assert check(path) == []
    told = describe(load(str(path)))
    assert told["multilabel"]
    assert told["splits"]["test"]["classes"] == {"label 0": 30, "label 1": 15, "label 2": 30}


@pytest.mark.parametrize("name", [name for name in DATA if available(name)])
def test_every_data_set_says_where_it_comes_from(name):
    told = load(name)
    assert len(told.about) > 40
    assert told.name == name
    groups = [set(part.group.tolist()) for part in told.splits.values() if part.group is not None]
    assert sum(map(len, groups)) == len(set().union(*groups))
