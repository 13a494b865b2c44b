"""Every method goes on from a checkpoint as if nothing had happened."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from vcmm.bench import folder
from vcmm.bench.events import Event
from vcmm.bench.run import run

from ..toys import STEPS, differences, records, tiny
from .cases import every_method, every_number

EPOCHS = 3


class Interrupted(BaseException):
    """Ctrl-C, or whatever else ends a process."""


@every_method
@every_number
def test_it_resumes_bitwise_wherever_it_was_interrupted(
    name: str, modalities: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny(modalities, method=name, controller="vcmm", epochs=EPOCHS)
    states: list[dict[str, Any]] = []
    publish = folder.publish

    def spy(root: Path, identity: str, work: Path) -> Path:
        states.append(torch.load(work / "checkpoint.pt", weights_only=True))
        return publish(root, identity, work)

    monkeypatch.setattr(folder, "publish", spy)
    whole = run(spec, tmp_path / "whole", checkpoint_every=0)
    # Events of one training are: started, then per epoch four steps and the epoch. An attempt ends
    # before its last event is saved; so checkpoints are taken mid-epoch, after the last step of an
    # epoch, and after the epoch, and begin_epoch is called once more where it had been called.
    lengths = iter([0, 1, 3, 5, 2, 2, 3, 4])
    for attempt in count(1):
        left = next(lengths, 3)

        def watch(event: Event) -> None:
            nonlocal left
            if left == 0 and event.kind != "done":
                raise Interrupted
            left -= 1

        try:
            pieces = run(spec, tmp_path / "pieces", watch=watch, checkpoint_every=0)
        except Interrupted:
            assert attempt < 3 * EPOCHS * STEPS, "it does not get on"
            continue
        break
    assert attempt > 4
    assert records(pieces) == records(whole)
    for state in states:
        for told in ("attempt", "started", "seconds", "sizes"):
            state.pop(told)
    one, other = states
    assert differences(one, other) == []
