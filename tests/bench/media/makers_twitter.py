"""A small copy of Twitter-15 or 17: lists as TomBERT has them, real jpg, and a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN = "index\t#1 Label\t#2 ImageID\t#3 String\t#3 String"
TEST = "index\t#1 ImageID\t#2 String\t#2 String"
COUNTS = {"train": 12, "dev": 6, "test": 6}
COLOURS = ((200, 30, 30), (30, 200, 30), (30, 30, 200))
FEELING = ("is awful", "said", "is great")
TARGETS = ("Chuck Bass", "Oklahoma", "São Paulo")
# Sides of pictures: wide, tall, small and large.
SIDES = ((90, 60), (50, 80), (20, 30), (400, 370))
WORDS = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "rt",
    "chuck",
    "bass",
    "is",
    "awful",
    "said",
    "great",
    "t",
]
VOCAB = [*WORDS, "okla", "##homa", "sa", "##o", "paulo", "$", "@", "#", *"abcdefghijklmnopqrsuv"]

Cells = tuple[str, int | str, str, str, str]


def make(root: Path, name: str = "twitter2015") -> Path:
    """24 tweets below a root, which is returned."""
    rows = {part: cells(part, count) for part, count in COUNTS.items()}
    for part, cells_of in rows.items():
        write(root / f"{part}.tsv", cells_of, TEST if part == "test" else TRAIN)
        for number, (_, label, image, _, _) in enumerate(cells_of):
            if not (path := root / f"{name}_images" / image).exists():
                draw(path, int(label), SIDES[number % len(SIDES)])
    vocab(root / "vocab.txt")
    return root


def cells(part: str, count: int) -> list[Cells]:
    """The rows of a list; two tweets of a list share a picture, and one's name is not ASCII."""
    rows: list[Cells] = []
    for number in range(count):
        label = number % 3
        image = f"{part}_{number - 3 if number == 3 else number}.jpg"
        image = f"größe_{part}.jpg" if number == 1 else image
        text = f'RT @ Me : "$T$ {FEELING[label]}" # MCM'
        rows.append((str(number + 1), label, image, text, TARGETS[number % 3]))
    return rows


def write(path: Path, rows: Sequence[Cells], header: str = TRAIN) -> None:
    """A list of these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([header, *("\t".join(map(str, row)) for row in rows)])
    path.write_bytes((text + "\n").encode())


def draw(path: Path, label: int, sides: tuple[int, int]) -> None:
    """A jpg in the colour of its class, and not quite even."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = sides
    noise = np.random.default_rng(label).integers(0, 50, (height, width, 3))
    Image.fromarray((np.array(COLOURS[label]) + noise).astype(np.uint8)).save(path, quality=95)


def vocab(path: Path, words: Sequence[str] = VOCAB) -> None:
    """A vocabulary with a word on a line, as Google wrote them."""
    path.write_bytes("".join(f"{word}\n" for word in words).encode())
