"""What must be right before anything is trained: a mistake costs a second and not a night."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..spec import Spec
from .errors import mistakes

if TYPE_CHECKING:
    from ..types import Data


def loadable(spec: Spec) -> Data:
    """The data of a spec, of the modalities that it names."""
    from ..build import chosen_data
    from ..data import load

    with mistakes():
        return chosen_data(spec, load(spec.data.name, **spec.data.options))


def buildable(specs: Iterable[Spec]) -> None:
    """Build everything that is going to be trained, once for all seeds."""
    from ..build import build
    from ..data import load

    with mistakes():
        for spec in dict.fromkeys(replace(one, seed=0) for one in specs):
            build(spec, load(spec.data.name, **spec.data.options))
