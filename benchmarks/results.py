"""All methods on three small data sets, and docs/results.md from the records.

    python benchmarks/results.py train --runs runs/results [--workers 16] [--minutes 60]
    python benchmarks/results.py write --runs runs/results

Every arm is trained with each learning rate for the first seed; the one with the best accuracy on
valid is its own, and the other seeds are trained with that. Epochs, batch size, encoders, optimizer
and schedule are equal. Windows that a paper gives in epochs keep their share of the training.
Stopped at any moment, `train` goes on where it was.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from vcmm.bench import analysis, wording
from vcmm.bench.arms import Arm, Setting
from vcmm.bench.data import load as load_data
from vcmm.bench.launch.local import launch
from vcmm.bench.methods import METHODS
from vcmm.bench.recommend import recommend
from vcmm.bench.records import Run, load
from vcmm.bench.spec import Choice, Spec

DATA: dict[str, tuple[Choice, int]] = {  # and epochs
    "watch": (Choice("watch"), 15),
    "digits": (Choice("digits", image_energy=0.25), 20),
    "mfeat": (Choice("mfeat", views=("fou", "mor", "zer")), 30),
}
RATES = (1e-3, 3e-3, 1e-2)
SEEDS = range(5)
BATCH = 64
PLAIN = ("joint", "multi_loss", "ensemble")
WITH_VCMM = ("joint", "multi_loss")
OUT = Path(__file__).parents[1] / "docs" / "results.md"


def windows(epochs: int) -> dict[str, dict[str, int]]:
    """What papers give in epochs of their own long trainings, as shares of this one."""
    half, tenth = max(1, epochs // 2), max(1, epochs // 10)
    return {
        "aug": {"every": tenth},
        "bss": {"growth": max(1, epochs // 3)},
        "g2d": {"ends": half, "teacher_epochs": epochs},
        "gblend": {"super_epoch": half},
        "lfm": {"length": epochs},
        "ogm": {"ends": half},
        "pmr": {"entropy_epochs": tenth, "ends": epochs},
        "reconboost": {"stage_epochs": max(1, epochs // 8), "joint_epochs": max(1, epochs // 8)},
    }


def arms(name: str) -> Iterator[dict[str, Any]]:
    """Method and controller of every arm on one data set."""
    data, epochs = DATA[name]
    for modality in load_data(data.name, **data.options).modalities:
        yield {"method": Choice("unimodal", modality=modality)}
    options = windows(epochs)
    for method in (*PLAIN, *sorted(METHODS.keys() - {*PLAIN, "unimodal"})):
        yield {"method": Choice(method, **options.get(method, {}))}
        if method in WITH_VCMM:
            for late in (False, True):
                controller = Choice("vcmm", floor_after_smoothing=late)
                yield {"method": Choice(method), "controller": controller}


def spec(name: str, arm: Mapping[str, Any], rate: float, seed: int) -> Spec:
    data, epochs = DATA[name]
    return Spec(
        data=data,
        optimizer=Choice("adam", lr=rate),
        epochs=epochs,
        batch_size=BATCH,
        seed=seed,
        **arm,
    )


def searched(name: str) -> list[Spec]:
    """The search: the first seed with every learning rate."""
    return [spec(name, arm, rate, SEEDS[0]) for arm in arms(name) for rate in RATES]


def chosen(name: str, arm: Mapping[str, Any], done: Mapping[Spec, Run]) -> list[Spec]:
    """All seeds of an arm, with the learning rate that won on valid; none before the search."""
    tried = {rate: done.get(spec(name, arm, rate, SEEDS[0])) for rate in RATES}
    scores = {rate: best_on_valid(run) for rate, run in tried.items() if run is not None}
    if len(scores) < len(RATES):
        return []
    rate = max(scores, key=lambda rate: scores[rate])
    return [spec(name, arm, rate, seed) for seed in SEEDS]


def finished(root: Path) -> dict[Spec, Run]:
    return {Spec.from_json(run.spec): run for run in load(root)}


def best_on_valid(run: Run) -> float:
    return max(row.values.get(run.metric, 0.0) for row in run.evals if row.split == "valid")


def train(root: Path, names: Sequence[str], workers: int, minutes: float) -> None:
    """Search, then the other seeds; what is left when time is over is for another time."""
    until = time.monotonic() + 60 * minutes
    root.mkdir(parents=True, exist_ok=True)
    search = [one for name in names for one in searched(name)]
    launched("search", search, root, workers, until)
    done = finished(root)
    seeds = [one for name in names for arm in arms(name) for one in chosen(name, arm, done)]
    # Seed by seed, so that a stop leaves all arms with equally many.
    launched("seeds", sorted(seeds, key=lambda one: one.seed), root, workers, until)


def launched(stage: str, specs: list[Spec], root: Path, workers: int, until: float) -> None:
    counts = dict.fromkeys(("done", "cached", "failed"), 0)
    with closing(launch(specs, root, workers=workers, threads=1)) as events:
        for event in events:
            if event.kind in counts:
                counts[event.kind] += 1
            if event.kind == "failed":
                print(event.spec["method"], event.error.strip().splitlines()[-1], flush=True)
            if time.monotonic() > until:
                break
    print(f"{stage}: {counts} of {len(specs)}", flush=True)


def setting(name: str, done: Mapping[Spec, Run]) -> tuple[Setting, dict[str, float]]:
    """The arms of one data set, each with its own learning rate, and these."""
    members: list[Arm] = []
    rates: dict[str, float] = {}
    for arm in arms(name):
        found = {one.seed: done[one] for one in chosen(name, arm, done) if one in done}
        if found:
            label = title(arm)
            members.append(Arm(label, found))
            rates[label] = found[SEEDS[0]].spec["optimizer"]["lr"]
    reference = next((one for one in members if one.label == "joint"), None)
    return Setting(name, tuple(members), reference), rates


def title(arm: Mapping[str, Any]) -> str:
    method, controller = arm["method"], arm.get("controller")
    if method.name == "unimodal":
        return f"unimodal: {method.options['modality']}"
    if controller is None:
        return method.name
    late = controller.options["floor_after_smoothing"]
    return f"{method.name} + vcmm{' (floor_after_smoothing)' if late else ''}"


# Words


def page(root: Path) -> str:
    """docs/results.md."""
    done = finished(root)
    parts = [INTRODUCTION.format(machine=machines(done.values()))]
    for name in DATA:
        made, rates = setting(name, done)
        if made.reference is not None:
            parts += [f"## {name}\n", about(name, made), *table(made, rates), ""]
            parts += ["What it means:\n", *(f"- {one}" for one in recommend(made)), ""]
    return "\n".join([*parts, ENDING])


INTRODUCTION = """# Results on small data

All methods on three small data sets, as they came out. This page is written by a command, from the
records of the runs:

```
python benchmarks/results.py train --runs runs/results
python benchmarks/results.py write --runs runs/results
```

Every arm has the same encoders, Adam, cosine schedule, batch size 64 and number of epochs. Its
learning rate is the one of 1e-3, 3e-3 and 1e-2 with the best accuracy on valid, tried with seed 0.
The epoch is the best on valid. Shown are means over seeds on test with sample standard deviation
and 95 % t-interval, the paired difference to joint training over common seeds, and its p-value
after Holm's correction over the table. Windows that papers give in epochs of much longer trainings
keep their share. Time and bytes are ratios to joint training; with many runs at once on a machine,
time is rough.

These are small networks on small data. The published settings are other data, other encoders and
longer trainings, so a method that does not help here may help there.

Measured on {machine}.
"""

ENDING = """## Where VCMM does not help

The rows with `vcmm` stand in the same tables, with the same tests. Where their verdict is "not
distinguishable" or "worse", VCMM does not help, and that is all there is to say.
`floor_after_smoothing` is the [unbiased order](bias.md) of its two operations, which is not the
published one.
"""


def machines(runs: Iterable[Run]) -> str:
    seen = {
        f"{run.env['cores']} cores ({run.env['platform'].split('-')[0]}), Python "
        f"{run.env['python']}, torch {run.env['torch']}, one thread per run"
        for run in runs
    }
    return "; ".join(sorted(seen))


def about(name: str, made: Setting) -> str:
    data, epochs = DATA[name]
    loaded = load_data(data.name, **data.options)
    sizes = ", ".join(f"{len(part)} {split}" for split, part in loaded.splits.items())
    return f"{loaded.about} Modalities: {', '.join(loaded.modalities)}. {sizes}. {epochs} epochs.\n"


def table(made: Setting, rates: Mapping[str, float]) -> Iterator[str]:
    rows = analysis.table(made, "valid").rows
    yield "| arm | lr | seeds | accuracy | to joint | p (Holm) | verdict | time | bytes |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        gained = "" if row.difference is None else wording.gain(row.difference._asdict())
        p = "" if row.p_holm is None else wording.p_value(row.p_holm)
        cells = [
            row.arm.label,
            f"{rates[row.arm.label]:g}",
            str(len(row.arm.runs)),
            wording.spread(row.metrics["accuracy"]._asdict()),
            gained,
            p,
            "reference" if row.arm is made.reference else row.verdict or "",
            ratio(row.expense.seconds_ratio),
            ratio(row.expense.peak_ratio),
        ]
        yield f"| {' | '.join(cells)} |"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="All methods on three small data sets.")
    parser.add_argument("command", choices=("train", "write"))
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", default=",".join(DATA), metavar="NAMES")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600)
    options = parser.parse_args(arguments)
    if options.command == "train":
        train(options.runs, options.data.split(","), options.workers, options.minutes)
    else:
        OUT.write_text(page(options.runs), encoding="utf-8")
        print(OUT)


if __name__ == "__main__":
    main()
