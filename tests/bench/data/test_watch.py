"""The data set that is shipped: no subject in two splits, and the very data it was."""

import ast
import hashlib
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from vcmm.bench.data import watch
from vcmm.bench.data.describe import describe

FILE = resources.files("vcmm.bench.data").joinpath("watch.npz")
TOOL = Path(__file__).parents[3] / "tools" / "make_watch.py"


@pytest.fixture(scope="module")
def data():
    return watch.load()


def test_the_file_is_small_and_holds_no_pickle():
    assert Path(str(FILE)).stat().st_size <= 5_000_000
    with FILE.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        stored = {name: archive[name] for name in archive.files}
    assert not any(array.dtype.hasobject for array in stored.values())
    assert stored["length"].sum() == len(stored["accelerometer"]) == len(stored["gyroscope"])
    assert len(stored["length"]) == 140  # 7 exercises, 10 subjects, 2 sides


def test_the_licence_is_shipped_beside_it():
    notice = resources.files("vcmm.bench.data").joinpath("WATCH_LICENSE").read_text("utf-8")
    assert "Copyright (c) 2018, David M. Burns" in notice
    assert "Redistributions in binary form must reproduce the above copyright notice" in notice
    assert "seglearn 1.2.5" in notice


def test_no_subject_is_in_two_splits(data):
    subjects = {name: set(split.group.tolist()) for name, split in data.splits.items()}
    assert subjects == {"train": {1, 2, 3, 4, 5, 6}, "valid": {7}, "test": {8, 9, 10}}


def test_windows_per_class(data):
    counts = {name: part["classes"] for name, part in describe(data)["splits"].items()}
    assert {name: list(part.values()) for name, part in counts.items()} == {
        "train": [287, 421, 430, 418, 416, 356, 341],
        "valid": [51, 89, 92, 82, 86, 56, 68],
        "test": [164, 260, 258, 218, 221, 171, 192],
    }
    assert data.labels[0] == "pendulum"
    assert data.labels[-1] == "upright row"


def test_what_models_get(data):
    assert data.modalities == ("accelerometer", "gyroscope")
    batch = data.batch("train", np.arange(len(data.splits["train"])))
    for values in batch.inputs.values():
        assert values.shape == (2669, 3, 100)
        torch.testing.assert_close(values.mean((0, 2)), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(values.std((0, 2)), torch.ones(3), atol=1e-4, rtol=0)


def test_the_units_are_g_and_radians_per_second(data):
    """At rest an accelerometer feels 1 g."""
    felt = np.linalg.norm(data.splits["train"].inputs["accelerometer"], axis=2)
    assert 0.9 < np.median(felt) < 1.1
    turned = np.abs(data.splits["train"].inputs["gyroscope"])
    assert turned.max() < 35  # 2000 degrees per second, the range of such sensors


def test_it_is_the_data_that_results_were_made_with(data):
    """Another hash is another data set: raise the result version in spec.py as well."""
    assert data.hash == "1ed18b20d0d8fc94a147ee17183ae6dc4273a5ddd335f118bbe6c34e8d47d2c3"


def test_windows_stay_within_recordings():
    starts, recording = watch.windows(np.array([100, 99, 205], np.int32), 50)
    assert starts.tolist() == [0, 199, 249, 299]
    assert recording.tolist() == [0, 2, 2, 2]
    samples = np.arange(404 * 3, dtype=np.int16).reshape(404, 3)
    assert np.array_equal(watch.cut(samples, starts)[2], samples[249:349])


def test_stride():
    assert len(watch.load(stride=100).splits["train"]) == pytest.approx(2669 / 2, rel=0.05)
    with pytest.raises(ValueError, match="stride = 0"):
        watch.load(stride=0)


def constants(source):
    """Names bound to literals in a file, without running it."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


def test_the_tool_unpickles_nothing_that_it_did_not_check(tmp_path):
    """A wheel with another pickle, which would write a file if it were loaded."""
    import runpy

    tool = runpy.run_path(str(TOOL))
    known = constants(TOOL.read_text("utf-8"))
    trap = tmp_path / "trap"

    class Evil:
        def __reduce__(self):
            return (open, (str(trap), "w"))

    np.save(tmp_path / "evil.npy", np.array([Evil()], object), allow_pickle=True)
    content = (tmp_path / "evil.npy").read_bytes()
    wheel = tmp_path / "seglearn.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(known["MEMBER"], content)
        archive.writestr(known["LICENSE"], "licence")
    with pytest.raises(ValueError, match=hashlib.sha256(content).hexdigest()):
        tool["read"](wheel)
    assert not trap.exists()


def test_the_tool_makes_arrays_in_a_fixed_order():
    import runpy

    tool = runpy.run_path(str(TOOL))
    source = {
        "X": [np.full((4, 6), 0.5), np.full((3, 6), -1.25)],
        "X_labels": ["ax", "ay", "az", "wx", "wy", "wz"],
        "y": np.array([1, 0]),
        "y_labels": ["PEN", "ROW"],
        "side": np.array([0.0, 1.0]),
        "subject": np.array([2, 1]),
    }
    made = tool["arrays"](source)
    assert made["length"].tolist() == [3, 4]
    assert made["subject"].tolist() == [1, 2]
    assert made["exercise"].tolist() == [0, 1]
    assert made["exercises"].tolist() == ["pendulum", "upright row"]
    scaled = made["accelerometer"] / made["accelerometer_steps"]
    assert scaled[:, 0].tolist() == [-1.25] * 3 + [0.5] * 4
    source["X"][0][0, 3] = 40.0  # rad/s
    with pytest.raises(ValueError, match="gyroscope does not fit"):
        tool["arrays"](source)
