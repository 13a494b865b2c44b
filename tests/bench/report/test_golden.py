"""Figures look as they did: small pictures that a person has looked at, compared with a tolerance.

    python -m tests.bench.report.test_golden        from the root of the repository writes them anew

Look at every one before it is committed. The tolerance is a root mean square over all pixels of a
picture that was shrunk fourfold, out of 255. The same libraries give zero. A point of another
height, or another colour, gives more than the tolerance, which a test shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vcmm.bench.arms import settings
from vcmm.bench.records import load
from vcmm.bench.report.figure import Figure, Source
from vcmm.bench.report.figures import FIGURES
from vcmm.bench.report.figures.critical import critical
from vcmm.bench.report.style import looks

from ..folders import study
from .studies import SEEDS, ablated, arm, searched, swept

GOLDEN = Path(__file__).parent / "golden"
SHRUNK = 4
TOLERANCE = 2.0
SHOWN = {
    "study": ("differences", "imbalance", "validation", "time"),
    "ablated": ("heat",),
    "swept": ("strength", "sensitivity"),
    "searched": ("budget",),
    "recorded": ("encoder",),
    "several": ("critical",),
}


def records(kind: str, root: Path) -> Path:
    if kind == "study":
        return study(root)
    if kind == "recorded":
        arm(root, 0.7)
        arm(root, 0.7, "vcmm", control={"encoder_every": 2}, seeds=(0,))
        return root
    if kind == "several":
        for index, name in enumerate(("watch", "digits", "mfeat")):
            for place, method in enumerate(("joint", "ogm", "mla", "ensemble")):
                mean = 0.6 + 0.02 * ((place + index) % 4) + 0.1 * index
                arm(root, mean, method=method, data={"name": name}, seeds=SEEDS[:2])
        return root
    return {"ablated": ablated, "swept": swept, "searched": searched}[kind](root)


def figures(kind: str, root: Path) -> Iterator[Figure]:
    found = settings(load(records(kind, root)))
    styles = looks([one.label for setting in found for one in setting.arms], "joint")
    made = [make(Source(found[0], "valid", styles)) for make in FIGURES]
    for figure in (*made, critical(found, "valid", styles)):
        if figure is not None and figure.name in SHOWN[kind]:
            yield figure


def drawn(figure: Figure, folder: Path) -> np.ndarray:
    """The picture, shrunk: rows, columns, colours."""
    from PIL import Image

    _, png = figure.save(str(folder / figure.name))
    with Image.open(png) as picture:
        return np.asarray(picture.convert("RGB").reduce(SHRUNK), float)


def golden(name: str) -> np.ndarray:
    from PIL import Image

    with Image.open(GOLDEN / f"{name}.png") as picture:
        return np.asarray(picture.convert("RGB"), float)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    assert one.shape == other.shape
    return float(np.sqrt(np.mean((one - other) ** 2)))


@pytest.mark.parametrize("kind", SHOWN)
def test_figures_look_as_they_did(kind: str, tmp_path: Path) -> None:
    names = []
    for figure in figures(kind, tmp_path / "runs"):
        assert distance(drawn(figure, tmp_path), golden(figure.name)) < TOLERANCE, figure.name
        names.append(figure.name)
    assert sorted(names) == sorted(SHOWN[kind])


def test_another_value_or_colour_is_seen(tmp_path: Path) -> None:
    (figure,) = (one for one in figures("swept", tmp_path / "runs") if one.name == "strength")
    (panel,) = figure.panels
    level, line = panel.series
    moved = replace(line, y=[line.y[0], *line.y[2:], line.y[1]])
    other = replace(line, look=line.look._replace(colour="arm-0"))
    for wrong in (moved, other):
        changed = replace(figure, panels=(replace(panel, series=(level, wrong)),))
        assert distance(drawn(changed, tmp_path), golden("strength")) > TOLERANCE


def test_every_picture_has_its_figure() -> None:
    names = [name for each in SHOWN.values() for name in each]
    assert {path.stem for path in GOLDEN.glob("*.png")} == set(names)


def main() -> None:
    from PIL import Image

    GOLDEN.mkdir(exist_ok=True)
    for kind in SHOWN:
        with tempfile.TemporaryDirectory() as folder:
            for figure in figures(kind, Path(folder) / "runs"):
                picture = Image.fromarray(drawn(figure, Path(folder)).astype(np.uint8))
                picture.save(GOLDEN / f"{figure.name}.png", optimize=True)


if __name__ == "__main__":
    main()
