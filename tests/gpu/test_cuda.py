"""What only a CUDA device can show: its kernels, its synchronizations, its graphs, its scaler.

Written without a GPU at hand, from torch's sources and documentation: where one of these tests
fails on its first device, doubt the test as much as the library.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vcmm import VCMM, MomentumController, Policy, Probe, modal_groups, reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

DEVICE = "cuda"
STEPS = 40
RTOL = 1e-12  # float64, as on the CPU
LR, BETA0, BETA2, EPS = 1e-2, 0.9, 0.99, 1e-6

tensor_betas = pytest.mark.skipif(
    "Tensor" not in str(inspect.signature(torch.optim.Adam).parameters["betas"].annotation),
    reason="this torch's Adam takes no tensor betas",
)


# Exactness


class Replay(Policy):
    """Step t has the momenta of the t-th entry."""

    def __init__(self, betas: Sequence[Mapping[str, float]]) -> None:
        self.betas = iter(betas)

    def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, Any]:
        return next(self.betas)


def varying() -> list[dict[str, float]]:
    generator = torch.Generator().manual_seed(7)
    drawn = (0.70 + 0.29 * torch.rand(STEPS, 2, generator=generator)).tolist()
    return [{"audio": a, "video": v} for a, v in drawn]


def make_groups() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    groups: list[dict[str, Any]] = []
    for name in ("audio", "video", "shared"):
        params = [
            torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE).requires_grad_()
            for shape in ((3, 4), (5,))
        ]
        modality = None if name == "shared" else name
        groups.append({"params": params, "name": name, "modality": modality})
    return groups


def give_gradients(groups: list[dict[str, Any]], t: int) -> None:
    generator = torch.Generator().manual_seed(1000 + t)
    for group in groups:
        for p in group["params"]:
            gradient = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.grad = (gradient * (1.5 + math.sin(t))).to(DEVICE)


def worst_error(
    optimizer: Optimizer, groups: list[dict[str, Any]], slow_kind: Any, **settings: Any
) -> float:
    """Of a run against `vcmm.reference`, relative to how far the parameters have moved."""
    slow = [[slow_kind(p.cpu(), lr=LR, **settings) for p in group["params"]] for group in groups]
    start = [[p.detach().cpu().clone() for p in group["params"]] for group in groups]
    sequence = varying()
    MomentumController(optimizer, Replay(sequence))
    worst = 0.0
    for t, betas in enumerate(sequence):
        give_gradients(groups, t)
        for group, copies in zip(groups, slow, strict=True):
            for p, one in zip(group["params"], copies, strict=True):
                one.step(p.grad.cpu(), betas.get(group["name"], BETA0))
        optimizer.step()
        for group, copies, begun in zip(groups, slow, start, strict=True):
            for p, one, origin in zip(group["params"], copies, begun, strict=True):
                error = (p.detach().cpu() - one.parameter).norm()
                worst = max(worst, float(error / (one.parameter - origin).norm()))
    return worst


KERNELS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable loop": {"foreach": False, "capturable": True},
    "capturable foreach": {"foreach": True, "capturable": True},
    "capturable fused": {"fused": True, "capturable": True},
}
ADAMS: dict[str, tuple[type[Optimizer], dict[str, Any], dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {}, {}),
    "AdamW": (torch.optim.AdamW, {}, {"decoupled": True}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}, {"amsgrad": True}),
}


@pytest.fixture
def double() -> Iterator[None]:
    """torch keeps Adam's step count, from which capturable kernels make 1 - beta^t, in this."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ADAMS)
def test_fact_01_adam_on_cuda_is_the_reference(name: str, kernel: str, weight_decay: float) -> None:
    kind, more, slow = ADAMS[name]
    groups = make_groups()
    both = {"betas": (BETA0, BETA2), "eps": EPS, "weight_decay": weight_decay}
    optimizer = kind(groups, lr=LR, **both, **more, **KERNELS[kernel])
    assert worst_error(optimizer, groups, reference.Adam, **both, **slow) <= RTOL


@pytest.mark.usefixtures("double")
@tensor_betas
@pytest.mark.parametrize("tensors", ["lr", "betas", "both"])
@pytest.mark.parametrize("kernel", ["capturable loop", "capturable foreach", "fused"])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_fact_01_tensor_lr_and_tensor_betas_on_cuda_are_the_reference(
    name: str, kernel: str, tensors: str
) -> None:
    def on_device(number: float) -> Tensor:
        return torch.tensor(number, dtype=torch.float64, device=DEVICE)

    kind, _, slow = ADAMS[name]
    groups = make_groups()
    betas: Any = (BETA0, BETA2)
    lr: Any = LR
    if tensors in ("betas", "both"):
        betas = tuple(on_device(beta) for beta in betas)
    tolerance = RTOL
    if tensors in ("lr", "both"):
        lr = on_device(LR)
        if kernel == "fused":  # which takes lr in float32 alone, so lr * c_t is rounded to it
            lr, tolerance = lr.float(), 2e-7
    before = float(lr)
    more = {"eps": EPS, "weight_decay": 0.1}
    optimizer = kind(groups, lr=lr, betas=betas, **more, **KERNELS[kernel])
    error = worst_error(optimizer, groups, reference.Adam, betas=(BETA0, BETA2), **more, **slow)
    assert error <= tolerance
    for group in optimizer.param_groups:  # the very tensors that were given, with their values
        assert group["lr"] is lr
        assert float(lr) == before
        assert [float(beta) for beta in group["betas"]] == [BETA0, BETA2]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kernel", ["loop", "foreach", "fused"])
def test_fact_01_sgd_on_cuda_is_the_reference(kernel: str) -> None:
    groups = make_groups()
    both = {"momentum": BETA0, "weight_decay": 0.1}
    optimizer = torch.optim.SGD(groups, lr=LR, **both, **KERNELS[kernel])
    assert worst_error(optimizer, groups, reference.SGD, **both) <= RTOL


# A small training, all of whose inputs are on the device before it starts


class Training:
    def __init__(self, kind: type[Optimizer], **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleDict({name: nn.Linear(6, 5) for name in ("audio", "video")}).to(
            DEVICE
        )
        groups = modal_groups(self.model, audio=self.model["audio"], video=self.model["video"])
        self.optimizer = kind(groups, **settings)
        self.vcmm = VCMM(self.optimizer)
        self.batches = [self.batch(t) for t in range(12)]

    @staticmethod
    def batch(t: int) -> tuple[dict[str, Tensor], Tensor]:
        generator = torch.Generator().manual_seed(t)
        inputs = {
            name: scale * torch.randn(8, 6, generator=generator).to(DEVICE)
            for name, scale in (("audio", 1.0), ("video", 3.0))
        }
        return inputs, torch.randint(5, (8,), generator=generator).to(DEVICE)

    def backward(self, t: int, scale: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
        """Gradients stay where they are, as a captured graph needs them."""
        inputs, target = self.batches[t]
        self.optimizer.zero_grad(set_to_none=False)
        seen = {name: (x, self.model[name](x)) for name, x in inputs.items()}
        fused = torch.stack([z for _, z in seen.values()]).mean(0)
        scale(nn.functional.cross_entropy(fused, target)).backward()
        self.vcmm.observe(target, **seen)

    def step(self, t: int) -> None:
        self.backward(t)
        self.optimizer.step()

    def parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def require_moved(self) -> None:
        betas = self.vcmm.betas
        assert betas["audio"] != betas["video"]


@contextmanager
def sync_debug(mode: str) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


# Synchronizations


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fact_14_a_capturable_step_never_waits_for_the_device(
    kind: type[Optimizer], weight_decay: float
) -> None:
    more = {"lr": LR, "weight_decay": weight_decay}
    training = Training(kind, foreach=False, capturable=True, **more)
    for t in range(3):  # what is made once may wait
        training.step(t)
    with sync_debug("error"):
        for t in range(3, 8):
            training.step(t)
    training.require_moved()


def test_fact_14_nor_when_a_modality_is_absent() -> None:
    training = Training(torch.optim.Adam, lr=LR, foreach=False, capturable=True)
    for t in range(3):
        training.step(t)
    inputs, target = training.batches[3]
    with sync_debug("error"):
        z = training.model["audio"](inputs["audio"])
        training.vcmm.observe(target, audio=(inputs["audio"], z))
        training.optimizer.step()
    assert training.vcmm.metrics()["video/unmeasured"] == 1


@pytest.mark.parametrize("kernel", ["loop", "foreach", "fused"])
def test_fact_14_any_other_step_waits_once_at_most(kernel: str) -> None:
    training = Training(torch.optim.Adam, lr=LR, **KERNELS[kernel])
    for t in range(3):
        training.step(t)
    for t in range(3, 8):
        with sync_debug("warn"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            training.step(t)
        waits = [w for w in caught if "synchronizing CUDA operation" in str(w.message)]
        assert len(waits) <= 1
    training.require_moved()


def test_the_detector_of_synchronizations_detects_one() -> None:
    one = torch.ones((), device=DEVICE)
    with sync_debug("error"), pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        one.item()


def test_metrics_and_betas_can_be_read_after_a_capturable_step() -> None:
    training = Training(torch.optim.Adam, lr=LR, foreach=False, capturable=True)
    for t in range(4):
        training.step(t)
    metrics = training.vcmm.metrics()
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())
    assert {"audio/R", "audio/Q", "audio/rho", "audio/gain", "audio/beta"} <= metrics.keys()
    assert metrics["audio/beta"] == training.vcmm.betas["audio"]


def test_a_capturable_step_is_the_one_that_asks_the_host() -> None:
    on_device = Training(torch.optim.Adam, lr=LR, foreach=False, capturable=True)
    on_host = Training(torch.optim.Adam, lr=LR, foreach=False)
    for t in range(8):
        on_device.step(t)
        on_host.step(t)
    on_device.require_moved()
    # Both momenta come from float64 arithmetic on the same float32 probes.
    assert on_device.vcmm.betas == pytest.approx(on_host.vcmm.betas, rel=1e-5)
    torch.testing.assert_close(on_device.parameters(), on_host.parameters(), rtol=1e-4, atol=1e-6)


def test_a_controller_on_a_device_goes_through_its_state_dict() -> None:
    first = Training(torch.optim.Adam, lr=LR, foreach=False, capturable=True)
    for t in range(4):
        first.step(t)
    second = Training(torch.optim.Adam, lr=LR, foreach=False, capturable=True)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    for t in range(4, 8):
        first.step(t)
        second.step(t)
    torch.testing.assert_close(first.parameters(), second.parameters(), rtol=0, atol=0)
    assert first.vcmm.betas == second.vcmm.betas


# Graphs


def test_fact_08_a_captured_step_is_replayed_with_new_momenta() -> None:
    eager, captured = (
        Training(torch.optim.Adam, lr=LR, foreach=False, capturable=True) for _ in range(2)
    )
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # torch asks for a few steps aside before a capture
        for t in range(3):
            captured.step(t)
    torch.cuda.current_stream().wait_stream(stream)
    for t in range(3):
        eager.step(t)

    graph = torch.cuda.CUDAGraph()
    captured.backward(3)
    with captured.vcmm.applied():
        with torch.cuda.graph(graph):
            captured.optimizer.step()
        graph.replay()  # a capture records kernels and runs none
    eager.step(3)
    seen = {captured.vcmm.betas["audio"]}
    for t in range(4, 12):
        captured.backward(t)
        with captured.vcmm.applied():
            graph.replay()
        eager.step(t)
        seen.add(captured.vcmm.betas["audio"])
    assert len(seen) == 9  # the momenta were not those of the capture
    assert captured.vcmm.betas == pytest.approx(eager.vcmm.betas, rel=1e-6)
    torch.testing.assert_close(captured.parameters(), eager.parameters(), rtol=1e-5, atol=1e-7)


# GradScaler


@pytest.mark.parametrize("overflows", [(), (0,), (2, 3)], ids=["never", "first", "in between"])
@pytest.mark.parametrize("kernel", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_fact_04_t_and_p_stand_still_where_the_scaler_finds_an_overflow(
    kind: type[Optimizer], kernel: str, overflows: tuple[int, ...]
) -> None:
    memory = {"momentum": BETA0} if kind is torch.optim.SGD else {}
    settings = {"lr": LR, **memory, **KERNELS[kernel]}
    scaled, absent = Training(kind, **settings), Training(kind, **settings)
    # A power of two, so that scaling and unscaling are exact.
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
    for t in range(8):
        scaled.backward(t, scaler.scale)
        if t in overflows:
            gradient = scaled.model["video"].weight.grad
            assert gradient is not None
            gradient[0, 0] = torch.inf
        before = scaler.get_scale()
        scaler.step(scaled.optimizer)
        scaler.update()
        skipped = scaler.get_scale() < before
        assert skipped == (t in overflows)
        if skipped:
            scaled.vcmm.discard()
        else:
            absent.step(t)
    scaled.require_moved()
    assert scaled.vcmm.betas == pytest.approx(absent.vcmm.betas, rel=1e-6)
    torch.testing.assert_close(scaled.parameters(), absent.parameters(), rtol=1e-5, atol=1e-7)


def test_fact_15_autocast_on_cuda_changes_neither_noise_nor_drift() -> None:
    inside, outside = (Training(torch.optim.Adam, lr=LR, fused=True) for _ in range(2))
    for t in range(4):
        for training in (inside, outside):
            inputs, target = training.batches[t]
            seen = {name: (x, x[:, :5].contiguous()) for name, x in inputs.items()}
            for p in training.model.parameters():
                p.grad = torch.ones_like(p)
            with torch.autocast(DEVICE, dtype=torch.float16, enabled=training is inside):
                training.vcmm.observe(target, **seen)
            training.optimizer.step()
    assert inside.vcmm.metrics() == outside.vcmm.metrics()
    inside.require_moved()


# The benchmark


def test_the_benchmark_runs_on_the_device(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "overhead.py"
    path = tmp_path / "overhead.json"
    command = [sys.executable, str(script), "--device", DEVICE, "--quick", "--json", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    result = json.loads(path.read_text())
    assert result["machine"]["gpu"]
    assert all(row["median"] > 0 for row in result["rows"])
    # The bars are stated for two CPU cores; importing needs no device.
    barred = [row["what"] for row in result["rows"] if row["bar"] is not None]
    assert barred == ["from vcmm import *"]
