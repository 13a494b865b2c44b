"""All methods on three small data sets, and docs/results.md from the records.

    vcmm data get digits; vcmm data get mfeat
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
from dataclasses import replace
from pathlib import Path

from vcmm.bench import analysis, wording
from vcmm.bench.arms import Setting, gathered
from vcmm.bench.data import load as load_data
from vcmm.bench.launch.local import launch
from vcmm.bench.methods import METHODS
from vcmm.bench.recommend import recommend
from vcmm.bench.records import Run, load
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.suites.compare import compare

DATA: dict[str, tuple[Choice, Choice, int]] = {  # data, encoder and epochs
    "mfeat": (Choice("mfeat", views=("fou", "mor", "zer")), Choice("auto"), 30),
    "watch": (Choice("watch"), Choice("auto"), 10),
    "digits": (Choice("digits", image_energy=0.25), Choice("auto", width=16), 10),
}
RATES = (1e-3, 3e-3, 1e-2)
SEEDS = range(5)
BATCH = 64
ARMS = (*sorted(METHODS.keys() - {"joint", "unimodal"}), "joint+vcmm", "multi_loss+vcmm")
OUT = Path(__file__).parents[1] / "docs" / "results.md"


def arms(name: str) -> list[Spec]:
    """Every arm on one data set, and VCMM in the unbiased order as well."""
    data, encoder, epochs = DATA[name]
    base = {"data": data, "encoder": encoder}
    published = compare(base, methods=ARMS, seeds=1, epochs=epochs, batch_size=BATCH)
    late = Choice("vcmm", floor_after_smoothing=True)
    controlled = [one for one in published if one.controller.name == "vcmm"]
    return [*published, *(replace(one, controller=late) for one in controlled)]


def spec(arm: Spec, rate: float, seed: int) -> Spec:
    return replace(arm, optimizer=Choice("adam", lr=rate), seed=seed)


def searched(name: str) -> list[Spec]:
    """The search: the first seed with every learning rate."""
    return [spec(arm, rate, SEEDS[0]) for arm in arms(name) for rate in RATES]


def chosen(arm: Spec, done: Mapping[Spec, Run]) -> list[Spec]:
    """All seeds of an arm, with the learning rate that won on valid; none before the search."""
    tried = {rate: done.get(spec(arm, rate, SEEDS[0])) for rate in RATES}
    scores = {rate: best_on_valid(run) for rate, run in tried.items() if run is not None}
    if len(scores) < len(RATES):
        return []
    rate = max(scores, key=lambda rate: scores[rate])
    return [spec(arm, rate, seed) for seed in SEEDS]


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
    seeds = [one for name in names for arm in arms(name) for one in chosen(arm, done)]
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


def setting(name: str, done: Mapping[Spec, Run]) -> Setting:
    """The arms of one data set, each with its own learning rate."""
    specs = [one for arm in arms(name) for one in chosen(arm, done)]
    return gathered(name, [done[one] for one in specs if one in done])


# Words


def page(root: Path) -> str:
    """docs/results.md."""
    done = finished(root)
    tables = {name: setting(name, done) for name in DATA}
    lacking = [name for name, made in tables.items() if made.reference is None]
    parts = [INTRODUCTION.format(machine=machines(done.values()))]
    if lacking:
        parts.append(f"**Not run yet: {', '.join(lacking)}.**\n")
    for name, made in tables.items():
        if made.reference is not None:
            parts += [f"## {name}\n", about(name), *table(made), ""]
            parts += ["What it means:\n", *(f"- {one}" for one in recommend(made)), ""]
    return "\n".join([*parts, ENDING])


INTRODUCTION = """# Results on small data

All methods on small data sets, as they came out. This page is written by a command, from the
records of the runs:

```
vcmm data get digits; vcmm data get mfeat
python benchmarks/results.py train --runs runs/results
python benchmarks/results.py write --runs runs/results
```

Every arm has the same encoders, Adam, cosine schedule, batch size 64 and number of epochs. Its
learning rate is the one of 1e-3, 3e-3 and 1e-2 with the best accuracy on valid, tried with seed 0.
The epoch is the best on valid. Shown are means over seeds on test with sample standard deviation
and 95 % t-interval, the paired difference to joint training by the same fusion over common seeds
("by concat" and so on; otherwise the mean of logits), and its p-value after Holm's correction over
the table. Windows that papers give in epochs of much longer trainings keep their share. Passes
are forwards and backwards of a step over the two of joint training, those between epochs included;
bytes are a ratio to joint training. Times are in the records, but say little here: many runs shared
a machine.

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


def about(name: str) -> str:
    data, _, epochs = DATA[name]
    loaded = load_data(data.name, **data.options)
    sizes = ", ".join(f"{len(part)} {split}" for split, part in loaded.splits.items())
    return f"{loaded.about} Modalities: {', '.join(loaded.modalities)}. {sizes}. {epochs} epochs.\n"


def table(made: Setting) -> Iterator[str]:
    rows = analysis.table(made, "valid").rows
    yield "| arm | lr | seeds | accuracy | to joint | p (Holm) | verdict | passes | bytes |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        gained = "" if row.difference is None else wording.gain(row.difference._asdict())
        p = "" if row.p_holm is None else wording.p_value(row.p_holm)
        cells = [
            row.arm.label,
            f"{row.arm.spec['optimizer']['lr']:g}",
            str(len(row.arm.runs)),
            wording.spread(row.metrics["accuracy"]._asdict()),
            gained,
            p,
            "reference" if row.arm is made.reference else row.verdict or "",
            ratio((row.expense.forwards + row.expense.backwards) / 2),
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
