"""Lightning's Trainer with the callback trains as the plain loop does, bit for bit."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn

from vcmm import VCMM, Fixed, MomentumController
from vcmm.integrations.lightning import VCMMCallback, observe

from .pages import run as page
from .toys import OPTIMIZERS, Batch, Net, assert_bitwise, loader, net, optimizer_of, plain

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*training_step. returned .None"),
]
FIVE = 8 * 5 - 3  # samples: five batches, of which the last one is smaller


class Lit(LightningModule):
    def __init__(
        self,
        optimizer: str = "AdamW",
        *,
        observing: bool = False,
        skip: frozenset[int] = frozenset(),
        schedule: Any = None,
    ) -> None:
        super().__init__()
        self.net = net()
        self.name = optimizer
        self.observing = observing
        self.skip = skip
        self.schedule = schedule

    def training_step(self, batch: Batch, index: int) -> Tensor | None:
        fused, seen = self.net(batch)
        if self.observing:
            observe(self, batch["label"], **seen)
        if index in self.skip:
            return None
        return nn.functional.cross_entropy(fused, batch["label"])

    def configure_optimizers(self) -> Any:
        optimizer = optimizer_of(self.net, self.name, within=self)
        if self.schedule is None:
            return optimizer
        scheduler = {"scheduler": self.schedule(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def with_heads(net: Net) -> VCMMCallback:
    return VCMMCallback(partial(VCMM, heads=net.heads), target="label")


def trainer_of(folder: Path, *callbacks: Any, **settings: Any) -> Trainer:
    return Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "limit_val_batches": 0,
            "default_root_dir": folder,
            "callbacks": list(callbacks),
            **settings,
        }
    )


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_fit_is_the_plain_loop_bitwise(
    tmp_path: Path, optimizer: str, heads: bool, accumulate: int
) -> None:
    model = Lit(optimizer, observing=not heads)
    callback = with_heads(model.net) if heads else VCMMCallback()
    trainer = trainer_of(tmp_path, callback, max_epochs=3, accumulate_grad_batches=accumulate)
    trainer.fit(model, loader(FIVE))
    expected, _, vcmm, metrics = plain(loader(FIVE), optimizer, accumulate=accumulate, epochs=3)
    assert_bitwise(model.net, expected)
    assert callback.controller.metrics() == vcmm.metrics()
    assert trainer.global_step == len(metrics) == 3 * math.ceil(5 / accumulate)
    assert metrics[-1]["discarded"] == 0


def test_clipping_schedules_and_validation_are_the_plain_loops(tmp_path: Path) -> None:
    """A schedule that cycles betas moves the base; validation goes through the heads too."""

    class Validated(Lit):
        def validation_step(self, batch: Batch, index: int) -> None:
            fused, _ = self.net(batch)
            self.log("valid", nn.functional.cross_entropy(fused, batch["label"]))

    schedule = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.02, total_steps=15)
    model = Validated(schedule=schedule)
    callback = with_heads(model.net)
    settings = {"limit_val_batches": 1.0, "val_check_interval": 2, "num_sanity_val_steps": 1}
    trainer = trainer_of(tmp_path, callback, max_epochs=3, gradient_clip_val=0.1, **settings)
    trainer.fit(model, loader(FIVE), loader(16))

    def clip(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        in_order = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(in_order, 0.1)

    expected, steps, _, metrics = plain(loader(FIVE), epochs=3, clip=clip, schedule=schedule)
    assert_bitwise(model.net, expected)
    assert callback.controller.metrics() == metrics[-1]
    mine = callback.controller.optimizer.param_groups
    assert [(g["lr"], g["betas"]) for g in mine] == [
        (g["lr"], g["betas"]) for g in steps.param_groups
    ]


def test_bf16_is_the_plain_loop_under_autocast(tmp_path: Path) -> None:
    model = Lit()
    callback = with_heads(model.net)
    trainer_of(tmp_path, callback, max_epochs=3, precision="bf16-mixed").fit(model, loader(FIVE))
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    expected, _, _, metrics = plain(loader(FIVE), epochs=3, context=autocast)
    assert_bitwise(model.net, expected)
    assert callback.controller.metrics() == metrics[-1]


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("optimizer", ["AdamW", "Adam-fused"])
def test_what_a_scaler_skips_is_as_if_it_had_never_been(
    tmp_path: Path, optimizer: str, heads: bool
) -> None:
    """The scale is a power of two, and float64 does not lose by it."""

    class Overflowing(Lit):
        def on_after_backward(self) -> None:
            if self.trainer.fit_loop.batch_idx in {0, 2}:
                gradient = self.net.video[0].weight.grad
                assert gradient is not None
                gradient[0, 0] = torch.inf

    class NoAutocast(MixedPrecision):
        """The scaler is what this is about; half precision has its own rounding."""

        def forward_context(self) -> Any:
            return torch.autocast("cpu", enabled=False)

    model = Overflowing(optimizer, observing=not heads)
    callback = with_heads(model.net) if heads else VCMMCallback()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    plugin = NoAutocast("16-mixed", "cpu", scaler)
    trainer_of(tmp_path, callback, max_epochs=2, plugins=[plugin]).fit(model, loader(FIVE))
    expected, _, vcmm, _ = plain(loader(FIVE), optimizer, epochs=2, skip=frozenset({0, 2}))
    assert_bitwise(model.net, expected)
    metrics = callback.controller.metrics()
    assert metrics.pop("discarded") == 4
    assert metrics == {k: v for k, v in vcmm.metrics().items() if k != "discarded"}


def test_a_training_step_that_returns_none_leaves_no_observation(tmp_path: Path) -> None:
    for observing in (True, False):
        model = Lit(observing=observing, skip=frozenset({0, 3}))
        callback = VCMMCallback() if observing else with_heads(model.net)
        callback.waiting._any = True  # the first batch shows nothing here, and that is meant
        trainer_of(tmp_path, callback, max_epochs=3).fit(model, loader(FIVE))
        expected, _, _, metrics = plain(loader(FIVE), epochs=3, skip=frozenset({0, 3}))
        assert_bitwise(model.net, expected)
        assert callback.controller.metrics() == metrics[-1]


def test_manual_optimization_is_the_plain_loop(tmp_path: Path) -> None:
    class Manual(Lit):
        def __init__(self) -> None:
            super().__init__(observing=True)
            self.automatic_optimization = False

        def training_step(self, batch: Batch, index: int) -> None:
            loss = super().training_step(batch, index)
            self.manual_backward(loss)
            optimizer: Any = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()

    model, callback = Manual(), VCMMCallback()
    trainer_of(tmp_path, callback, max_epochs=2).fit(model, loader(FIVE))
    expected, _, _, metrics = plain(loader(FIVE), epochs=2)
    assert_bitwise(model.net, expected)
    assert callback.controller.metrics() == metrics[-1]


class Forgetful(SingleDeviceStrategy):
    """Keeps of an optimizer's state what torch defines, as a sharded checkpoint does."""

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        state = super().optimizer_state(optimizer)
        return {key: state[key] for key in ("state", "param_groups")}


class Resumable:
    """Batches that go on where they were left, which Lightning needs to resume within an epoch."""

    def __init__(self) -> None:
        self.batches = list(loader(FIVE))
        self.given = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        self.given %= len(self.batches)
        while self.given < len(self.batches):
            self.given += 1
            yield self.batches[self.given - 1]

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("step", [5, 7])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_resumed_fit_is_the_uninterrupted_one_bitwise(
    tmp_path: Path, optimizer: str, step: int, forgetful: bool
) -> None:
    """At the end of an epoch and within one, in new objects and from the file alone."""

    def strategy() -> Any:
        return {"strategy": Forgetful(torch.device("cpu"))} if forgetful else {}

    def fit(ckpt_path: Path | None = None, **length: int) -> tuple[Lit, Trainer, VCMMCallback]:
        saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=step, save_top_k=-1)
        model = Lit(optimizer)
        callback = with_heads(model.net)
        settings = {"enable_checkpointing": True, **strategy(), **length}
        trainer = trainer_of(tmp_path, callback, saving, **settings)
        trainer.fit(model, Resumable(), ckpt_path=ckpt_path, weights_only=True)
        return model, trainer, callback

    fit(max_epochs=-1, max_steps=step)
    second, trainer, callback = fit(tmp_path / f"step={step}.ckpt", max_epochs=3)
    expected, _, vcmm, metrics = plain(loader(FIVE), optimizer, epochs=3)
    assert trainer.global_step == len(metrics) == 15
    assert_bitwise(second.net, expected)
    assert callback.controller.metrics() == metrics[-1]
    assert callback.controller.state_dict() == vcmm.state_dict()


@pytest.mark.parametrize(("accumulate", "every"), [(1, 1), (2, 1), (1, 3)])
def test_the_logger_gets_the_betas_beside_the_losses(
    tmp_path: Path, accumulate: int, every: int
) -> None:
    class Logging(Lit):
        def training_step(self, batch: Batch, index: int) -> Tensor | None:
            loss = super().training_step(batch, index)
            self.log("loss", loss)
            return loss

    model = Logging()
    trainer = trainer_of(
        tmp_path,
        with_heads(model.net),
        max_epochs=2,
        accumulate_grad_batches=accumulate,
        logger=CSVLogger(tmp_path, name="log", version=0),
        log_every_n_steps=every,
    )
    trainer.fit(model, loader(FIVE))
    _, _, _, metrics = plain(loader(FIVE), epochs=2, accumulate=accumulate)
    with (tmp_path / "log" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    mine = [row for row in rows if row["audio/beta"]]
    assert [row["step"] for row in mine] == [row["step"] for row in rows if row["loss"]]
    assert len(mine) == len(metrics[every - 1 :: every])
    for row, expected in zip(mine, metrics[every - 1 :: every], strict=True):
        assert {key: float(row[key]) for key in expected} == expected


def test_logging_can_be_left_to_the_user(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="log", version=0)
    callback = VCMMCallback(log=False)
    trainer_of(tmp_path, callback, logger=logger, log_every_n_steps=1).fit(
        Lit(observing=True), loader(FIVE)
    )
    assert logger.experiment.metrics == []
    assert not (tmp_path / "log" / "version_0" / "metrics.csv").exists()


def test_a_second_fit_starts_anew_and_leaves_no_hook_behind(tmp_path: Path) -> None:
    model = Lit()
    callback = with_heads(model.net)
    for _ in range(2):
        model.net.load_state_dict(net().state_dict())
        trainer_of(tmp_path, callback).fit(model, loader(FIVE))
        expected, _, _, metrics = plain(loader(FIVE))
        assert_bitwise(model.net, expected)
        assert callback.controller.metrics() == metrics[-1]
    assert all(len(head._forward_hooks) == 1 for head in model.net.heads.values())


def test_a_second_fit_of_the_same_optimizer_goes_on(tmp_path: Path) -> None:
    class Keeping(Lit):
        def __init__(self) -> None:
            super().__init__()
            self.kept = [optimizer_of(self.net, within=self)]

        def configure_optimizers(self) -> Any:
            return self.kept

    model = Keeping()
    callback = with_heads(model.net)
    for _ in range(2):
        trainer_of(tmp_path, callback).fit(model, loader(FIVE))
    expected, _, _, metrics = plain(loader(FIVE), epochs=2)
    assert_bitwise(model.net, expected)
    assert callback.controller.metrics() == metrics[-1]


def test_any_policy_will_do(tmp_path: Path) -> None:
    model = Lit()
    make = partial(MomentumController, policy=Fixed(audio=0.95, video=0.8))
    trainer_of(tmp_path, VCMMCallback(make), max_epochs=2).fit(model, loader(FIVE))
    expected, *_ = plain(loader(FIVE), epochs=2, make=make)
    assert_bitwise(model.net, expected)


# Errors


def test_an_optimizer_without_modalities_is_refused(tmp_path: Path) -> None:
    class Untagged(Lit):
        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    with pytest.raises(ValueError, match=r"0 optimizers carry .* modal_groups\(self"):
        trainer_of(tmp_path, VCMMCallback()).fit(Untagged(), loader(FIVE))


def test_a_fit_that_observes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing of the first batch; call observe\(self"):
        trainer_of(tmp_path, VCMMCallback()).fit(Lit(), loader(FIVE))


def test_observing_without_the_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Trainer\(callbacks=\[VCMMCallback\(\)\]\)"):
        trainer_of(tmp_path).fit(Lit(observing=True), loader(FIVE))


def test_a_controller_is_there_from_the_fit_on() -> None:
    with pytest.raises(ValueError, match=r"after trainer\.fit"):
        _ = VCMMCallback().controller


# The page


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "logger": CSVLogger(tmp_path),
        "log_every_n_steps": 4,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    monkeypatch.setattr(
        "lightning.pytorch.Trainer", partial(Trainer, accelerator="cpu", **settings)
    )
    torch.manual_seed(0)
    samples = [
        {"audio": torch.randn(6), "video": torch.randn(9), "label": torch.tensor(n % 10)}
        for n in range(32)
    ]
    batches = torch.utils.data.DataLoader(samples, batch_size=8)
    space = page("lightning.md", {"loader": batches})
    assert (tmp_path / "run.ckpt").is_file()
    betas = space["callback"].controller.betas
    assert min(betas.values()) < 0.9 < max(betas.values())
    assert space["trainer"].global_step == 20
    assert "{'audio': 0." in capsys.readouterr().out
