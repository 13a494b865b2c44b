"""Randomness by name: every use has a generator of its own, seeded by what it is for.

So the order of samples does not change when a model has one layer more, and the encoder of a
modality starts from the same weights alone and beside others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn


def derived(seed: int, *names: str | int) -> int:
    """A seed for one use, from the seed of the run."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A generator on the CPU for one use."""
    return torch.Generator().manual_seed(derived(seed, *names))


@contextmanager
def fixed(seed: int, *names: str | int) -> Generator[None]:
    """torch's global generator for one use; afterwards it is as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derived(seed, *names))
        yield


def initialize(model: nn.Module, seed: int) -> None:
    """Draw the weights of every module anew, each from its own name.

    Parts come before what they are parts of, so a module has the last word on all that is in it.
    """
    modules = cast(Iterable[tuple[str, nn.Module]], model.named_modules())
    for name, module in reversed(list(modules)):
        reset = getattr(module, "reset_parameters", None)  # torch's convention, not a protocol
        if callable(reset):
            with fixed(seed, "weights", name):
                reset()
