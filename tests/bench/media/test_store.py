"""What was written is what is read, byte for byte, and a damaged store says so."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vcmm.bench.media.store import Ragged, Store, open_store, verify, write_store

SAMPLES = [
    {"id": f"s{k}", "target": k % 2, "group": "é" if k else None, "lists": ["train"], "more": {}}
    for k in range(5)
]
WHOLE = [np.full((2, 3), k, np.float32) for k in range(5)]
VARIED = [np.arange(6 * (k + 1), dtype=np.int16).reshape(k + 1, 2, 3) for k in range(5)]


def made(folder: Path, **changes: Any) -> Store:
    arguments: dict[str, Any] = {
        "name": "made",
        "labels": ["x", "y"],
        "samples": SAMPLES,
        "arrays": {"whole": WHOLE, "varied": VARIED},
        "parameters": {"rate": 3},
    }
    return write_store(folder, **{**arguments, **changes})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    assert len(store) == 5
    assert store.ids == ("s0", "s1", "s2", "s3", "s4")
    assert store.target.tolist() == [0, 1, 0, 1, 0]
    assert store.groups == (None, "é", "é", "é", "é")
    assert (store.labels, store.parameters, store.lists[0]) == (("x", "y"), {"rate": 3}, ("train",))
    whole, varied = store.arrays["whole"], store.arrays["varied"]
    assert isinstance(whole, np.memmap)
    assert isinstance(varied, Ragged)
    assert whole.shape == (5, 2, 3)
    for k in range(5):
        np.testing.assert_array_equal(whole[k], WHOLE[k], strict=True)
        np.testing.assert_array_equal(varied[k], VARIED[k], strict=True)
    assert [len(one) for one in varied[3:]] == [4, 5]
    assert varied[-1].shape == (5, 2, 3)
    with pytest.raises(IndexError):
        varied[5]


def test_what_is_read_cannot_be_written(tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    for modality in ("whole", "varied"):
        with pytest.raises(ValueError, match="read-only"):
            store.arrays[modality][0][...] = 0


def test_a_ragged_array_goes_to_another_process_as_its_path(tmp_path: Path) -> None:
    varied = made(tmp_path / "store").arrays["varied"]
    sent = pickle.dumps(varied)
    assert varied[4].tobytes() not in sent
    np.testing.assert_array_equal(pickle.loads(sent)[4], varied[4], strict=True)


def test_the_digest_is_of_the_contents(tmp_path: Path) -> None:
    first = made(tmp_path / "a")
    assert made(tmp_path / "b", sources=[{"id": "elsewhere"}], parameters={}).digest == first.digest
    others = [[one + 1 for one in WHOLE], [one.astype(np.float64) for one in WHOLE]]
    digests = {made(tmp_path / f"c{k}", arrays={"whole": o}).digest for k, o in enumerate(others)}
    digests |= {
        made(tmp_path / "d", labels=["x", "z"]).digest,
        made(tmp_path / "e", samples=[{**one, "lists": ["test"]} for one in SAMPLES]).digest,
        first.digest,
    }
    assert len(digests) == 5


def test_files_are_summed_in_the_manifest(tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    files = {path.name for path in store.path.iterdir()} - {"manifest.json"}
    assert store.manifest["files"].keys() == files
    for name, file in store.manifest["files"].items():
        content = (store.path / name).read_bytes()
        assert file == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert np.load(store.path / "whole.npy", allow_pickle=False).shape == (5, 2, 3)
    verify(store)


def test_damage_is_told_with_what_mends_it(tmp_path: Path) -> None:
    path = made(tmp_path / "store").path
    content = (path / "varied.bin").read_bytes()
    (path / "varied.bin").write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"varied\.bin has 179 bytes, not 180; remove .* prepare"):
        open_store(path)
    (path / "varied.bin").write_bytes(content[:-1] + b"?")
    with pytest.raises(ValueError, match=r"varied\.bin has changed since it was written"):
        verify(open_store(path))
    (path / "varied.bin").unlink()
    with pytest.raises(ValueError, match=r"varied\.bin is missing"):
        open_store(path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 9}))
    with pytest.raises(ValueError, match="has format 9, and this version of vcmm reads 1"):
        open_store(path)
    for broken in ("{", "[]", "{}"):
        (path / "manifest.json").write_text(broken)
        with pytest.raises(ValueError, match=r"manifest\.json is broken"):
            open_store(path)
    with pytest.raises(FileNotFoundError, match="is no store"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        {"files": None},
        {"files": {}},
        {"files": {"samples.jsonl": 3}},
        {"arrays": {"whole": {}}},
        {"arrays": {"whole": {"dtype": "what", "shape": None}}},
        {"labels": 3},
        {"samples": 6},
        {"digest": None},
        {"failed": 3},
        {"lists": []},
        *({name: ...} for name in ("name", "parameters", "labels", "samples", "arrays", "files")),
    ],
    ids=repr,
)
def test_a_manifest_that_is_broken_says_what_mends_it(tmp_path: Path, broken: Any) -> None:
    path = made(tmp_path / "store").path
    manifest = {**json.loads((path / "manifest.json").read_text()), **broken}
    left = {name: value for name, value in manifest.items() if value is not ...}
    (path / "manifest.json").write_text(json.dumps(left))
    with pytest.raises(ValueError, match=r"is broken \(.*\); remove .*vcmm data prepare"):
        open_store(path)


def test_lines_that_are_broken_say_what_mends_it(tmp_path: Path) -> None:
    path = made(tmp_path / "store").path
    content = (path / "samples.jsonl").read_bytes()
    for broken in (content.replace(b'"id"', b'"ie"'), content.replace(b"{", b"?")):
        (path / "samples.jsonl").write_bytes(broken)
        with pytest.raises(ValueError, match=r"is broken \(.*vcmm data prepare"):
            open_store(path)


def test_a_manifest_is_verified_too(tmp_path: Path) -> None:
    path = made(tmp_path / "store").path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "labels": ["y", "x"]}))
    with pytest.raises(ValueError, match=r"manifest\.json is not as it was written"):
        verify(open_store(path))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": [*WHOLE[:4], WHOLE[4].astype(np.float64)]}, "number 4 float64"),
        ({"a": [*WHOLE[:4], WHOLE[4][0]]}, r"one number of axes.*number 4 float32 \(3,\)"),
        ({"a": [*VARIED[:4], VARIED[4][:0]]}, "not empty"),
        ({"a": [np.array([{}])] * 5}, "Python objects"),
        ({"../a": WHOLE}, "'../a' is no name"),
    ],
)
def test_what_no_store_can_hold(tmp_path: Path, arrays: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(tmp_path / "store", arrays=arrays)
