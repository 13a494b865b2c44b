"""Reading arrays: mapped when large, read once otherwise, never unpickled, and what is broken."""

import io
import zipfile

import numpy as np
import pytest
import torch

from vcmm.bench.data import check, chunks, load, own, stored
from vcmm.bench.data.chunks import Rows

from .files import good, save


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
