"""All that can be wrong with one's own data is told, with its array and row."""

import numpy as np
import pytest

from vcmm.bench.data import check, load

from .files import good, save


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
            arrays[f"y_{split}"][:, 0] = 1  # more than one in most rows
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
    "classes as a matrix": (
        lambda a: a.update({k: np.eye(3)[y % 3] for k, y in a.items() if k.startswith("y_")}),
        ["y_train has exactly one 1 in every row"],
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


def test_one_group_and_no_valid(npz):
    arrays = good(valid=False) | {"group_train": np.zeros(60, int)}
    (problem,) = check(npz(arrays))
    assert "valid is missing, and nothing can be held out" in problem
    assert "more groups of every class" in problem
