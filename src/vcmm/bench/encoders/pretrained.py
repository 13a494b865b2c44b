"""Encoders that can start from the weights of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import nn

from .encoder import Encoder
from .weights import Loaded, load_weights, within


class Pretrained(Encoder):
    """An encoder with an option `weights`, the path of a file, and `fresh`, what not to take of it.

    A subclass makes its layers and calls `reset_parameters` last.
    """

    unused: tuple[str, ...] = ()  # parts of such files that no features come from

    def __init__(self, weights: str | None, fresh: tuple[str, ...] | None) -> None:
        super().__init__()
        self.weights = weights
        self.fresh = fresh or ()
        self.loaded: Loaded | None = None  # what came of the file

    def reset_parameters(self) -> None:
        """Random weights, and then those of the file."""
        named = self.named()
        names = [*cast(dict[str, object], named.state_dict())]
        for part in self.fresh:
            if not any(within(name, (part,)) for name in names):
                parts = dict.fromkeys(name.partition(".")[0] for name in names)
                raise ValueError(
                    f"fresh names {part!r}, which is no part of this encoder; there are "
                    f"{', '.join(parts)}"
                )
        self.draw()
        # On the meta device an encoder has no weights; it is only asked whether it can be made.
        if self.weights is not None and not any(weight.is_meta for weight in named.parameters()):
            self.loaded = load_weights(
                named, self.weights, fresh=self.fresh, unused=self.unused, rename=self.rename
            )

    def named(self) -> nn.Module:
        """The module whose names are those of the file."""
        return self

    def rename(self, name: str) -> str:
        """From a name in a file to one of ours."""
        return name

    def draw(self) -> None:
        """Random weights: every layer's own, unless a paper has others."""
        for layer in self.modules():
            reset = getattr(layer, "reset_parameters", None)  # torch's convention, not a protocol
            if layer is not self and callable(reset):
                cast(Callable[[], None], reset)()
