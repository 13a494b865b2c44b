"""Modules keyed by modality."""

from __future__ import annotations

from torch import nn


class ByModality(nn.ModuleDict):
    """A `ModuleDict` that takes the names which torch refuses: "type", "values", "pop", ..."""

    def __setitem__(self, key: str, module: nn.Module) -> None:
        self._modules[key] = module
