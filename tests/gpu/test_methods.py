"""The methods of the benchmark on a CUDA device: nothing in a step waits for it, and restarts.

Written without a GPU at hand; where one of these tests fails on its first device, doubt the test as
much as the method.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.bench import toys
from vcmm.bench.build import Training, build
from vcmm.bench.methods import METHODS
from vcmm.bench.spec import Spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def in_the_second_epoch(spec: Spec) -> Training:
    training = build(spec, toys.data_of(spec), "cuda")
    told = toys.events(training, spec)
    while next(told).step < toys.STEPS + 1:
        pass
    return training


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_does_not_wait(name: str, optimizer: str) -> None:
    training = in_the_second_epoch(toys.tiny(3, "image", method=name, optimizer=optimizer))
    batch = training.data.batch("train", torch.arange(16)).to(training.method.device)
    with waiting_is_an_error():
        training.method.step(batch)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_state_comes_back_to_the_device(name: str) -> None:
    spec = toys.tiny(3, method=name)
    one = in_the_second_epoch(spec)
    method, optimizer = copy.deepcopy((one.method.state_dict(), one.method.optimizer.state_dict()))
    other = build(spec, toys.data_of(spec), "cuda")
    other.method.load_state_dict(method)
    other.method.optimizer.load_state_dict(optimizer)
    batch = one.data.batch("train", torch.arange(16)).to(one.method.device)
    values = [training.method.step(batch) for training in (one, other)]
    for term, value in values[0].items():
        torch.testing.assert_close(values[1][term], value, rtol=1e-5, atol=1e-6)
