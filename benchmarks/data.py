"""How fast batches of stored media are made, as a ratio to how fast they can be trained on.

    python benchmarks/data.py [--threads 2] [--json PATH]

One side makes a batch of train, augmented, out of a memory-mapped store: `Data.batch`. The other
trains two ResNet-18 on such a batch. Both take turns on the same cores within one run; a ratio of
20 says that in the time of one training sample 20 are made. The bar is 20, stated for two CPU
cores. What is stored is noise, which costs as much as pictures do, and it is small enough to stay
in the memory of the system after the first pass, which is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from measure import Plan, compare, ratios, seconds_of, spread
from models import TwoEncoders
from overhead import adam, machine
from torch import Tensor
from torch.nn import functional as F

from vcmm.bench.media.assembled import assembled
from vcmm.bench.media.source import View
from vcmm.bench.media.store import write_store
from vcmm.bench.media.views import Frames, Picture, Spectrogram
from vcmm.bench.types import Array, Data

BAR = 20.0
PLAN = Plan(least=8, most=40, seconds=60, precision=0.05)


@dataclass(frozen=True)
class Sizes:
    """What is stored, made and trained."""

    stored: int = 128  # samples
    batch: int = 64  # that are made at once, as the papers do
    step: int = 8  # that are trained at once
    width: int = 64
    side: int = 256  # the shorter one of a stored frame
    pixels: int = 224
    sound: tuple[int, int] = (257, 188)  # STFT of 3 s
    mels: tuple[int, int] = (128, 1024)  # fbank of 10 s
    classes: int = 6


@dataclass(frozen=True)
class Row:
    """One kind of data."""

    what: str
    median: float
    low: float
    high: float
    made: float  # samples a second
    trained: float
    pairs: int

    @property
    def met(self) -> bool:
        return self.median >= BAR

    def line(self) -> str:
        within = f"{self.low:.1f} - {self.high:.1f}"
        met = "yes" if self.met else "NO"
        if not self.met and self.high >= BAR:
            met = "within noise"
        return (
            f"{self.what:<38} {self.median:7.1f}  {within:>15} {self.made:9.1f} "
            f"{self.trained:9.2f} {BAR:5.0f} {self.pairs:6d}  {met}"
        )


def cases(sizes: Sizes) -> dict[str, dict[str, View]]:
    """Views of the two modalities, in the names of `models.MODALITIES`."""
    sound = Spectrogram(shape=sizes.sound)
    frames = Frames(count=3, pick="uniform", size=sizes.pixels)
    return {
        "1 frame, 3 s of sound": {"audio": sound, "video": Frames(size=sizes.pixels)},
        "3 frames, 10 s of sound": {"audio": Spectrogram(shape=sizes.mels), "video": frames},
        "a picture with RandAugment, 3 s": {"audio": sound, "video": Picture(size=sizes.pixels)},
    }


def noise(views: dict[str, View], sizes: Sizes, folder: Path) -> Data:
    """A data set of these modalities in a store."""
    chance, video = np.random.default_rng(0), views["video"]
    frames = video.count if isinstance(video, Frames) else None
    size = (sizes.side, sizes.side * 4 // 3, 3)
    shape = size if frames is None else (frames, *size)
    arrays: dict[str, Sequence[Array]] = {
        "audio": [
            chance.standard_normal(views["audio"].form.shape[1:], np.float32)
            for _ in range(sizes.stored)
        ],
        "video": [chance.integers(0, 256, shape, np.uint8) for _ in range(sizes.stored)],
    }
    samples: list[dict[str, Any]] = [
        {"id": f"{n:05d}", "target": n % sizes.classes, "group": None, "lists": ["train"]}
        | {"more": {}}
        for n in range(sizes.stored)
    ]
    store = write_store(
        folder,
        name="noise",
        labels=tuple(map(str, range(sizes.classes))),
        samples=samples,
        arrays=arrays,
        known={"failed": {}, "missing": {}},
    )
    return assembled("noise", store, lists={"train": "train"}, views=views, about="", valid=0)


def maker(data: Data, sizes: Sizes) -> Callable[[], float]:
    """Seconds for each sample of a batch; every batch is another draw of other rows."""
    order, draws = np.random.default_rng(1), count()
    device = torch.device("cpu")

    def side() -> float:
        rows, draw = order.permutation(sizes.stored)[: sizes.batch], next(draws)
        return seconds_of(lambda: data.batch("train", rows, draw), device) / len(rows)

    return side


def trainer(data: Data, sizes: Sizes) -> Callable[[], float]:
    """Seconds for each sample of a step of both encoders, on a batch that is there already."""
    torch.manual_seed(0)
    model = TwoEncoders(sizes.width, sizes.classes)
    optimizer = adam(model, model.claims())
    batch = data.batch("train", torch.arange(sizes.step), draw=0)
    images = {name: spread_out(x) for name, x in batch.inputs.items()}
    frames = len(images["video"]) // sizes.step

    def step() -> None:
        features = {name: encoder(images[name]) for name, encoder in model.encoders.items()}
        features["video"] = features["video"].unflatten(0, (-1, frames)).mean(dim=1)
        logits = [model.heads[name](h) for name, h in features.items()]
        F.cross_entropy(torch.stack(logits).mean(dim=0), batch.target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return lambda: seconds_of(step, torch.device("cpu")) / sizes.step


def spread_out(inputs: Tensor) -> Tensor:
    """Frames [n, c, t, h, w] as images [n t, c, h, w]; images as they are."""
    return inputs.transpose(1, 2).flatten(0, 1).contiguous() if inputs.ndim == 5 else inputs


def rows(sizes: Sizes, plan: Plan) -> Iterator[Row]:
    for what, views in cases(sizes).items():
        with tempfile.TemporaryDirectory() as folder:
            data = noise(views, sizes, Path(folder) / "store")
            trained, made = compare(trainer(data, sizes), maker(data, sizes), plan)
            found = ratios(trained, made)
            rates = [1 / statistics.median(seconds) for seconds in (made, trained)]
            yield Row(what, *spread(found), *rates, len(found))


def main(arguments: list[str] | None = None, sizes: Sizes | None = None, plan: Plan = PLAN) -> None:
    parser = argparse.ArgumentParser(description="How fast batches of stored media are made.")
    parser.add_argument("--threads", type=int, default=2, help="of torch and of OpenCV")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    cv2.setNumThreads(options.threads)
    about, sizes = machine(torch.device("cpu")), sizes or Sizes()
    print(f"{about['cpu']}, {options.threads} threads, torch {about['torch']}")
    print(f"{about['date']}, load {', '.join(f'{x:.1f}' for x in about['load'])}\n")
    print(f"{'made / trained':<38}   ratio  {'95 % interval':>15}    made/s trained/s   bar  pairs")
    table: list[Row] = []
    for row in rows(sizes, plan):
        print(row.line(), flush=True)
        table.append(row)
    if options.json is not None:
        settings = {"threads": options.threads, "opencv": cv2.__version__, **asdict(sizes)}
        found = [{**asdict(row), "bar": BAR, "met": row.met} for row in table]
        result = {"machine": about, "settings": settings, "rows": found}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
