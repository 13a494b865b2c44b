"""Trains on prepared media, with and without an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vcmm.bench.events import Event
from vcmm.bench.run import run
from vcmm.bench.spec import Spec

from ..toys import records, rows


class Interrupted(BaseException):
    """As a kill would be: nobody catches it."""


def trained(spec: Spec, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The last measurements of each split, after a run that went through and one that did not.

    Both must have written the same bytes.
    """
    whole = run(spec, tmp_path / "whole")

    def watch(event: Event) -> None:
        if event.step == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(spec, tmp_path / "pieces", watch=watch, checkpoint_every=0)
    told: list[Event] = []
    pieces = run(spec, tmp_path / "pieces", watch=told.append)
    assert told[0].step >= 3  # it goes on and does not begin anew
    assert records(pieces) == records(whole)
    return {row["split"]: row["values"] for row in rows(whole / "evals.jsonl")}
