"""A made-up collection of small files, whose decoder does what their text says."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from vcmm.bench.media.collection import Collection, Found, Item, Parameters, Undecodable
from vcmm.bench.types import Array

LABELS = ("a", "b", "c")


def parameters(*, scale: float = 1.0, sizes: tuple[int, ...] = (3,), mode: str = "one") -> None:
    if scale <= 0:
        raise ValueError(f"scale is {scale}; it must be above 0")


def find(root: Path, parameters: Parameters) -> Found:
    """Of every <label>_<number>.txt and its .npy."""
    items: list[Item] = []
    missing: dict[str, str] = {}
    for text in sorted(root.glob("text/*.txt")):
        name = text.stem
        label, number = name.split("_")
        if not (root / "number" / f"{name}.npy").exists():
            missing[name] = f"number/{name}.npy"
            continue
        part = "test" if int(number) % 4 == 0 else "train"
        files = {"text": (f"text/{name}.txt",), "number": (f"number/{name}.npy",)}
        more = {"length": int(number) % 3 + 1}
        items.append(Item(name, label, (part,), files, f"by {int(number) % 2}", more))
    return Found(tuple(items), LABELS, missing, ("made up",))


def decode(root: Path, item: Item, parameters: Parameters) -> dict[str, Array]:
    (path,) = item.files["text"]
    text = (root / path).read_text(encoding="utf-8")
    act(text)
    if not text:
        raise Undecodable(f"{path} is empty")
    letters = np.frombuffer(text.encode(), np.uint8)
    number = np.load(root / item.files["number"][0], allow_pickle=False)
    return {
        "text": np.tile(letters, (item.more["length"], 1)),
        "number": (number * parameters["scale"]).astype(np.float32),
    }


def act(text: str) -> None:
    """What a decoder does at its worst."""
    word, _, rest = text.partition(" ")
    if word == "crash":
        os.write(2, b"the codec is sorry\n")
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "sleep":
        time.sleep(float(rest))
    if word == "once":  # ends its process the first time only
        mark = Path(rest)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if word in ("tell", "pause"):  # who decodes it, and takes its time
        Path(rest).write_text(str(os.getpid()), encoding="utf-8")
        time.sleep(3600 if word == "tell" else 1)
    if word == "raise":
        raise KeyError(rest)
    if word == "busy":  # the machine, and not the file
        raise OSError(errno.EMFILE, "Too many open files")
    if word == "lacks":
        raise ModuleNotFoundError(f"No module named {rest!r}")


COLLECTION = Collection(
    "letters", "text/<label>_<number>.txt and number/<label>_<number>.npy", parameters, find, decode
)


def write(root: Path, count: int = 24, **texts: str) -> Path:
    """A folder of them; some with another text, by their id."""
    (root / "text").mkdir(parents=True)
    (root / "number").mkdir()
    for number in range(count):
        name = f"{LABELS[number % 3]}_{number:03d}"
        text = texts.pop(name, f"sample {number}")
        (root / "text" / f"{name}.txt").write_text(text, encoding="utf-8")
        np.save(root / "number" / f"{name}.npy", np.full((2, 3), number, np.float64))
    assert not texts, texts
    return root


def told(path: Path) -> dict[str, Any]:
    """All bytes of a folder, by name."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}
