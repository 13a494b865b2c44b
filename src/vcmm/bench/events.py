"""What a run tells whoever watches it. Plain numbers and strings, so it travels between processes.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "started",  # training goes on at `step`, which is 0 for a new run
    "step",  # some steps were taken: values as in steps.jsonl
    "epoch",  # an epoch was judged: values of the valid split, as in evals.jsonl
    "done",  # the record is complete
    "cached",  # it was there already
    "busy",  # another process is running this very spec
    "failed",  # `error` says why
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run."""

    kind: Kind
    run: str  # the hash
    spec: Mapping[str, object]  # as JSON
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    steps: int = 0  # of the whole run
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    error: str = ""  # a traceback
