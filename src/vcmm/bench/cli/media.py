"""`vcmm data check` and `prepare`, for data sets that are made of a user's media files.

The options of a data set are how it is decoded. They are flags of both commands once it is named.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..signature import Parameter, Value, parameters
from .axes import Flags, signed, taken
from .errors import USAGE, Mistake, mistakes
from .flags import Json, Plain

if TYPE_CHECKING:
    from ..media.collection import Collection

Options = Mapping[str, Value]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="The folder of its files.", metavar="DIR", show_default=False),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Look which files are there, and decode none.")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Processes; all cores if left out.", show_default=False),
]
SWITCHES = ("--quick", "--json", "--plain", "--force")


def with_options(
    command: Callable[..., Any], arguments: Sequence[str], *, loading: bool = False
) -> Callable[..., Any]:
    """The command, which takes `options`, with a flag for each of the data set that is named.

    They are the options of decoding it, or those of loading it.
    """
    flags = Flags()
    if list(arguments[:2]) == ["data", command.__name__]:
        name = named(arguments[2:])
        for option, parameter in known(name, loading=loading).items():
            flags.option("", f"--{option.replace('_', '-')}", parameter, f"Options of {name}")

    def completed(**values: Any) -> Any:
        with mistakes():
            options = taken(flags, values).get("", {})
        return command(options=options, **values)

    return signed(completed, command, flags, "options")


def named(arguments: Sequence[str]) -> str | None:
    """The data that is named: what no flag takes."""
    before = ""
    for argument in arguments:
        valued = before.startswith("--") and "=" not in before and before not in SWITCHES
        before = argument
        if not valued and not argument.startswith("-"):
            return argument
    return None


def known(name: str | None, *, loading: bool) -> dict[str, Parameter]:
    """The options of what is named, if it has any."""
    if name is None:
        return {}
    from ..data import COLLECTIONS, DATA

    if loading:
        return parameters(DATA[name]) if name in DATA else {}
    return parameters(COLLECTIONS[name].parameters) if name in COLLECTIONS else {}


def collection_of(name: str) -> Collection:
    """What a name stands for, or which names there are."""
    from ..data import COLLECTIONS, DATA

    if name in COLLECTIONS:
        return COLLECTIONS[name]
    near = get_close_matches(name, COLLECTIONS, 1)
    if name in DATA and not near:
        raise Mistake(f"data '{name}' is not made of media files; try vcmm data info {name}")
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(sorted(COLLECTIONS))}"
    raise Mistake(f"there is no collection '{name}'; {hint}")


def rooted(command: str, collection: Collection, root: Path | None) -> Path:
    """The root, or how to come by one."""
    if root is None:
        raise Mistake(
            f"say where the files are: vcmm data {command} {collection.name} --root DIR\n\n"
            f"What is expected there:\n\n{collection.layout.strip()}"
        )
    return root


def prepare(
    name: Annotated[
        str, typer.Argument(help="A data set of media files, cremad say.", metavar="NAME")
    ],
    *,
    options: Options,
    root: Root = None,
    workers: Workers = None,
    force: Annotated[
        bool, typer.Option("--force", help="Decode everything anew, also what failed.")
    ] = False,
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Decode media files once, so that training can read them. It goes on where it was."""
    from ..media import prepare as media
    from ..media.store import open_store
    from .decoding import watched
    from .inventory import show_store

    with mistakes():
        collection = collection_of(name)
        place = rooted("prepare", collection, root)
        again = shlex.join(["vcmm", *sys.argv[1:]])
        kept = f"What was decoded is kept, and the same command goes on:\n  {again}"
        with watched(name, kept, plain=plain, quiet=as_json) as watch:
            path = media.prepare(
                collection, place, options, workers=workers, watch=watch, force=force
            )
        store = open_store(path)
    if as_json:
        typer.echo(json.dumps({"path": str(path), **store.manifest}, indent=2))
    else:
        show_store(store, options)


def inspected(
    name: str,
    options: Options,
    root: Path | None,
    *,
    quick: bool,
    workers: int | None,
    plain: bool,
    as_json: bool,
) -> None:
    """What `vcmm data check` does with the name of a collection."""
    from ..media.check import inspect
    from .decoding import watched
    from .inventory import show_inspection

    with mistakes():
        collection = collection_of(name)
        place = rooted("check", collection, root)
        with watched(name, plain=plain, quiet=as_json) as watch:
            found = inspect(
                collection, place, options, decode=not quick, workers=workers, watch=watch
            )
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        show_inspection(found, place, options)
    if not found.complete:
        raise typer.Exit(USAGE)
