"""What must be right before anything is trained: a mistake costs a second and not a night."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..spec import Choice, Spec
from .errors import mistakes

if TYPE_CHECKING:
    from ..types import Data


def loadable(spec: Spec) -> Data:
    """The data of a spec, of the modalities that it names."""
    from ..build import chosen_data
    from ..data import load

    with mistakes():
        data = chosen_data(spec, load(spec.data.name, **spec.data.options))
        encodable(spec, data)
    return data


def encodable(spec: Spec, data: Data) -> None:
    """An error if a benchmark is left to `auto`, which has nothing for what is in it."""
    from ..data import COLLECTIONS
    from ..encoders.encoder import TAKES
    from ..protocols import fitting
    from ..signature import parameters

    if data.name not in COLLECTIONS or spec.encoder.name != "auto":
        return
    known = parameters(COLLECTIONS[data.name].parameters)
    protocol = fitting(data.name, {k: v for k, v in spec.data.options.items() if k in known})
    for modality in data.modalities:
        kind = data.forms[modality].kind
        if modality not in spec.encoders and kind in ("video", "tokens"):
            raise ValueError(
                f"encoder auto has nothing for {modality!r}, which is {kind}: train as papers do, "
                f"--protocol {protocol}, or name an encoder, {TAKES[kind]}"
            )


def prepared(data: Choice, root: Path, *, workers: int | None, plain: bool, quiet: bool) -> None:
    """Decode the media of a benchmark, as far as that was not done before."""
    from ..data import options_of
    from ..media.prepare import prepare
    from ..signature import parameters
    from .decoding import watched
    from .media import collection_of

    with mistakes():
        collection = collection_of(data.name)
        known = parameters(collection.parameters)
        options = {k: v for k, v in options_of(data.name, data.options).items() if k in known}
        kept = "What was decoded is kept, and the same command goes on."
        with watched(data.name, kept, plain=plain, quiet=quiet) as watch:
            prepare(collection, root, options, workers=workers, watch=watch)


def buildable(specs: Iterable[Spec]) -> None:
    """Build everything that is going to be trained, once for all seeds."""
    from ..build import build, chosen_data
    from ..data import load

    with mistakes():
        for spec in dict.fromkeys(replace(one, seed=0) for one in specs):
            data = load(spec.data.name, **spec.data.options)
            encodable(spec, chosen_data(spec, data))
            build(spec, data)
