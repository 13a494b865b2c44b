"""`vcmm run`: one training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .axes import Given
from .executing import Compile, Device, Loaders, Precision, executed
from .flags import CheckpointEvery, Json, Plain, Runs, Threads
from .protocol import Protocol


def run(
    *,
    given: Given,
    protocol: Protocol = None,
    epochs: Annotated[int, typer.Option(min=1, help="Over train.")] = 15,
    batch_size: Annotated[int, typer.Option(min=2, help="Samples in a step.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and all draws.")] = 0,
    modalities: Annotated[
        str | None, typer.Option(help="Those to use, with commas between; all if left out.")
    ] = None,
    runs: Runs = Path("runs"),
    threads: Threads = 1,
    checkpoint_every: CheckpointEvery = 10.0,
    device: Device = "auto",
    precision: Precision = "auto",
    compile_: Compile = False,
    loaders: Loaders = None,
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Train once. What is named has options of its own: vcmm run --method NAME --help"""
    from .preparation import buildable
    from .training import train

    chosen = None if modalities is None else tuple(filter(None, modalities.split(",")))
    spec = given.spec(epochs=epochs, batch_size=batch_size, seed=seed, modalities=chosen)
    buildable([spec])
    outcome = train(
        [spec],
        runs,
        workers=1,
        threads=threads,
        execution=executed(spec.data.name, device, precision, compile_, loaders),
        checkpoint_every=checkpoint_every,
        plain=plain,
        quiet=as_json,
    )
    outcome.leave()
    path = runs / next(iter(outcome.complete.values()))
    last = [row for row in records(path) if row["epoch"] == spec.epochs - 1]
    values = {row["split"]: row["values"] for row in last}
    if as_json:
        found = {"run": path.name, "path": str(path), "spec": spec.to_json(), "last": values}
        typer.echo(json.dumps(found, indent=2))
        return
    for split, shown in sorted(values.items()):
        parts = ", ".join(f"{name} {value:.4f}" for name, value in sorted(shown.items()))
        typer.echo(f"{split}, last epoch: {parts}")
    typer.echo(path)


def records(path: Path) -> list[dict[str, Any]]:
    """What every epoch was judged to be."""
    text = (path / "evals.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
