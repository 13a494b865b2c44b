"""No method waits for the device in a step: nothing of a tensor is read, so none has to be there.

Reads are counted on the CPU, where Python asks for a number and where an operator of torch does it
on the way. That a GPU agrees is in tests/gpu/test_methods.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.bench import toys
from vcmm.bench import methods
from vcmm.bench.methods import METHODS
from vcmm.bench.train import Stepped

ASKED = {
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
    Tensor.cpu,
    Tensor.__bool__,
    Tensor.__float__,
    Tensor.__int__,
    Tensor.__index__,
    Tensor.__contains__,
}
# What decides a shape or a number on the host; a mask as an index is `index` with a bool tensor.
OPERATORS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "is_nonzero"}

BETWEEN_EPOCHS = {"begin_epoch", "scores", "set_extra_state"}


class Asked(TorchFunctionMode):
    """Notes where Python asks for a number."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in ASKED:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Done(TorchDispatchMode):
    """Notes operators that have to know a number."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = [i for i in (args[1] if name == "index" else ()) if i is not None]
        if name in OPERATORS or any(mask.dtype == torch.bool for mask in masks):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def reads() -> Iterator[list[str]]:
    """What is read from a tensor in the meantime."""
    found: list[str] = []
    with Asked(found), Done(found):
        yield found


def test_reads_are_seen() -> None:
    x = torch.arange(3.0)
    for read in (
        x[0].item,
        lambda: bool(x[0] > 1),
        x.tolist,
        lambda: x[x > 1],
        x.nonzero,
        lambda: torch.equal(x, x),
    ):
        with reads() as found:
            read()
        assert found, read
    with reads() as found:
        torch.where(x > 1, x, 0.0).sum()
        x[torch.tensor([0, 2])]
    assert found == []


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_reads_nothing(name: str, optimizer: str) -> None:
    spec = toys.tiny(3, method=name, optimizer=optimizer)
    training = toys.built(spec)
    told = toys.events(training, spec)
    while next(told).step < toys.STEPS + 1:  # into the second epoch
        pass
    batch = training.data.batch("train", torch.arange(16))
    with reads() as found:
        training.method.step(batch)
    assert found == []
    assert any(isinstance(event, Stepped) for event in told)


class Counted(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_step_on_more_samples_takes_as_many_operators(name: str) -> None:
    """So nothing loops over samples in Python."""
    spec = toys.tiny(3, method=name)
    training = toys.built(spec)
    told = toys.events(training, spec)
    while next(told).step < toys.STEPS + 1:  # into the second epoch
        pass
    found: list[int] = []
    for samples in (12, 36):
        batch = training.data.batch("train", torch.arange(samples))
        with Counted() as counted:
            training.method.step(batch)
        found.append(counted.count)
    assert found[0] == found[1] > 0


def test_nothing_in_a_method_asks_a_tensor_for_its_number_one_by_one() -> None:
    """What is read, is read at once, and between epochs."""
    folder = Path(methods.__file__).parent
    for path in [*folder.glob("*.py"), *(folder.parent / "fusions").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name not in BETWEEN_EPOCHS:
                asked = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
                assert not asked & {"item", "tolist", "numpy", "cpu", "synchronize"}, path.name
