"""What a step of each method costs, as a ratio to one of joint training.

    python benchmarks/methods.py [--device cuda] [--samples 128 --pixels 160] [--only ogm]

Both train two ResNet-18 with fused Adam, in pairs that are interleaved within one run. The bar is
1.05 times the work that the method makes for one of joint training. Methods count their own
forwards and backwards. `passes` is (forwards + backwards) / 2, for a reader who counts passes of
the network. It is no measure of time, because a backward has two products for every one of a
forward, of the gradient with the weights and with the inputs. `work` is therefore (forwards + 2
backwards) / 3, and the bar stands on it. The two agree for a method that has as many backwards as
forwards. For MMPareto, with a second backward, the bar is wider than it would be on `passes`, and
for G2D, with a second forward, it is narrower; both are printed.

Every method has begun an epoch, so it has its prototypes, teachers and weights, as it has in a run.
What it takes to get them is not in a step: the report has it.

At the default sizes a fast GPU waits for Python, so there the ratio counts operators: a method that
adds a handful looks slow. Give it samples and pixels enough to be busy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Plan, compare, ratios, seconds_of, spread
from models import MODALITIES, ResNet18
from overhead import machine

from vcmm.bench.data.assemble import SPLITS, assemble
from vcmm.bench.data.kinds import Spelling
from vcmm.bench.fusions import FUSIONS
from vcmm.bench.method import Method, groups
from vcmm.bench.methods import METHODS
from vcmm.bench.model import Multimodal
from vcmm.bench.types import Batch, Data, Split

PLAN = Plan(least=8, most=40, seconds=40, precision=0.02)
LEFT_OUT = {"joint", "unimodal"}  # what is compared with, and what has one encoder alone
ROWS = 128  # of train, which methods look at before an epoch
# What is estimated or taught at that time does not change what a step costs.
OPTIONS: dict[str, dict[str, Any]] = {"g2d": {"teacher_epochs": 1}, "gblend": {"super_epoch": 1}}


@dataclass(frozen=True)
class Sizes:
    """What is trained."""

    width: int = 64
    samples: int = 32
    pixels: int = 64
    classes: int = 6


@dataclass(frozen=True)
class Row:
    """One method."""

    method: str
    median: float
    low: float
    high: float
    passes: float
    work: float
    pairs: int

    @property
    def bar(self) -> float:
        return 1.05 * self.work

    def line(self) -> str:
        within = f"{self.low:.3f} - {self.high:.3f}"
        met = "yes" if self.median <= self.bar else "NO"
        if met == "NO" and self.low <= self.bar:
            met = "within noise"
        return (
            f"{self.method:<12} {self.median:7.3f}   {within:<15} {self.passes:6.2f} "
            f"{self.work:5.2f} {self.bar:7.3f} {self.pairs:6d}  {met}"
        )


def noise(sizes: Sizes) -> Data:
    """A train split that there is nothing to learn from."""
    chance, shape = np.random.default_rng(0), (ROWS, sizes.pixels, sizes.pixels)
    inputs = {
        m: chance.standard_normal((*shape, channels), dtype=np.float32)
        for m, channels in MODALITIES.items()
    }
    part = Split(inputs, np.arange(ROWS) % sizes.classes)
    labels = tuple(map(str, range(sizes.classes)))
    kinds: dict[str, Spelling] = dict.fromkeys(MODALITIES, "image-last")
    return assemble("noise", dict.fromkeys(SPLITS, part), labels=labels, kinds=kinds).only("train")


def made(name: str, sizes: Sizes, device: torch.device) -> tuple[Method, Batch]:
    """A method on its own model, in its first epoch, and a batch for it."""
    torch.manual_seed(0)
    encoders = {m: ResNet18(channels, sizes.width) for m, channels in MODALITIES.items()}
    widths = {m: encoder.outputs for m, encoder in encoders.items()}
    fusion = FUSIONS[METHODS[name].fusion](widths, sizes.classes)
    model = Multimodal(encoders, fusion).to(device)
    optimizer = torch.optim.Adam(groups(model), lr=1e-4, fused=True)
    method, data = METHODS[name](model, optimizer, **OPTIONS.get(name, {})), noise(sizes)
    method.begin_epoch(0, data)
    return method, data.batch("train", torch.arange(sizes.samples)).to(device)


def stepper(method: Method, batch: Batch, device: torch.device) -> Callable[[], float]:
    """Seconds of one step."""
    return lambda: seconds_of(lambda: method.step(batch), device)


def rows(names: list[str], sizes: Sizes, plan: Plan, device: torch.device) -> Iterator[Row]:
    joint, batch = made("joint", sizes, device)
    plain = stepper(joint, batch, device)
    for name in names:
        method, own = made(name, sizes, device)
        method.step(own)
        method.counts.clear()
        method.step(own)
        forwards, backwards = method.counts["forwards"], method.counts["backwards"]
        passes, work = (forwards + backwards) / 2, (forwards + 2 * backwards) / 3
        found = ratios(*compare(stepper(method, own, device), plain, plan))
        yield Row(name, *spread(found), passes, work, len(found))


def main(arguments: list[str] | None = None, sizes: Sizes | None = None, plan: Plan = PLAN) -> None:
    parser = argparse.ArgumentParser(description="What a step of each method costs.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of torch on the CPU")
    parser.add_argument("--samples", type=int, default=Sizes.samples, help="in a batch")
    parser.add_argument("--pixels", type=int, default=Sizes.pixels, help="along an image's edge")
    parser.add_argument("--only", default="", metavar="NAMES", help="with commas between")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    sizes = sizes or Sizes(samples=options.samples, pixels=options.pixels)
    names = options.only.split(",") if options.only else sorted(METHODS.keys() - LEFT_OUT)
    about = machine(device)
    print(f"{about['gpu'] or about['cpu']}, {options.threads} threads, torch {about['torch']}")
    print(f"{about['date']}, load {', '.join(f'{x:.1f}' for x in about['load'])}\n")
    print("method        step / joint's     interval  passes  work     bar  pairs  met")
    table: list[Row] = []
    for row in rows(names, sizes, plan, device):
        print(row.line(), flush=True)
        table.append(row)
    if options.json is not None:
        settings = {"threads": options.threads, **asdict(sizes)}
        result = {"machine": about, "settings": settings, "rows": [asdict(row) for row in table]}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
