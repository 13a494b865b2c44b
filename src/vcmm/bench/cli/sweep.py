"""`vcmm sweep SUITE`, and `vcmm demo`, which is a sweep that needs no flag."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .axes import Given
from .errors import Mistake, mistakes
from .executing import Compile, Device, Loaders, Precision, executed
from .flags import CheckpointEvery, Json, Plain, Runs, Select, Workers
from .protocol import Protocol, titled

if TYPE_CHECKING:
    from ..spec import Spec
    from ..suites.stages import Done

AXES = ("data", "encoder", "fusion", "optimizer", "schedule")


def sweep(
    suite: Annotated[str, typer.Argument(help="A name of `vcmm list suites`.", metavar="SUITE")],
    *,
    given: Given,
    protocol: Protocol = None,
    runs: Runs = Path("runs"),
    workers: Workers = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="torch's threads in each.", show_default=False)
    ] = None,
    checkpoint_every: CheckpointEvery = 10.0,
    device: Device = "auto",
    precision: Precision = "auto",
    compile_: Compile = False,
    loaders: Loaders = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Of the media of a benchmark; decode first what is not decoded."
        ),
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Give every arm the best of N learning rates on valid, tried with seed 0.",
            show_default=False,
        ),
    ] = None,
    select: Select = "valid",
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Train all runs of a suite. Its options: vcmm sweep SUITE --help"""
    from ..suites import SUITES
    from ..suites.search import searched
    from ..suites.stages import driven
    from .ending import finish
    from .preparation import buildable, loadable, prepared
    from .training import NOTHING, made, train

    if suite not in SUITES:
        raise Mistake(f"there is no suite {suite!r}; there are {', '.join(sorted(SUITES))}")
    if root is not None:
        prepared(given.choices["data"], root, workers=workers, plain=plain, quiet=as_json)
    loadable(given.spec())
    outcome = NOTHING
    execution = executed(given.choices["data"].name, device, precision, compile_, loaders)

    def trained(specs: list[Spec]) -> Done:
        nonlocal outcome
        buildable(specs)
        if outcome is not NOTHING and not as_json:
            typer.echo(f"\nThe next stage of the suite: {len(specs)} more.")
        found = train(
            specs,
            runs,
            workers=workers,
            threads=threads,
            execution=execution,
            checkpoint_every=checkpoint_every,
            plain=plain,
            quiet=as_json,
        )
        outcome |= found
        return made(specs, found, runs)

    with mistakes():
        asked = SUITES[suite](given.base, **given.options)
        driven(asked if search is None else searched(asked, search), trained)
    title = titled(f"Suite {suite}", protocol)
    finish(outcome, runs, runs / "report", selection=select, title=title, as_json=as_json)


def demo(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="For the records, and report/index.html.")
    ] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each arm.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Over train.")] = 15,
    workers: Workers = None,
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Two minutes on real data: modalities alone, joint and multi-loss, without and with VCMM."""
    from ..suites.demo import demo as suite
    from .ending import finish
    from .training import train

    specs = suite({}, seeds=seeds, epochs=epochs)
    if not as_json:
        typer.echo(
            f"{len(specs)} runs on watch (shoulder exercises, seen by a smartwatch): "
            f"{len(specs) // seeds} arms x {seeds} seeds, {epochs} epochs each."
        )
    outcome = train(specs, out, workers=workers, plain=plain, quiet=as_json)
    finish(outcome, out, out / "report", title="Demo", as_json=as_json)
