"""Where runs are trained if nobody says so, and where they cannot be."""

from __future__ import annotations

import pytest
import torch

from vcmm.bench.cli.errors import Mistake
from vcmm.bench.cli.executing import executed
from vcmm.bench.execution import Execution


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def asked(data: str, device: str = "auto", precision: str = "auto") -> Execution:
    return executed(data, device, precision, compiled=False, loaders=None)


@pytest.mark.usefixtures("gpus")
def test_media_go_to_a_gpu_and_small_data_stay() -> None:
    there = Execution(device="cuda", precision="bfloat16", channels_last=True)
    assert asked("cremad") == there
    assert asked("watch") == asked("mine.npz") == asked("cremad", "cpu") == Execution()
    assert asked("watch", "cuda:1").device == "cuda:1"
    assert asked("cremad", precision="float32").numerics == "channels_last"
    assert asked("watch", precision="bfloat16").numerics == "bfloat16"


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_everything_is_trained_here() -> None:
    assert asked("cremad") == Execution()
    with pytest.raises(Mistake, match="--device cuda: torch finds no GPU here"):
        asked("cremad", "cuda")


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "--device is 'gpu'; it must be auto, cpu, cuda or cuda:NUMBER"),
        ("cuda:x", "--device is 'cuda:x'"),
        ("cuda:", "--device is 'cuda:'"),
        ("cpu:0", "--device is 'cpu:0'"),
        ("cuda:2", "--device cuda:2: torch finds 2 GPUs here"),
    ],
)
def test_a_device_that_is_none_is_a_mistake(device: str, message: str) -> None:
    with pytest.raises(Mistake, match=message):
        asked("cremad", device)


@pytest.mark.usefixtures("no_gpu")
def test_flags_that_are_given_arrive() -> None:
    found = executed("watch", "cpu", "bfloat16", compiled=True, loaders=0)
    assert found == Execution(precision="bfloat16", compiled=True, loaders=0)
