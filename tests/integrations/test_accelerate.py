"""A loop under accelerate trains as the plain loop does, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DistributedType
from accelerate.state import AcceleratorState
from accelerate.tracking import GeneralTracker, on_main_process
from torch import Tensor, nn

from vcmm import VCMM, MomentumController
from vcmm.integrations.accelerate import control

from .pages import run as page
from .toys import OPTIMIZERS, Net, Samples, assert_bitwise, loader, net, optimizer_of, plain

pytestmark = [pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator is found")]
FIVE = 8 * 5 - 3  # samples: five batches, of which the last one is smaller


@pytest.fixture(autouse=True)
def _no_state_of_another_test() -> Iterator[None]:
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


class Run:
    """A user's loop with accelerate."""

    def __init__(
        self, optimizer: str = "AdamW", *, when: str = "after", heads: bool = True, **settings: Any
    ) -> None:
        self.accelerator = Accelerator(cpu=True, **settings)
        self.bare = net()
        steps = optimizer_of(self.bare, optimizer)
        make = partial(VCMM, heads=self.bare.heads) if heads else VCMM
        if when == "before":
            vcmm: MomentumController = control(self.accelerator, steps, make)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(
            self.bare, steps, loader(FIVE)
        )
        if when == "after":
            vcmm = control(self.accelerator, self.optimizer, make)
        self.vcmm = vcmm
        self.heads = heads

    def train(self, epochs: int = 1, clip: float | None = None) -> Run:
        for _ in range(epochs):
            for batch in self.loader:
                with self.accelerator.accumulate(self.model):
                    fused, seen = self.model(batch)
                    loss = nn.functional.cross_entropy(fused, batch["label"])
                    self.accelerator.backward(loss)
                    self.vcmm.observe(batch["label"], **({} if self.heads else seen))
                    if clip and self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), clip)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
        return self

    def assert_same(self, expected: Net, metrics: dict[str, float]) -> None:
        assert_bitwise(self.bare, expected)
        assert self.vcmm.metrics() == metrics


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loop_under_accelerate_is_the_plain_loop_bitwise(
    optimizer: str, when: str, accumulate: int
) -> None:
    run = Run(optimizer, when=when, gradient_accumulation_steps=accumulate).train(3)
    expected, _, _, metrics = plain(loader(FIVE), optimizer, accumulate=accumulate, epochs=3)
    run.assert_same(expected, metrics[-1])
    assert metrics[-1]["discarded"] == 0


def test_clipping_and_observing_by_hand() -> None:
    def clip(model: nn.Module, _: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    run = Run(heads=False, gradient_accumulation_steps=2).train(3, clip=0.1)
    expected, _, _, metrics = plain(loader(FIVE), accumulate=2, epochs=3, clip=clip)
    run.assert_same(expected, metrics[-1])


def test_bf16_is_the_plain_loop_under_autocast() -> None:
    run = Run(mixed_precision="bf16").train(3)
    expected, metrics = _plain_bf16(3)
    run.assert_same(expected, metrics)


def _plain_bf16(epochs: int) -> tuple[Net, dict[str, float]]:
    """accelerate gives the model's outputs back in float32, and the loss is outside."""
    model = net()
    steps = optimizer_of(model)
    vcmm = VCMM(steps, heads=model.heads)
    for _ in range(epochs):
        for batch in loader(FIVE):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                fused, _ = model(batch)
            nn.functional.cross_entropy(fused.float(), batch["label"]).backward()
            vcmm.observe(batch["label"])
            steps.step()
            steps.zero_grad()
    return model, vcmm.metrics()


@pytest.mark.parametrize("by", ["optimizer", "registered"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_load_state_resumes_bitwise(tmp_path: Path, optimizer: str, by: str) -> None:
    """By the optimizer's own file; or as an object of its own, which FSDP needs."""

    def start() -> Run:
        run = Run(optimizer)
        if by == "registered":
            run.accelerator.register_for_checkpointing(run.vcmm)
        return run

    begun = start().train(1)
    begun.accelerator.save_state(str(tmp_path / "saved"))
    if by == "registered":  # as a sharded checkpoint does, which knows nothing of us
        file = tmp_path / "saved" / "optimizer.bin"
        state = torch.load(file, weights_only=True)
        del state["vcmm"]
        torch.save(state, file)
    begun.train(1)  # what follows must not matter

    AcceleratorState._reset_state(True)
    resumed = start()
    resumed.accelerator.load_state(str(tmp_path / "saved"))
    resumed.train(2)
    expected, _, vcmm, metrics = plain(loader(FIVE), optimizer, epochs=3)
    resumed.assert_same(expected, metrics[-1])
    assert resumed.vcmm.state_dict() == vcmm.state_dict()


def test_betas_reach_the_trackers() -> None:
    class Ledger(GeneralTracker):
        name, requires_logging_directory = "ledger", False

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[int | None, dict[str, float]]] = []

        @property
        def tracker(self) -> Any:
            return self.rows

        @on_main_process
        def store_init_configuration(self, values: dict[str, Any]) -> None: ...

        @on_main_process
        def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
            self.rows.append((step, values))

    ledger = Ledger()
    run = Run(log_with=ledger)
    run.accelerator.init_trackers("project")
    for epoch in range(2):
        run.train(1)
        run.accelerator.log(run.vcmm.metrics(), step=epoch)
    _, _, _, metrics = plain(loader(FIVE), epochs=2)
    assert ledger.rows == [(0, metrics[4]), (1, metrics[9])]


def test_an_optimizer_without_modalities_is_refused() -> None:
    accelerator = Accelerator(cpu=True)
    optimizer = accelerator.prepare(torch.optim.AdamW(net().parameters()))
    with pytest.raises(ValueError, match="build the optimizer over modal_groups"):
        control(accelerator, optimizer)


@pytest.mark.parametrize("kind", [DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM])
def test_who_steps_parameters_of_its_own_is_refused(kind: DistributedType) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = kind
    with pytest.raises(ValueError, match=f"{kind.value} steps parameters of its own"):
        control(accelerator, optimizer_of(net()))


def test_under_fsdp_the_controller_is_saved_as_an_object_of_its_own() -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP
    controller = control(accelerator, optimizer_of(net()))
    assert accelerator._custom_objects == [controller]


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Both(Net):
        def forward(self, audio: Tensor, video: Tensor) -> tuple[Tensor, ...]:
            _, seen = super().forward({"audio": audio, "video": video})
            return (*seen["audio"], *seen["video"])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    samples = Samples(128)
    data = torch.utils.data.TensorDataset(samples.audio, samples.video, samples.label)
    batches = torch.utils.data.DataLoader(data, batch_size=4)
    torch.manual_seed(0)
    vcmm = page("accelerate.md", {"model": Both(), "loader": batches})["vcmm"]
    assert vcmm.betas["audio"] != vcmm.betas["video"]
    assert (tmp_path / "run" / "optimizer.bin").is_file()
