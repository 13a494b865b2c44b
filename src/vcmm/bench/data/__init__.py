"""The data sets by name, and the way to load one.

A loader is a function with keyword-only typed options that returns `Data`. To add a data set, write
its file and its line in `DATA`; if it has to be downloaded, its `Recipe` belongs in `RECIPES`, and
if it is prepared from media files that a user has, its `Collection` in `COLLECTIONS`.
What is not a name may be the path of one's own data, see `own`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..holdout import hold_out
from ..media.collection import Collection
from ..media.prepare import folder_of
from ..signature import completed, parameters
from ..types import Data
from . import (
    cremad,
    digits,
    fetch,
    kinetics_sounds,
    mfeat,
    nvgesture,
    own,
    synthetic,
    twitter,
    watch,
)
from .describe import describe
from .fetch import Recipe
from .own import check

__all__ = [
    "COLLECTIONS",
    "DATA",
    "RECIPES",
    "available",
    "check",
    "describe",
    "get",
    "hold_out",
    "load",
    "obtained_by",
]

DATA: dict[str, Callable[..., Data]] = {
    "cremad": cremad.load,
    "digits": digits.load,
    "kinetics_sounds": kinetics_sounds.load,
    "mfeat": mfeat.load,
    "nvgesture": nvgesture.load,
    "synthetic": synthetic.load,
    "twitter15": twitter.load15,
    "twitter17": twitter.load17,
    "watch": watch.load,
}
COLLECTIONS: dict[str, Collection] = {
    "cremad": cremad.COLLECTION,
    "kinetics_sounds": kinetics_sounds.COLLECTION,
    "nvgesture": nvgesture.COLLECTION,
    "twitter15": twitter.TWITTER15,
    "twitter17": twitter.TWITTER17,
}
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (digits.RECIPE, mfeat.RECIPE)}


def load(name: str, **options: object) -> Data:
    """A data set by name, or one's own by path.

    The same data is loaded once in a process, as long as it does not change on disk. Callers share
    it, so they leave its arrays as they are.
    """
    files = own_files(name) if name not in DATA else []
    values = options_of(name, options)
    if name in RECIPES:
        files = [RECIPES[name].path()]
    elif name in COLLECTIONS:
        files = [prepared_at(name, values)]
    return _loaded(name, json.dumps(values, sort_keys=True), tuple(map(stamp, files)))


def available(name: str) -> bool:
    """Whether a data set can be loaded right away, without downloading or decoding anything."""
    if name in COLLECTIONS:
        return prepared_at(name, options_of(name, {})).exists()
    return name not in RECIPES or RECIPES[name].path().exists()


def obtained_by(name: str) -> str:
    """The command after which a data set is available."""
    if name in COLLECTIONS:
        return f"vcmm data prepare {name} --root DIR"
    return f"vcmm data get {name}"


def prepared_at(name: str, options: Mapping[str, Any]) -> Path:
    """The manifest of the store that a loader with these options opens."""
    collection = COLLECTIONS[name]
    decoding = parameters(collection.parameters)
    given = {option: value for option, value in options.items() if option in decoding}
    return folder_of(collection, given) / "manifest.json"


def get(name: str, *, force: bool = False) -> Path:
    """Download a data set into the cache, unless it is there; its file."""
    if name in COLLECTIONS:
        raise ValueError(
            f"data {name!r} is made of files that you have: vcmm data check {name} tells how to "
            f"obtain them, and {obtained_by(name)} reads them"
        )
    if name in DATA and name not in RECIPES:
        raise ValueError(f"data {name!r} comes with vcmm; there is nothing to download")
    if name not in RECIPES:
        raise ValueError(
            f"data {name!r} cannot be downloaded; what can be: {', '.join(sorted(RECIPES))}"
        )
    return fetch.get(RECIPES[name], force=force)


def own_files(name: str) -> list[Path]:
    """The files of one's own data, or an error for a name that is neither a name nor a path."""
    path = Path(name)
    if path.is_dir():
        return sorted(path.glob("*.npy"))
    if path.exists():
        return [path]
    near = get_close_matches(name, DATA, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise FileNotFoundError(
        f"there is no data {name!r}: {hint}Names are {', '.join(DATA)}; your own data is given by "
        "its path, mine.npz or a folder of .npy files"
    )


def stamp(path: Path) -> tuple[str, int, int]:
    """What changes when a file does."""
    if not path.exists():  # not downloaded yet, which its loader explains
        return str(path), 0, 0
    found = os.stat(path)
    return str(path), found.st_mtime_ns, found.st_size


def options_of(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """All options of a loader, checked."""
    entry, what = (DATA[name], f"data {name!r}") if name in DATA else (own.load, f"data '{name}'")
    return completed(what, entry, options)


@lru_cache(maxsize=4)
def _loaded(name: str, options: str, stamps: object) -> Data:
    values = options_of(name, json.loads(options))
    return DATA[name](**values) if name in DATA else own.load(name, **values)
