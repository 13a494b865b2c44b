"""CREMA-D in miniature, decoded into a cache of its own: what tests of training begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcmm.bench.data import COLLECTIONS
from vcmm.bench.media.prepare import prepare

from . import makers_cremad as makers

SIDE, SIZE = 48, 32  # pixels as they are stored, and as a model sees them


def cremad(base: Path, patch: pytest.MonkeyPatch, *audio: str) -> Path:
    """The folder of its files; the cache is that of the environment from now on."""
    patch.setenv("VCMM_CACHE", str(base / "cache"))
    root = makers.cremad(base / "root", frames=True)
    for kind in audio:
        prepare(COLLECTIONS["cremad"], root, {"audio": kind, "side": SIDE}, workers=1)
    return root
