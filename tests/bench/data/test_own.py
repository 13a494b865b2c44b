"""One's own data: what is read from any store, and how valid is held out of train."""

import numpy as np
import pytest
import torch

from vcmm.bench.data import check, load, own, stored

from .files import STORES, good, save

# What is read


def test_a_data_set_is_read_from_any_store(store):
    arrays = good()
    path = store(arrays)
    assert check(path) == []
    data = load(str(path))
    assert data.modalities == ("audio", "video")
    assert data.labels == ("3", "7", "11")
    assert data.splits["test"].target.tolist() == (np.arange(30) % 3).tolist()
    assert data.forms["audio"].shape == (3, 12)
    assert data.forms["video"].shape == (3, 9, 8)
    for split in ("train", "valid", "test"):
        for modality in data.modalities:
            found = data.splits[split].inputs[modality]
            assert found.dtype == arrays[f"x_{modality}_{split}"].dtype
            np.testing.assert_array_equal(found, arrays[f"x_{modality}_{split}"])
    assert "valid was given" in data.about


@pytest.mark.parametrize("valid", [True, False])
def test_the_hash_is_the_same_however_data_is_stored(tmp_path, monkeypatch, valid):
    arrays = good(valid=valid)
    hashes = set()
    for large in (1 << 26, 1):
        monkeypatch.setattr(stored, "LARGE", large)
        for name in STORES:
            path = tmp_path / str(large) / name
            path.parent.mkdir(exist_ok=True)
            hashes.add(own.load(save(path, arrays)).hash)
    assert len(hashes) == 1
    arrays["x_audio_test"][3, 2, 1] += 1
    assert own.load(save(tmp_path / "other", arrays)).hash not in hashes


def test_kinds_are_an_option(npz):
    arrays = good()
    for split in ("train", "valid", "test"):
        arrays[f"x_pulse_{split}"] = np.random.default_rng(1).normal(
            size=(len(arrays[f"y_{split}"]), 20)
        )
    path = npz(arrays)
    assert load(str(path)).forms["pulse"].kind == "vector"
    told = load(str(path), kinds={"pulse": "sequence", "video": "image-last"})
    assert told.forms["pulse"].shape == (1, 20)
    assert told.batch("test", np.arange(4)).inputs["pulse"].shape == (4, 1, 20)
    assert check(path, kinds={"pulze": "sequence"}) == [
        "kinds names 'pulze', which is no modality; there are audio, pulse, video"
    ]
    assert "vector needs 2 axes" in check(path, kinds={"video": "vector"})[0]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (np.array([-1, 5, 1000]), ("-1", "5", "1000")),
        (np.array([0, 1, 255], np.uint8), ("0", "1", "255")),
        (np.array(["yes", "no", "maybe"]), ("maybe", "no", "yes")),
    ],
)
def test_any_class_ids_are_mapped_and_keep_their_names(npz, values, labels):
    arrays = good()
    for split in ("train", "valid", "test"):
        arrays[f"y_{split}"] = values[np.arange(len(arrays[f"y_{split}"])) % 3]
    data = load(str(npz(arrays)))
    assert data.labels == labels
    for split in ("train", "valid", "test"):
        names = np.array(labels)[data.splits[split].target]
        assert names.tolist() == [str(v) for v in arrays[f"y_{split}"].tolist()]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
@pytest.mark.parametrize("valid", [True, False])
def test_several_labels_per_row(npz, dtype, valid):
    arrays = good(n=90, valid=valid)
    for split in ("train", "valid", "test") if valid else ("train", "test"):
        n = len(arrays[f"y_{split}"])
        arrays[f"y_{split}"] = (np.random.default_rng(n).random((n, 4)) < 0.4).astype(dtype)
    data = load(str(npz(arrays)))
    assert data.multilabel
    assert data.classes == 4
    target = data.batch("test", np.arange(45)).target
    assert target.dtype == torch.float32
    np.testing.assert_array_equal(target.numpy(), arrays["y_test"].astype(np.float32))


# The validation split


def test_valid_is_held_out_of_train_when_it_is_not_given(store):
    arrays = good(n=120, valid=False)
    data = load(str(store(arrays)))
    train, valid = data.splits["train"], data.splits["valid"]
    assert np.bincount(valid.target).tolist() == [6, 6, 6]  # 15 % of 40 each
    assert np.bincount(train.target).tolist() == [34, 34, 34]
    assert "15% of train" in data.about
    # Together they are the rows that were given, each once and with its own label.
    rows = np.concatenate([np.asarray(s.inputs["audio"]) for s in (train, valid)])
    both = np.concatenate([train.target, valid.target])
    given = {
        row.tobytes(): label
        for row, label in zip(arrays["x_audio_train"], np.arange(120) % 3, strict=True)
    }
    assert {row.tobytes(): label for row, label in zip(rows, both, strict=True)} == given
    # Statistics are those of the rest, not of valid.
    mean = np.asarray(train.inputs["audio"]).astype(np.float64).mean((0, 1))
    np.testing.assert_allclose(data.forms["audio"].mean, mean, rtol=1e-9)


def test_valid_is_the_same_every_time(tmp_path):
    data = [own.load(save(tmp_path / name, good(valid=False))) for name in STORES]
    for other in data[1:]:
        np.testing.assert_array_equal(
            other.splits["valid"].inputs["video"], data[0].splits["valid"].inputs["video"]
        )


@pytest.mark.parametrize("names", ["integers", "strings"])
def test_a_group_is_never_on_both_sides(npz, names):
    arrays = good(n=200, valid=False)
    group = np.arange(200) // 17
    arrays["group_train"] = group if names == "integers" else np.char.add("who", group.astype(str))
    data = load(str(npz(arrays)))
    train, valid = (set(data.splits[s].group.tolist()) for s in ("train", "valid"))
    assert valid
    assert not train & valid
    assert train | valid == set(arrays["group_train"].tolist())
    assert 15 <= len(data.splits["valid"]) <= 45
    assert data.splits["test"].group is None
