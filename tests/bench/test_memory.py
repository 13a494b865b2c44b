from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import nn

from vcmm.bench.memory import held_bytes, peak_bytes

from . import toys

CPU = torch.device("cpu")
MILLION = 1_000_000  # of float32, 4 MB


def test_peak_counts_what_is_held_at_once_and_not_what_was_there() -> None:
    before = torch.empty(MILLION)

    def run() -> None:
        a = torch.empty(MILLION)
        b = a + before
        del a
        c = b * 2
        del b
        c.add_(1)

    assert peak_bytes(run, CPU) == pytest.approx(8e6, rel=0.001)


def test_what_is_kept_counts_and_nothing_allocated_is_nothing() -> None:
    kept: list[torch.Tensor] = []

    def keep() -> None:
        for _ in range(5):
            kept.append(torch.ones(MILLION))
            torch.ones(MILLION)

    assert peak_bytes(keep, CPU) == pytest.approx(6 * 4e6, rel=0.001)
    assert peak_bytes(lambda: kept[0].add_(1), CPU) < 100  # the number is a tensor to torch
    assert peak_bytes(lambda: None, CPU) == 0


def test_what_was_there_and_goes_makes_no_room() -> None:
    holder: list[torch.Tensor] = [torch.ones(MILLION)]

    def swap() -> None:
        holder.clear()
        holder.append(torch.ones(MILLION))

    assert peak_bytes(swap, CPU) == pytest.approx(4e6, rel=0.001)


def test_garbage_of_before_is_gone_before_the_call() -> None:
    class Ring:
        def __init__(self) -> None:
            self.myself = self
            self.tensor = torch.ones(MILLION)

    def run() -> None:
        torch.ones(MILLION)
        gc.collect()
        torch.ones(2 * MILLION)

    Ring()
    assert peak_bytes(run, CPU) == pytest.approx(8e6, rel=0.001)


def test_activations_of_a_backward_pass_are_counted() -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(100, 100), nn.Tanh()) for _ in range(8)))
    rows = torch.randn(1000, 100)

    def learn() -> None:
        layers(rows).sum().backward()
        layers.zero_grad()

    one = 1000 * 100 * 4

    def judge() -> None:
        with torch.no_grad():
            layers(rows)

    assert peak_bytes(judge, CPU) <= 3 * one
    assert peak_bytes(learn, CPU) >= 8 * one


def test_an_error_in_the_call_comes_through() -> None:
    def fail() -> Any:
        raise KeyError

    with pytest.raises(KeyError):
        peak_bytes(fail, CPU)
    assert peak_bytes(lambda: torch.ones(MILLION), CPU) == pytest.approx(4e6, rel=0.001)


def test_a_step_takes_the_same_memory_whenever_it_is_measured() -> None:
    training = toys.built(toys.tiny(2, "sequence", controller="vcmm"))
    batch = training.data.batch("train", torch.arange(16))

    def steps() -> None:
        for _ in range(2):
            training.method.train().step(batch)

    steps()
    assert peak_bytes(steps, CPU) == peak_bytes(steps, CPU) > 0


def test_what_lies_there_between_steps_is_parameters_buffers_and_state() -> None:
    training = toys.built(toys.tiny(2, "sequence"))
    method = training.method
    parameters = sum(p.numel() * 4 for p in method.parameters())
    buffers = sum(b.numel() * b.element_size() for b in method.buffers())
    assert held_bytes(method, method.optimizer) == parameters + buffers
    method.step(training.data.batch("train", torch.arange(16)))
    steps = 4 * len(list(method.parameters()))
    assert held_bytes(method, method.optimizer) == 3 * parameters + buffers + steps


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason="an older torch remarks on the tensors that are held"
)
def test_nothing_is_printed_by_measuring() -> None:
    """torch remarks once a process on blocks that were there before and go."""
    code = """
        import torch
        from tests.bench import toys
        from vcmm.bench.memory import peak_bytes
        training = toys.built(toys.tiny(2, controller="vcmm"))
        batch = training.data.batch("train", torch.arange(16))
        training.method.step(batch)
        peak_bytes(lambda: training.method.step(batch), torch.device("cpu"))
        old = [torch.ones(10)]
        peak_bytes(old.clear, torch.device("cpu"))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""
