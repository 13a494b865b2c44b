"""What docs/media.md says of the data sets is what they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vcmm.bench.data import COLLECTIONS, DATA, cremad, kinetics_sounds
from vcmm.bench.signature import parameters

PAGE = (Path(__file__).parents[3] / "docs" / "media.md").read_text(encoding="utf-8")
SECTIONS = {
    "cremad": "CREMA-D",
    "kinetics_sounds": "Kinetics-Sounds",
    "nvgesture": "NVGesture",
    "twitter15": "Twitter-15 and Twitter-17",
    "twitter17": "Twitter-15 and Twitter-17",
}


def section(name: str) -> str:
    return PAGE.split(f"\n## {SECTIONS[name]}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", COLLECTIONS)
def test_every_option_is_named(name: str) -> None:
    said = set(re.findall(r"`(\w+)`", section(name)))
    assert parameters(DATA[name]).keys() <= said


@pytest.mark.parametrize("name", ["cremad", "kinetics_sounds"])
def test_what_is_decoded_and_what_is_loaded_share_their_options(name: str) -> None:
    decoding, loading = parameters(COLLECTIONS[name].parameters), parameters(DATA[name])
    assert {one: decoding[one].default for one in decoding} == {
        one: loading[one].default for one in decoding
    }


def test_the_shapes_and_hashes_are_those_of_the_code() -> None:
    for name, sounds in (("cremad", cremad.SOUNDS), ("kinetics_sounds", kinetics_sounds.SOUNDS)):
        for audio, sound in sounds.items():
            first, second = sound.shape
            row = next(line for line in PAGE.splitlines() if f"`{name}`, `{audio}`" in line)
            assert f"{first} x {second} float32" in row
            size, unit = re.search(r"float32, ([\d.]+) (kB|MB)", row).groups()  # type: ignore[union-attr]
            assert float(size) == pytest.approx(
                4 * first * second / {"kB": 1e3, "MB": 1e6}[unit], rel=0.01
            )
    for name, known in cremad.KNOWN.items():
        assert re.search(rf"`{name}` \| \d+ \| `{known[:16]}", PAGE)
