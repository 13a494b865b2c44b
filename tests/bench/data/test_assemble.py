"""Statistics of train, the hash of the contents, and what a batch makes of both."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vcmm.bench.data import assemble as module
from vcmm.bench.data import chunks as chunking
from vcmm.bench.data.assemble import assemble, standard
from vcmm.bench.data.chunks import Rows, chunks, rows_of
from vcmm.bench.data.kinds import layout
from vcmm.bench.types import Split


def made(arrays, kinds=None, target=None, group=None, labels=("a", "b")):
    """Data whose three splits are thirds of these arrays."""
    n = len(next(iter(arrays.values())))
    target = np.arange(n) % 2 if target is None else target
    thirds = {"train": slice(0, n, 3), "valid": slice(1, n, 3), "test": slice(2, n, 3)}
    splits = {
        name: Split(
            {m: x[part] for m, x in arrays.items()},
            target[part],
            None if group is None else group[part],
        )
        for name, part in thirds.items()
    }
    return assemble("made", splits, labels=labels, kinds=kinds)


def draw(*shape, dtype=np.float32):
    values = np.random.default_rng(0).normal(3, 2, shape)
    return (values * 20).astype(dtype) if np.dtype(dtype).kind in "iu" else values.astype(dtype)


@pytest.fixture(params=[64, 1 << 24], ids=["small chunks", "one chunk"])
def chunk(request, monkeypatch):
    monkeypatch.setattr(chunking, "CHUNK", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i4", "i8", "u1", ">f4", ">i2"])
@pytest.mark.parametrize(
    ("shape", "spelling", "axes", "moved"),
    [
        ((30, 5), None, (0,), lambda x: x),
        ((30, 5), "sequence", (0, 1), lambda x: x[:, None]),
        ((30, 12, 3), None, (0, 1), lambda x: x.transpose(0, 2, 1)),
        ((30, 9, 9), None, (0, 1, 2), lambda x: x[:, None]),
        ((30, 6, 7, 3), None, (0, 1, 2), lambda x: x.transpose(0, 3, 1, 2)),
        ((30, 3, 6, 7), None, (0, 2, 3), lambda x: x),
    ],
)
def test_a_batch_is_standardized_with_train_alone(shape, spelling, axes, moved, dtype):
    array = draw(*shape, dtype=dtype)
    data = made({"a": array}, {"a": spelling} if spelling else None)
    train, test = array[0::3].astype(np.float64), array[2::3].astype(np.float64)
    mean, scale = train.mean(axes, keepdims=True), train.std(axes, keepdims=True)
    wanted = moved((test - mean) / scale)
    found = data.batch("test", np.arange(10)).inputs["a"]
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert found.shape[1:] == data.forms["a"].shape
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)  # of float32
    back = data.batch("test", torch.tensor([4, 1])).inputs["a"]
    assert torch.equal(back, found[[4, 1]])


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("value", [0.0, 0.1, -7e5, 1e-9])
def test_a_constant_entry_is_centred_and_not_divided(value):
    array = draw(60, 3, dtype=np.float64)
    array[:, 1] = value
    data = made({"a": array})
    assert data.forms["a"].scale[1] == 1
    assert data.batch("train", np.arange(20)).inputs["a"][:, 1].abs().max() < 1e-6
    array[2::3, 1] += 0.25  # constant in train alone
    moved = made({"a": array}).batch("test", np.arange(20)).inputs["a"][:, 1]
    torch.testing.assert_close(moved, torch.full((20,), 0.25))


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_time_stamps_keep_their_digits(dtype):
    """Around 1.7e9, float32 has steps of 128."""
    array = (1_700_000_000 + np.arange(30)[:, None]).astype(dtype)
    found = made({"a": array}).batch("train", np.arange(10)).inputs["a"][:, 0].double()
    wanted = torch.arange(10).double() * 3 - 13.5
    torch.testing.assert_close(found, wanted / wanted.std(unbiased=False), atol=1e-6, rtol=0)


@pytest.mark.usefixtures("chunk")
def test_a_large_mean_costs_no_digits():
    """The textbook formula, E x^2 - (E x)^2, would find 0 or less here."""
    array = 1e9 + draw(500, 2, dtype=np.float64)
    _, scale = standard(array, layout("x", array))
    np.testing.assert_allclose(scale, array.std(axis=0), rtol=1e-6)


def test_chunks_are_the_array(monkeypatch):
    monkeypatch.setattr(chunking, "CHUNK", 100)
    array = draw(37, 5)
    parts = list(chunks(array))
    assert [start for start, _ in parts] == list(range(0, 37, 5))  # 5 rows of 20 bytes
    assert np.array_equal(np.concatenate([rows for _, rows in parts]), array)
    assert [len(rows) for _, rows in chunks(draw(3, 500))] == [1, 1, 1]
    assert list(chunks(draw(0, 5))) == []


def test_rows_of_a_memory_map_are_read_when_asked_for(tmp_path):
    np.save(tmp_path / "a.npy", draw(20, 4))
    source = np.load(tmp_path / "a.npy", mmap_mode="r")
    index = np.array([3, 1, 19, 5])
    rows = rows_of(source, index)
    assert isinstance(rows, Rows)
    assert rows.source is source
    assert (rows.shape, rows.ndim, rows.dtype, len(rows)) == ((4, 4), 2, source.dtype, 4)
    assert np.array_equal(rows[np.array([2, 0])], source[[19, 3]])
    assert np.array_equal(rows[1:3], source[[1, 19]])
    assert np.array_equal(np.asarray(rows), source[index])
    with pytest.raises(ValueError, match="without a copy"):
        rows.__array__(copy=False)
    assert type(rows_of(np.array(source), index)) is np.ndarray


# The hash

ARRAYS = {"b": draw(30, 5), "a": draw(30, 12, 3)}


@pytest.mark.parametrize(
    "same",
    [
        {"a": ARRAYS["a"], "b": ARRAYS["b"]},
        {"b": np.asfortranarray(ARRAYS["b"]), "a": ARRAYS["a"][::-1].copy()[::-1]},
        {"b": ARRAYS["b"].astype(">f4"), "a": ARRAYS["a"]},
    ],
    ids=["order of modalities", "layout in memory", "byte order"],
)
def test_the_hash_does_not_see_how_data_is_stored(same, monkeypatch):
    plain = made(ARRAYS).hash
    assert made(same).hash == plain
    monkeypatch.setattr(chunking, "CHUNK", 50)
    assert made(same).hash == plain


def changed(where, what):
    arrays = {m: x.copy() for m, x in ARRAYS.items()}
    arrays[where][what] += 1
    return arrays


TARGET, GROUP = np.arange(30) % 2, np.arange(30) % 3
OTHERS = {
    "a value of train": lambda: made(changed("a", (0, 0, 0))),
    "a value of valid": lambda: made(changed("b", (1, 0))),
    "a value of test": lambda: made(changed("b", (29, 4))),
    "a name": lambda: made({"c": ARRAYS["a"], "b": ARRAYS["b"]}),
    "a dtype": lambda: made({"a": ARRAYS["a"].astype("f8"), "b": ARRAYS["b"]}),
    "a shape": lambda: made({"a": ARRAYS["a"].reshape(30, 6, 6), "b": ARRAYS["b"]}),
    "a kind": lambda: made(ARRAYS, {"b": "sequence"}),
    "a label": lambda: made(ARRAYS, target=1 - TARGET),
    "a name of a label": lambda: made(ARRAYS, labels=("a", "c")),
    "groups": lambda: made(ARRAYS, group=GROUP),
    "other groups": lambda: made(ARRAYS, group=GROUP + 1),
    "a modality less": lambda: made({"a": ARRAYS["a"]}),
}


def test_the_hash_sees_everything_else():
    hashes = {"nothing": made(ARRAYS).hash} | {what: make().hash for what, make in OTHERS.items()}
    assert len(set(hashes.values())) == len(hashes), hashes
    assert all(len(one) == 64 and int(one, 16) >= 0 for one in hashes.values())


def test_the_hash_does_not_see_names_and_prose():
    data = made(ARRAYS)
    other = assemble("other", data.splits, labels=data.labels, about="prose")
    assert (other.name, other.about, other.hash) == ("other", "prose", data.hash)


def test_known_moments_are_taken_as_they_are():
    moments = {"b": (np.zeros(5), np.full(5, 2.0))}
    data = made(ARRAYS)
    known = assemble("known", data.splits, labels=data.labels, moments=moments)
    rows = known.splits["valid"].inputs["b"]
    found = known.batch("valid", np.arange(10)).inputs["b"].numpy()
    np.testing.assert_array_equal(found, rows / 2)
    np.testing.assert_array_equal(known.forms["a"].mean, data.forms["a"].mean)


def test_targets_of_a_batch():
    data = made(ARRAYS)
    batch = data.batch("valid", np.array([2, 0]))
    assert batch.target.dtype == torch.int64
    assert batch.target.tolist() == data.splits["valid"].target[[2, 0]].tolist()
    assert batch.index.tolist() == [2, 0]
    matrix = replace(data, multilabel=True)
    assert matrix.batch("valid", np.array([2, 0])).target.dtype == torch.float32


def test_every_split_is_there():
    assert tuple(made(ARRAYS).splits) == module.SPLITS
