"""On a CUDA device every encoder trains deterministically, as runs demand, and never waits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from vcmm.bench.encoders import ENCODERS
from vcmm.bench.run import repeatable
from vcmm.bench.types import Form, Kind

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CASES: dict[str, tuple[str, Kind, tuple[int, ...], dict[str, Any]]] = {
    "images": ("resnet18", "image", (3, 96, 96), {}),
    "spectrograms": ("resnet18", "image", (1, 257, 188), {}),
    "frames": ("resnet50", "video", (3, 3, 64, 64), {"classifier": 10}),
    "clips": ("i3d", "video", (3, 16, 64, 64), {}),
    "texts": ("bert", "tokens", (30,), {"layers": 2, "pooled": True}),
    "sounds": ("ast", "image", (1, 128, 128), {"layers": 2}),
}


@pytest.fixture(autouse=True)
def _as_in_a_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with repeatable(1):
        yield


def trained(case: str, autocast: bool) -> list[torch.Tensor]:
    """The weights after three steps, of which the last two may not wait for the device."""
    name, kind, shape, options = CASES[case]
    torch.manual_seed(0)
    encoder = ENCODERS[name](Form(kind, shape, None, np.zeros(1), np.ones(1)), **options).cuda()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01, momentum=0.9)
    size = (8, *shape)
    inputs = torch.randint(0, 99, size) if kind == "tokens" else torch.randn(size)
    inputs, goal = inputs.cuda(), torch.randn(8, encoder.outputs).cuda()
    try:
        for step in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls this mode a prototype
                torch.cuda.set_sync_debug_mode("error" if step else "default")
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                features = encoder(inputs)
            (features.float() * goal).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [parameter.detach() for parameter in encoder.parameters()]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_training_is_deterministic_and_does_not_wait(case: str, autocast: bool) -> None:
    once, twice = trained(case, autocast), trained(case, autocast)
    assert all(weight.isfinite().all() for weight in once)
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
