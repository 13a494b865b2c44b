"""What must be right before anything is trained: a mistake costs a second and not a night."""

from __future__ import annotations

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
