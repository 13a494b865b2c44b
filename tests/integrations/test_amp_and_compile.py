"""Mixed precision and torch.compile of a whole training step: model, loss scale, optimizer.

What the parts do alone is shown by tests/test_scaler.py, test_autocast.py and test_compile.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from vcmm import VCMM, modal_groups
from vcmm.checkpoint import read
from vcmm.record import pack

STEPS = 12
NEVER: frozenset[int] = frozenset()


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.audio = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh())
        self.video = nn.Sequential(nn.Linear(3, 5), nn.GELU())
        self.heads = nn.ModuleDict({"audio": nn.Linear(6, 3), "video": nn.Linear(5, 3)})
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, audio: Tensor, video: Tensor) -> tuple[Any, Tensor]:
        seen = {}
        for name, x in (("audio", audio), ("video", video)):
            h = self.get_submodule(name)(x)
            seen[name] = h, self.heads[name](h)
        return seen, (seen["audio"][1] + seen["video"][1]) / 2 + self.bias


class Run:
    def __init__(
        self,
        optimizer: str = "AdamW",
        *,
        controlled: bool = True,
        capture: bool = False,
        dtype: torch.dtype = torch.float32,
        **settings: Any,
    ) -> None:
        self.model = Net().to(dtype)
        groups = modal_groups(
            self.model,
            audio=[self.model.audio, self.model.heads["audio"]],
            video=[self.model.video, self.model.heads["video"]],
        )
        settings = {"lr": 0.01, "weight_decay": 0.1, **settings}
        self.optimizer = getattr(torch.optim, optimizer)(groups, **settings)
        heads = self.model.heads if capture else None
        self.vcmm = VCMM(self.optimizer, heads=heads) if controlled else None
        self.capture = capture
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=False)
        self.forward: Any = self.model
        self.step: Any = self.optimizer.step
        self.compiled = False
        self.autocast = False

    def train(self, steps: Any = range(STEPS), overflows: frozenset[int] = NEVER) -> Run:
        for t in steps:
            generator = torch.Generator().manual_seed(t)
            y = torch.randint(3, (8,), generator=generator)
            x = [torch.randn(8, d, generator=generator) + y[:, None] for d in (4, 3)]
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext():
                seen, fused = self.forward(*(each.to(self.model.bias.dtype) for each in x))
                loss = F.cross_entropy(fused, y)
            self.scaler.scale(loss).backward()
            if t in overflows:
                self.model.video[0].weight.grad[0, 0] = torch.inf
            if self.vcmm is not None:
                self.vcmm.observe(y, **({} if self.capture else seen))
            if self.compiled:
                with self.vcmm.applied():
                    self.step()
            else:
                self.scaler.step(self.optimizer)
            self.scaler.update()
        return self

    def bits(self) -> dict[str, bytes]:
        return {n: p.detach().numpy().tobytes() for n, p in self.model.named_parameters()}

    def record(self) -> str:
        record = read(self.vcmm.state_dict())
        del record["discarded"]
        return pack(record)


# bfloat16

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW": ("AdamW", {"foreach": False}),
    "AdamW-foreach": ("AdamW", {"foreach": True}),
    "AdamW-fused": ("AdamW", {"fused": True}),
    "SGD": ("SGD", {"momentum": 0.9}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_without_strength_training_in_bfloat16_is_the_plain_loop_bitwise(kind: str) -> None:
    name, settings = KINDS[kind]
    runs = [Run(name, controlled=on, **settings) for on in (True, False)]
    runs[0].vcmm.detach()
    runs[0].vcmm = VCMM(runs[0].optimizer, strength=0.0)
    for run in runs:
        run.autocast = True
        run.train()
    assert runs[0].bits() == runs[1].bits()


@pytest.mark.parametrize("capture", [False, True], ids=["passed", "captured"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16_with_a_loss_scale_overflows_have_never_been(kind: str, capture: bool) -> None:
    """The scale is a power of two, which neither float32 nor bfloat16 rounds."""
    name, settings = KINDS[kind]
    overflows = frozenset({2, 5, 6})
    scaled, absent = (Run(name, capture=capture, **settings) for _ in range(2))
    scaled.autocast = absent.autocast = True
    scaled.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaled.train(overflows=overflows)
    absent.train(t for t in range(STEPS) if t not in overflows)
    assert scaled.bits() == absent.bits()
    assert scaled.record() == absent.record()
    assert scaled.vcmm.metrics()["discarded"] == len(overflows)
    assert scaled.vcmm.betas["audio"] != scaled.vcmm.betas["video"]


# torch.compile


def tensors(dtype: torch.dtype) -> dict[str, Any]:
    """A traced step reads these from memory; see docs/guide.md."""
    return {
        "lr": torch.tensor(0.01, dtype=dtype),
        "betas": (torch.tensor(0.9, dtype=dtype), torch.tensor(0.999, dtype=dtype)),
        "foreach": False,
    }


@pytest.mark.parametrize("capture", [False, True], ids=["passed", "captured"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_a_compiled_model_is_one_graph_and_the_eager_one_bitwise(
    autocast: bool, capture: bool
) -> None:
    eager, compiled = (Run(capture=capture) for _ in range(2))
    eager.autocast = compiled.autocast = autocast
    counter = CompileCounter()
    compiled.forward = torch.compile(compiled.model, backend=counter)
    eager.train()
    compiled.train()
    assert counter.frame_count == 1  # no graph break, and none traced anew
    assert compiled.bits() == eager.bits()
    assert compiled.vcmm.metrics() == eager.vcmm.metrics()
    assert compiled.vcmm.betas["audio"] != compiled.vcmm.betas["video"]


@pytest.fixture
def float64() -> Iterator[None]:
    """torch keeps Adam's step count, from which a traced step makes 1 - beta^t, in this dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("capture", [False, True], ids=["passed", "captured"])
def test_a_compiled_model_and_a_compiled_step_are_the_eager_ones(capture: bool) -> None:
    dtype = torch.float64
    eager = Run(dtype=dtype, capture=capture, **tensors(dtype)).train()
    compiled = Run(dtype=dtype, capture=capture, **tensors(dtype))
    model, step = CompileCounter(), CompileCounter()
    compiled.forward = torch.compile(compiled.model, backend=model)
    compiled.step = torch.compile(compiled.optimizer.step, backend=step)
    compiled.compiled = True
    compiled.train(range(3))
    warm = step.frame_count
    compiled.train(range(3, STEPS))
    assert model.frame_count == 1
    assert step.frame_count == warm <= 4  # while there is no state yet, and once for good
    for p, q in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)
    assert compiled.vcmm.metrics() == pytest.approx(eager.vcmm.metrics(), rel=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.usefixtures("float64")
def test_what_inductor_makes_of_model_and_step_is_the_eager_run() -> None:
    """Real kernels, which round in another order."""
    dtype = torch.float64
    eager = Run(dtype=dtype, capture=True, **tensors(dtype)).train()
    compiled = Run(dtype=dtype, capture=True, **tensors(dtype))
    compiled.forward = torch.compile(compiled.model)
    compiled.step = torch.compile(compiled.optimizer.step)
    compiled.compiled = True
    torch._dynamo.utils.counters.clear()
    compiled.train(range(3))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled.train(range(3, STEPS))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    for p, q in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11)
    assert compiled.vcmm.metrics() == pytest.approx(eager.vcmm.metrics(), rel=1e-6)
