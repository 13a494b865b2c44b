"""`vcmm compare`: the practitioner's question. Are my modalities imbalanced, and what helps?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .axes import Given
from .errors import Mistake, mistakes
from .executing import Compile, Device, Loaders, Precision, executed
from .flags import CheckpointEvery, Json, Plain, Select, Workers
from .protocol import Protocol, titled

if TYPE_CHECKING:
    from ..spec import Spec
    from ..types import Data

AXES = ("data", "encoder", "fusion", "optimizer", "schedule")

Methods = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Beside every modality alone and joint: names of `vcmm list methods`, each with "
        "+CONTROLLER if wanted. Default: ensemble,multi_loss,joint+vcmm,multi_loss+vcmm",
    ),
]
BudgetName = Annotated[
    Literal["small", "full"],
    typer.Option(help="Steps of each run: about 600 and 3 seeds, or about 6000 and 5 seeds."),
]
Instead = Annotated[int | None, typer.Option(min=1, help="Instead of the budget's.")]
BatchSize = Annotated[int, typer.Option(min=2, help="Samples in a step.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="For records and report/index.html; runs/NAME of the data."
    ),
]


def compare(
    *,
    given: Given,
    protocol: Protocol = None,
    methods: Methods = None,
    budget: BudgetName = "small",
    seeds: Instead = None,
    epochs: Instead = None,
    batch_size: BatchSize = 64,
    out: Out = None,
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = 10.0,
    device: Device = "auto",
    precision: Precision = "auto",
    compile_: Compile = False,
    loaders: Loaders = None,
    select: Select = "valid",
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Compare methods on your data, under an equal budget, and say what it means."""
    from ..data import describe
    from .ending import finish
    from .preparation import buildable, loadable
    from .training import train

    data = loadable(given.spec())
    if len(data.modalities) == 1:
        raise Mistake(f"data {data.name!r} has one modality; there is nothing to be imbalanced")
    names = None if methods is None else tuple(filter(None, methods.split(",")))
    with mistakes():
        specs = planned(given, data, names, budget, seeds, epochs, batch_size)
    buildable(specs)
    count, long = len({one.seed for one in specs}), specs[0].epochs
    if not as_json:
        typer.echo(
            f"{len(specs)} runs on {data.name}: {len(specs) // count} arms x {count} seeds, "
            f"{long} epochs of {batch_size} samples a step."
        )
    root = out or Path("runs") / Path(given.choices["data"].name).stem
    outcome = train(
        specs,
        root,
        workers=workers,
        execution=executed(given.choices["data"].name, device, precision, compile_, loaders),
        checkpoint_every=checkpoint_every,
        plain=plain,
        quiet=as_json,
    )
    spent = {"name": budget, "epochs": long, "seeds": count, "batch_size": batch_size}
    finish(
        outcome,
        root,
        root / "report",
        title=titled(f"Comparison on {data.name}", protocol),
        selection=select,
        as_json=as_json,
        more={"data": describe(data), "budget": {**spent, "runs": len(specs)}},
    )


def planned(
    given: Given,
    data: Data,
    methods: tuple[str, ...] | None,
    budget: str,
    seeds: int | None,
    epochs: int | None,
    batch_size: int,
) -> list[Spec]:
    """All runs of the comparison; what is None is the default's or the budget's."""
    from ..suites import budget as budgets
    from ..suites.compare import METHODS
    from ..suites.compare import compare as suite

    found = budgets.budget(budget, len(data.splits["train"]), batch_size)
    return suite(
        given.base,
        methods=METHODS if methods is None else methods,
        seeds=seeds or found.seeds,
        epochs=epochs or found.epochs,
        batch_size=batch_size,
    )
