"""One's own data: what is read, how it is split, and that all that is wrong with it is told."""

import io
import zipfile

import numpy as np
import pytest
import torch

from vcmm.bench.data import chunks, load, own, stored
from vcmm.bench.data.chunks import Rows
from vcmm.bench.data.own import check

CLASSES = np.array([3, 7, 11])


def good(n=60, valid=True):
    """Arrays of a data set with nothing wrong."""
    draw = np.random.default_rng(0)
    arrays = {}
    for split, count in {"train": n, "test": n // 2, "valid": n // 3}.items():
        if split == "valid" and not valid:
            continue
        arrays[f"x_audio_{split}"] = draw.normal(size=(count, 12, 3)).astype(np.float32)
        arrays[f"x_video_{split}"] = draw.integers(0, 255, (count, 9, 8, 3), np.uint8)
        arrays[f"y_{split}"] = CLASSES[np.arange(count) % 3]
    return arrays


def save(path, arrays):
    """As a folder, or as an .npz with or without compression."""
    if path.suffix == ".npz":
        (np.savez_compressed if "small" in path.stem else np.savez)(path, **arrays)
        return path
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


STORES = ["mine", "mine.npz", "small.npz"]


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return lambda arrays: save(tmp_path / request.param, arrays)


@pytest.fixture
def npz(tmp_path):
    return lambda arrays: save(tmp_path / "mine.npz", arrays)


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


@pytest.mark.parametrize("name", ["mine", "mine.npz"])
@pytest.mark.parametrize("fortran", [False, True])
def test_large_arrays_are_memory_mapped(tmp_path, monkeypatch, name, fortran):
    arrays = good(valid=False)
    if fortran:
        arrays = {key: np.asfortranarray(array) for key, array in arrays.items()}
    small = own.load(save(tmp_path / "read", arrays))
    monkeypatch.setattr(stored, "LARGE", 2000)
    path = save(tmp_path / name, arrays)
    data = own.load(path)
    test, train = data.splits["test"].inputs["audio"], data.splits["train"].inputs["audio"]
    assert isinstance(test, np.memmap)
    assert isinstance(train, Rows)
    assert isinstance(train.source, np.memmap)
    assert not isinstance(data.splits["test"].target, np.memmap)  # too small
    for split in ("train", "valid", "test"):
        rows = np.arange(len(data.splits[split]))[::-1].copy()
        one, other = data.batch(split, rows), small.batch(split, rows)
        for modality in data.modalities:
            assert torch.equal(one.inputs[modality], other.inputs[modality])
        assert torch.equal(one.target, other.target)


def test_compressed_members_are_read_once(tmp_path, monkeypatch):
    path = save(tmp_path / "small.npz", good())
    opens = []
    original = zipfile.ZipFile.open

    def counted(self, name, *args, **kwargs):
        opens.append(getattr(name, "filename", name))
        return original(self, name, *args, **kwargs)

    monkeypatch.setattr(zipfile.ZipFile, "open", counted)
    own.load(path)
    assert sorted(opens) == sorted(f"{name}.npy" for name in good())


def test_memory_maps_are_never_read_whole(tmp_path, monkeypatch):
    """Statistics, checks and the hash look at a chunk at a time."""
    monkeypatch.setattr(stored, "LARGE", 1)
    monkeypatch.setattr(chunks, "CHUNK", 1000)
    path = save(tmp_path / "mine", good(n=300, valid=False))
    largest = 0
    original = np.memmap.__getitem__

    def watched(self, key):
        nonlocal largest
        found = original(self, key)
        if self.ndim > 1:
            largest = max(largest, found.nbytes)
        return found

    monkeypatch.setattr(np.memmap, "__getitem__", watched)
    own.load(path)
    assert 0 < largest <= 1000


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


# What is wrong


def without(*names):
    return lambda a: [a.pop(name) for name in names]


def put(name, where, value):
    def change(arrays):
        array = arrays[name].copy()
        array[where] = value
        arrays[name] = array

    return change


def cut(name, rows):
    return lambda a: a.update({name: a[name][:rows]})


def give(name, array):
    return lambda a: a.update({name: array})


def empty(split):
    return lambda a: a.update({name: x[:0] for name, x in a.items() if name.endswith(split)})


def ones(arrays):
    """Every label becomes one class."""
    for split in ("train", "valid", "test"):
        arrays[f"y_{split}"] = np.full(len(arrays[f"y_{split}"]), 4)


def matrix(name, where, value):
    """Labels as a 0/1 matrix, with one entry changed."""

    def change(arrays):
        for split in ("train", "valid", "test"):
            arrays[f"y_{split}"] = np.eye(3)[np.arange(len(arrays[f"y_{split}"])) % 3]
        arrays[name][where] = value

    return change


def grouped(arrays):
    """One subject in two splits."""
    arrays["group_train"] = np.arange(60) % 7
    arrays["group_test"] = np.full(30, 5)


OBJECTS = np.array([[1, 2], None], object)

WRONG = {
    "no test": (
        without("x_audio_test", "x_video_test", "y_test"),
        ["y_test is missing", "x_audio_test is missing", "x_video_test is missing"],
    ),
    "half a valid": (without("y_valid"), ["y_valid is missing"]),
    "a modality less in test": (without("x_video_test"), ["x_video_test is missing"]),
    "no modality": (
        without(*(f"x_{m}_{s}" for m in ("audio", "video") for s in ("train", "valid", "test"))),
        ["there is no modality; give x_MODALITY_train"],
    ),
    "no labels": (
        without("y_train", "y_valid", "y_test"),
        ["y_train is missing", "y_valid is missing", "y_test is missing"],
    ),
    "lengths": (
        cut("x_audio_train", 59),
        ["rows of train differ: y_train has 60, x_audio_train has 59, x_video_train has 60; "
         "x_audio_train has no row 59"],
    ),
    "lengths of groups": (give("group_test", np.arange(29)), ["group_test has no row 29"]),
    "NaN": (
        put("x_audio_train", (17, 3, 1), np.nan),
        ["x_audio_train has nan in row 17; inputs are finite"],
    ),
    "infinity": (
        lambda a: (put("x_audio_test", (4, 0, 0), -np.inf)(a), put("x_audio_test", 9, np.inf)(a)),
        ["x_audio_test has -inf in row 4, and so have 1 more rows"],
    ),
    "too large to square": (
        lambda a: a.update(x_audio_valid=a["x_audio_valid"].astype(np.float64) * 1e160),
        ["e+159 in row 0, and so have 19 more rows"],
    ),
    "objects": (
        give("x_audio_train", OBJECTS),
        ["x_audio_train cannot be read: it holds Python objects, which are never unpickled"],
    ),
    "objects as labels": (give("y_test", OBJECTS), ["y_test cannot be read: it holds Python"]),
    "text as input": (
        give("x_audio_train", np.full((60, 12), "a")),
        ["x_audio_train is <U1; inputs are integers or floats"],
    ),
    "complex": (
        give("x_audio_test", np.zeros((30, 12, 3), complex)),
        ["x_audio_test is complex128"],
    ),
    "one class": (ones, ["y_train has one class, 4, in every row"]),
    "a class that train lacks": (
        put("y_test", 22, 5),
        ["y_test has class 5 in row 22, which y_train never has"],
    ),
    "a class of valid that train lacks": (put("y_valid", 2, 5), ["y_valid has class 5 in row 2"]),
    "no rows": (empty("test"), ["test is empty"]),
    "no rows of train": (empty("train"), ["train is empty"]),
    "a group in two splits": (
        grouped,
        ["group 5 is in group_train (row 5) and in group_test (row 0)"],
    ),
    "groups that are no names": (
        give("group_train", np.zeros(60)),
        ["group_train is float64 of shape (60,); groups are one integer or string per row"],
    ),
    "a misspelt split": (
        lambda a: a.update(x_audio_val=a.pop("x_audio_valid")),
        ["x_audio_val is not a name that is known; did you mean x_audio_valid?",
         "x_audio_valid is missing"],
    ),
    "a name that means nothing": (
        give("weights", np.zeros(3)),
        ["weights is not a name that is known; names are x_MODALITY_SPLIT, y_SPLIT"],
    ),
    "a reserved name": (
        lambda a: a.update({k.replace("audio", "shared"): v for k, v in a.items()}),
        ["'shared', of x_shared_..., cannot be the name of a modality"],
    ),
    "a name with a space": (
        lambda a: a.update({k.replace("audio", "my mic"): v for k, v in a.items()}),
        ["'my mic', of x_my mic_..., cannot be the name of a modality"],
    ),
    "the wrong rank": (
        give("x_audio_train", np.zeros(60)),
        ["x_audio_train has shape (60,); it must be [n, d]",
         "x_audio_valid has samples of shape (12, 3), and x_audio_train of ()",
         "x_audio_test has samples of shape (12, 3), and x_audio_train of ()"],
    ),
    "a scalar": (
        give("x_audio_train", np.float32(1)),
        ["x_audio_train has no row 0", "x_audio_train has shape (); it must be",
         "x_audio_valid has samples of shape (12, 3)", "x_audio_test has samples of shape (12, 3)"],
    ),
    "unclear channels": (
        lambda a: a.update({f"x_video_{s}": np.zeros((len(a[f"y_{s}"]), 5, 6, 7))
                            for s in ("train", "valid", "test")}),
        ["x_video_train has shape (60, 5, 6, 7), where neither"],
    ),
    "other samples in test": (
        lambda a: a.update(x_audio_test=a["x_audio_test"][:, :11]),
        ["x_audio_test has samples of shape (11, 3), and x_audio_train of (12, 3)"],
    ),
    "samples of nothing": (
        lambda a: a.update({f"x_audio_{s}": a[f"x_audio_{s}"][:, :0]
                            for s in ("train", "valid", "test")}),
        ["x_audio_train has shape (60, 0, 3): its samples, from row 0 on, hold nothing",
         "x_audio_valid has shape (20, 0, 3)", "x_audio_test has shape (30, 0, 3)"],
    ),
    "class ids as floats": (
        lambda a: a.update(y_train=a["y_train"].astype(float)),
        ["y_train is float64; class ids are integers: y_train.astype(np.int64)"],
    ),
    "class ids as a column": (
        lambda a: a.update(y_train=a["y_train"][:, None]),
        ["y_train has shape (60, 1); class ids have one axis: y_train.ravel()"],
    ),
    "labels of three axes": (give("y_test", np.zeros((30, 2, 2), int)), ["y_test has shape (30"]),
    "text in a matrix": (give("y_test", np.full((30, 3), "a")), ["y_test is <U1; a matrix"]),
    "a label of 2": (
        matrix("y_valid", (5, 1), 2),
        ["y_valid has 2.0 in row 5, column 1; a matrix of labels holds 0 and 1"],
    ),
    "a label of NaN": (matrix("y_train", (8, 0), np.nan), ["y_train has nan in row 8, column 0"]),
    "a label that train lacks": (
        matrix("y_train", (slice(None), 2), 0),
        ["y_train never has label 2 in any row; leave that column out"],
    ),
    "a matrix and ids": (
        lambda a: (matrix("y_train", (0, 0), 1)(a), a.update(y_test=np.arange(30) % 3)),
        ["y_test has shape (30,), and y_train (60, 3); give both alike"],
    ),
    "text and ids": (
        lambda a: a.update(y_test=np.full(30, "3")),
        ["y_test is <U1, and y_train int64; give both alike"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["mine", "mine.npz"])
@pytest.mark.parametrize(("change", "told"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_with_array_and_row(tmp_path, change, told, name):
    arrays = good()
    change(arrays)
    path = save(tmp_path / name, arrays)
    problems = check(path)
    assert len(problems) == len(told)  # one mistake is not told twice
    for line in told:
        assert any(line in problem for problem in problems), problems
    with pytest.raises(ValueError, match="cannot be used") as error:
        load(str(path))
    assert [line[4:] for line in str(error.value).splitlines()[1:]] == problems


def test_all_mistakes_are_told_at_once(npz):
    arrays = good()
    for name in ("NaN", "a class that train lacks", "a group in two splits", "objects"):
        WRONG[name][0](arrays)
    arrays["x_video_test"] = arrays["x_video_test"][:, :4]
    text = "\n".join(check(npz(arrays)))
    for part in (
        "x_audio_train cannot be read",
        "y_test has class 5 in row 22",
        "group 5 is in",
        "x_video_test has samples of shape (4, 8, 3)",
    ):
        assert part in text


def test_pickles_are_never_run(tmp_path):
    trap = tmp_path / "trap"

    class Evil:
        def __reduce__(self):
            return (open, (str(trap), "w"))

    evil = np.array([Evil()], object)
    for name in ("mine", "mine.npz"):
        path = save(tmp_path / name, good() | {"x_audio_train": evil, "group_train": evil})
        assert len(check(path)) >= 2
        with pytest.raises(ValueError, match="never unpickled"):
            load(str(path))
    assert not trap.exists()


def test_one_group_and_no_valid(npz):
    arrays = good(valid=False) | {"group_train": np.zeros(60, int)}
    (problem,) = check(npz(arrays))
    assert "valid is missing, and nothing can be held out" in problem
    assert "more groups of every class" in problem


def test_paths_that_lead_nowhere(tmp_path):
    for use in (check, own.load):
        with pytest.raises(FileNotFoundError, match=r"no file or folder '.*gone\.npz'"):
            use(tmp_path / "gone.npz")
    (tmp_path / "empty").mkdir()
    assert check(tmp_path / "empty") == [
        "there are no arrays; give x_MODALITY_SPLIT and y_SPLIT"
    ]  # fmt: skip


def test_broken_files(tmp_path):
    path = save(tmp_path / "mine.npz", good())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "not an .npz file, or a broken one" in check(path)[0]
    path.write_bytes(b"hello")
    assert "not an .npz file, or a broken one" in check(path)[0]

    folder = save(tmp_path / "mine", good())
    file = folder / "x_audio_train.npy"
    for content in (file.read_bytes()[:-100], b"hello", b"", file.read_bytes()[:40]):
        file.write_bytes(content)
        (problem,) = check(folder)
        assert problem.startswith("x_audio_train cannot be read: ")


def test_a_damaged_member_is_told(tmp_path):
    path = save(tmp_path / "small.npz", good())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x_video_train.npy")
    content = bytearray(path.read_bytes())
    middle = info.header_offset + info.compress_size // 2
    content[middle : middle + 20] = bytes(20)
    path.write_bytes(content)
    problems = check(path)
    assert problems[0].startswith("x_video_train cannot be read: ")


def test_unusual_npy_versions_are_read_or_refused(tmp_path):
    folder = save(tmp_path / "mine", good())
    second = io.BytesIO()
    np.lib.format.write_array(second, good()["y_test"], version=(2, 0))
    (folder / "y_test.npy").write_bytes(second.getvalue())
    assert check(folder) == []
    third = io.BytesIO()
    np.lib.format.write_array(third, good()["y_test"], version=(3, 0))
    (folder / "y_test.npy").write_bytes(third.getvalue())
    assert check(folder) == [
        "y_test cannot be read: its .npy format is (3, 0); store a plain array of numbers"
    ]
