"""What the controller costs in time and memory: `make bench`, or python benchmarks/overhead.py.

Every ratio compares the same optimizer with and without the controller's hooks, over the same
tensors, in pairs within one run (`measure.py`). The row named "control" compares the plain
optimizer with itself, and so shows how far a ratio is to be trusted on this machine at this hour.

Where the bars are near, mind what a step is compared with: a fused Adam over 11 M parameters takes
a few milliseconds, and streams every one of them through the caches that the controller's code is
then no longer in.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from measure import Plan, compare, ratios, seconds_of, spread
from models import MODALITIES, Seen, TwoEncoders
from torch import Tensor, nn
from torch.nn import functional as F

from vcmm import VCMM, modal_groups
from vcmm.bench.memory import peak_bytes

MEGABYTE = 1e6


@dataclass(frozen=True)
class Sizes:
    """What is measured. The defaults are those that the bars are stated for."""

    # Two ResNet-18 of width 45 have 11 M parameters together; the bar is stated for these.
    step_widths: tuple[tuple[int, float | None], ...] = ((45, 1.02), (90, None))
    train_width: int = 64
    samples: int = 64
    pixels: int = 64
    features: int = 512
    classes: int = 6
    ladder: tuple[tuple[int, float, int], ...] = (  # classes, bar in ms, calls per block
        (6, 0.6, 50),
        (1000, 1.2, 25),
        (100_000, 80.0, 1),
    )
    memory_bar: float = 160.0  # MB, at the most classes of the ladder


@dataclass(frozen=True)
class Plans:
    """How long each part is measured."""

    step: Plan
    train: Plan
    alone: Plan
    imports: Plan


FULL = Plans(
    step=Plan(least=100, most=2000, seconds=60, precision=0.002),
    train=Plan(least=20, most=200, seconds=150, precision=0.005),
    alone=Plan(least=20, most=100, seconds=20, precision=0.02),
    imports=Plan(least=11, most=41, seconds=60, precision=0.02),
)
QUICK = Plans(
    step=Plan(least=15, most=200, seconds=5, precision=0.01),
    train=Plan(least=5, most=10, seconds=10, precision=0.01),
    alone=Plan(least=5, most=20, seconds=3, precision=0.05),
    imports=Plan(least=5, most=7, seconds=10, precision=0.05),
)


@dataclass(frozen=True)
class Row:
    """One line of the table. The bars are stated for two CPU cores, so a GPU has none."""

    what: str
    median: float
    low: float
    high: float
    unit: str
    bar: float | None
    samples: int
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        return None if self.bar is None else self.median <= self.bar

    def line(self, width: int) -> str:
        interval = f"{self.low:.4g} - {self.high:.4g}"
        bar = "-" if self.bar is None else f"{self.bar:g}"
        met = {None: "-", True: "yes", False: "NO"}[self.met]
        if self.bar is not None and self.low <= self.bar < self.high:
            met += ", within noise"
        head = f"{self.what:<{width}}  {self.median:>8.4g} {self.unit:<5}"
        return f"{head}{interval:>17}  {bar:>6}  {self.samples:>5}  {met}"


def ratio_row(
    what: str, ours: list[float], plain: list[float], bar: float | None, **detail: Any
) -> Row:
    medians = {
        "with_ms": statistics.median(ours) * 1e3,
        "without_ms": statistics.median(plain) * 1e3,
    }
    found = ratios(ours, plain)
    return Row(what, *spread(found), "x", bar, len(found), {**medians, **detail})


def observations(
    samples: int, features: int, classes: int, device: torch.device, batches: int = 4
) -> Iterator[tuple[Tensor, Seen]]:
    """Batches of random features and logits, over and over; no two in a row are the same."""
    made: list[tuple[Tensor, Seen]] = []
    for _ in range(batches):
        target = torch.randint(classes, (samples,), device=device)
        seen: Seen = {}
        for scale, name in enumerate(MODALITIES, start=1):
            h = scale * torch.randn(samples, features, device=device)
            seen[name] = (h, torch.randn(samples, classes, device=device))
        made.append((target, seen))
    return cycle(made)


def adam(model: nn.Module, claims: Mapping[str, Any], lr: float = 1e-4) -> torch.optim.Adam:
    return torch.optim.Adam(modal_groups(model, **claims), lr=lr, fused=True)


def require_live(vcmm: VCMM) -> None:
    """A controller whose momenta do not move would be cheap, and no measurement of anything."""
    if any(beta == 0.9 for beta in vcmm.betas.values()):
        raise RuntimeError(f"the controller does not move: {vcmm.betas}")


def optimizer_steps(sizes: Sizes, plan: Plan, device: torch.device) -> Iterator[Row]:
    """optimizer.step alone, with what its hooks do; observe comes before and is not counted.

    What the hooks do hardly depends on the number of parameters, so the ratio falls with it.
    """
    for width, bar in sizes.step_widths:
        limit = bar if device.type == "cpu" else None
        yield from optimizer_step(sizes, width, limit, plan, device)


def optimizer_step(
    sizes: Sizes, width: int, bar: float | None, plan: Plan, device: torch.device
) -> Iterator[Row]:
    model = TwoEncoders(width, sizes.classes).to(device)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-2
    optimizer = adam(model, model.claims())
    vcmm = VCMM(optimizer)
    batches = observations(sizes.samples, sizes.features, sizes.classes, device)

    def observe() -> None:
        target, seen = next(batches)
        vcmm.observe(target, **seen)

    def ours() -> float:
        vcmm.attach()
        observe()
        return seconds_of(optimizer.step, device)

    def plain() -> float:
        vcmm.attach()
        observe()  # here too, so that both find caches and threads in the same state
        vcmm.detach()
        return seconds_of(optimizer.step, device)

    for _ in range(5):
        ours()
    require_live(vcmm)
    count = sum(p.numel() for p in model.parameters())
    what = f"optimizer.step, {count / 1e6:.1f} M parameters"
    yield ratio_row(what, *compare(ours, plain, plan), bar, parameters=count)
    yield ratio_row("  control: plain / plain", *compare(plain, plain, plan), None)


class Training:
    """Whole steps of two ResNet-18 on random images, with or without the controller."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.model = TwoEncoders(sizes.train_width, sizes.classes).to(device)
        self.optimizer = adam(self.model, self.model.claims())
        side = sizes.pixels
        self.images = {
            name: torch.randn(sizes.samples, channels, side, side, device=device)
            for name, channels in MODALITIES.items()
        }
        self.target = torch.randint(sizes.classes, (sizes.samples,), device=device)
        self.vcmm: VCMM | None = None

    def step(self) -> None:
        fused, seen = self.model(self.images)
        F.cross_entropy(fused, self.target).backward()
        if self.vcmm is not None:
            self.vcmm.observe(self.target, **seen)
        self.optimizer.step()
        self.optimizer.zero_grad()


def training_step(sizes: Sizes, plan: Plan, device: torch.device) -> Iterator[Row]:
    """Forward, loss, backward, observe, step, zero_grad."""
    training = Training(sizes, device)
    vcmm = VCMM(training.optimizer)

    def ours() -> float:
        vcmm.attach()
        training.vcmm = vcmm
        return seconds_of(training.step, device)

    def plain() -> float:
        vcmm.detach()
        training.vcmm = None
        return seconds_of(training.step, device)

    for _ in range(3):
        ours()
    require_live(vcmm)
    what = f"training step, two ResNet-18, n = {sizes.samples}, {sizes.pixels} px"
    bar = 1.01 if device.type == "cpu" else None
    yield ratio_row(what, *compare(ours, plain, plan), bar)


def training_memory(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """The allocator's peak over two steps, with model, optimizer and controller in it."""

    def peak(*, controlled: bool) -> int:
        def run() -> None:
            torch.manual_seed(0)
            training = Training(sizes, device)
            if controlled:
                training.vcmm = VCMM(training.optimizer)
            for _ in range(2):
                training.step()

        return peak_bytes(run, device)

    ours, plain = peak(controlled=True), peak(controlled=False)
    detail = {"with_mb": ours / MEGABYTE, "without_mb": plain / MEGABYTE}
    ratio = ours / plain
    bar = 1.001 if device.type == "cpu" else None
    yield Row("  its peak of allocated bytes", ratio, ratio, ratio, "x", bar, 1, detail)


def alone(sizes: Sizes, plan: Plan, device: torch.device) -> Iterator[Row]:
    """observe, and what the hooks do around a step, without the optimizer's own kernel.

    A sample is the median of a block of calls, and the blocks of all class counts are interleaved.
    """

    def block(classes: int, calls: int) -> Callable[[], float]:
        vcmm, batches = small(sizes, classes, device)

        def call() -> None:
            target, seen = next(batches)
            vcmm.observe(target, **seen)
            with vcmm.applied():
                pass

        for _ in range(3):
            call()
        require_live(vcmm)

        def side() -> float:
            call()  # brings caches back from the other blocks
            return statistics.median(seconds_of(call, device) for _ in range(calls))

        return side

    sides = {(classes, bar): block(classes, calls) for classes, bar, calls in sizes.ladder}
    seconds: dict[tuple[int, float], list[float]] = {key: [] for key in sides}
    fastest, started = next(iter(seconds.values())), time.perf_counter()
    while plan.goes_on(fastest, started):
        for key, side in sides.items():
            seconds[key].append(side())
    for (classes, bar), found in seconds.items():
        what = f"observe + controller, C = {classes}, D = {sizes.features}"
        limit = bar if device.type == "cpu" else None
        yield Row(what, *(1e3 * s for s in spread(found)), "ms", limit, len(found))


def alone_memory(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """The most that observe and the controller hold at once, state included."""
    classes = max(count for count, _, _ in sizes.ladder)
    _, batches = small(sizes, classes, device)
    batches = [next(batches) for _ in range(4)]

    def run() -> None:
        vcmm, _ = small(sizes, 2, device)
        for target, seen in batches:
            vcmm.observe(target, **seen)
            with vcmm.applied():
                pass

    peak = peak_bytes(run, device) / MEGABYTE
    bar = sizes.memory_bar if device.type == "cpu" else None
    yield Row(f"  its peak of extra bytes, C = {classes}", peak, peak, peak, "MB", bar, 1)


def small(
    sizes: Sizes, classes: int, device: torch.device
) -> tuple[VCMM, Iterator[tuple[Tensor, Seen]]]:
    """A controller on an optimizer with a few parameters that has taken a step."""
    parts = {name: nn.Linear(4, 4, device=device) for name in MODALITIES}
    model = nn.ModuleDict(parts)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = adam(model, parts)
    vcmm = VCMM(optimizer)
    optimizer.step()
    return vcmm, observations(sizes.samples, sizes.features, classes, device)


def imports(plan: Plan) -> Iterator[Row]:
    """All of vcmm, which imports torch, against torch alone, each in a new process."""

    def fresh(statement: str) -> Callable[[], float]:
        code = (
            "import time; start = time.perf_counter(); "
            f"{statement}; print(time.perf_counter() - start)"
        )
        command = [sys.executable, "-c", code]

        def side() -> float:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return float(done.stdout)

        return side

    # `import vcmm` by itself would load nothing: its names are loaded when they are asked for.
    ours, plain = fresh("from vcmm import *"), fresh("import torch")
    yield ratio_row("from vcmm import *", *compare(ours, plain, plan), 1.05)


def rows(sizes: Sizes, plans: Plans, device: torch.device) -> Iterator[Row]:
    """The whole table, a row at a time."""
    yield from optimizer_steps(sizes, plans.step, device)
    yield from training_step(sizes, plans.train, device)
    yield from training_memory(sizes, device)
    yield from alone(sizes, plans.alone, device)
    yield from alone_memory(sizes, device)
    yield from imports(plans.imports)


def machine(device: torch.device) -> dict[str, Any]:
    """Where and when this was measured."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": os.getloadavg(),
    }


def measure(
    sizes: Sizes, plans: Plans, device: torch.device, threads: int
) -> tuple[dict[str, Any], list[Row]]:
    """Print the table as it comes, and return it with its circumstances."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    about = {"machine": machine(device), "settings": {"device": str(device), "threads": threads}}
    m = about["machine"]
    print(f"{m['gpu'] or m['cpu']}, {m['cores']} cores, {threads} threads, torch {m['torch']}")
    print(f"{m['date']}, load {', '.join(f'{x:.1f}' for x in m['load'])}\n")
    width = 54
    print(f"{'with / without the controller':<{width}}  {'median':>8} {'':<5}", end="")
    print(f"{'95 % interval':>17}  {'bar':>6}  {'pairs':>5}  met")
    table: list[Row] = []
    for row in rows(sizes, plans, device):
        print(row.line(width), flush=True)
        table.append(row)
    about["machine"]["load_at_end"] = os.getloadavg()
    return about, table


def main(arguments: list[str] | None = None, sizes: Sizes | None = None) -> None:
    parser = argparse.ArgumentParser(description="What the controller costs, as ratios.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of torch on the CPU")
    parser.add_argument("--quick", action="store_true", help="fewer pairs, wider intervals")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there too")
    options = parser.parse_args(arguments)
    sizes = sizes or Sizes()
    plans = QUICK if options.quick else FULL
    about, table = measure(sizes, plans, torch.device(options.device), options.threads)
    if options.json is not None:
        about["settings"] |= {"quick": options.quick, "sizes": asdict(sizes), **asdict(plans)}
        result = {**about, "rows": [{**asdict(row), "met": row.met} for row in table]}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
