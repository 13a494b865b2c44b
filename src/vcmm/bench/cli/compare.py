"""`vcmm compare`: the practitioner's question. Are my modalities imbalanced, and what helps?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .axes import Given
from .errors import Mistake, mistakes
from .flags import CheckpointEvery, Json, Plain, Select, Workers

AXES = ("data", "encoder", "fusion", "optimizer", "schedule")


def compare(
    *,
    given: Given,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Beside every modality alone and joint: names of `vcmm list methods`, each with "
            "+CONTROLLER if wanted. Default: ensemble,multi_loss,joint+vcmm,multi_loss+vcmm",
        ),
    ] = None,
    budget: Annotated[
        Literal["small", "full"],
        typer.Option(help="Steps of each run: about 600 and 3 seeds, or about 6000 and 5 seeds."),
    ] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="Instead of the budget's.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the budget's.")] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Samples in a step.")] = 64,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="For records and report/index.html; runs/NAME of the data."
        ),
    ] = None,
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = 10.0,
    select: Select = "valid",
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Compare methods on your data, under an equal budget, and say what it means."""
    from ..data import describe
    from ..suites import budget as budgets
    from ..suites.compare import METHODS
    from ..suites.compare import compare as suite
    from .ending import finish
    from .preparation import buildable, loadable
    from .training import train

    spec = given.spec()
    data = loadable(spec)
    if len(data.modalities) == 1:
        raise Mistake(f"data {data.name!r} has one modality; there is nothing to be imbalanced")
    with mistakes():
        found = budgets.budget(budget, len(data.splits["train"]), batch_size)
        specs = suite(
            given.base,
            methods=METHODS if methods is None else tuple(filter(None, methods.split(","))),
            seeds=seeds or found.seeds,
            epochs=epochs or found.epochs,
            batch_size=batch_size,
        )
    buildable(specs)
    count = len({one.seed for one in specs})
    spent = {"name": budget, "epochs": specs[0].epochs, "seeds": count}
    spent |= {"batch_size": batch_size, "runs": len(specs)}
    if not as_json:
        typer.echo(
            f"{len(specs)} runs on {data.name}: {len(specs) // count} arms x "
            f"{count} seeds, {specs[0].epochs} epochs of {batch_size} samples a step."
        )
    root = out or Path("runs") / Path(spec.data.name).stem
    outcome = train(
        specs,
        root,
        workers=workers,
        checkpoint_every=checkpoint_every,
        plain=plain,
        quiet=as_json,
    )
    finish(
        outcome,
        root,
        root / "report",
        title=f"Comparison on {data.name}",
        selection=select,
        as_json=as_json,
        more={"data": describe(data), "budget": spent},
    )
