"""transformers' Trainer with modalities trains as the plain loop does, bit for bit."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
)

from vcmm import VCMM, modal_groups
from vcmm.integrations.transformers import VCMMTrainer

from .pages import DOCS
from .pages import run as page
from .toys import Batch, Net, Samples, assert_bitwise, loader, net, plain

EXAMPLE = Path(__file__).parents[2] / "examples" / "hf_trainer.py"
FIVE = 8 * 5 - 3  # samples: five batches, of which the last one is smaller


@pytest.fixture(autouse=True)
def _leave_the_generator_alone() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


class Model(nn.Module):
    """As the Trainer wants it: its collator says labels, and the loss is in the output."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, audio: Tensor, video: Tensor, labels: Tensor) -> dict[str, Tensor]:
        fused, _ = self.net({"audio": audio, "video": video})
        return {"loss": nn.functional.cross_entropy(fused, labels), "logits": fused}


class InOrder(VCMMTrainer):
    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def by_pattern(net_is: str = "net.") -> dict[str, Any]:
    return {"audio": f"{net_is}audio*", "video": f"{net_is}video*"}


def arguments(folder: Path, kind: Any = TrainingArguments, **settings: Any) -> Any:
    return kind(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "per_device_train_batch_size": 8,
            "num_train_epochs": 3,
            "learning_rate": 0.01,
            "weight_decay": 0.1,
            "max_grad_norm": 0.0,
            "lr_scheduler_type": "constant",
            "optim": "adamw_torch",
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **settings,
        }
    )


def trainer_of(
    folder: Path, kind: type[VCMMTrainer] = InOrder, model: Model | None = None, **settings: Any
) -> VCMMTrainer:
    model = model or Model()
    mine = {key: settings.pop(key) for key in list(settings) if key in ("callbacks", "optimizers")}
    return kind(
        model,
        arguments(folder, **settings),
        train_dataset=Samples(FIVE),
        eval_dataset=Samples(16),
        modalities=by_pattern(),
        make=partial(VCMM, heads=model.net.heads),
        target="labels",
        **mine,
    )


def by_decay(model: Net, **settings: Any) -> Optimizer:
    """What the Trainer makes: biases do not decay."""
    groups = modal_groups(
        model, **by_pattern(""), decay_filter=lambda name, _: not name.endswith("bias")
    )
    return torch.optim.AdamW(groups, **{"lr": 0.01, "weight_decay": 0.1, **settings})


def assert_same(trainer: VCMMTrainer, expected: Net, metrics: dict[str, float]) -> None:
    assert_bitwise(trainer.model.net, expected)
    assert trainer.vcmm is not None
    assert trainer.vcmm.metrics() == metrics


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("fused", [False, True])
def test_training_is_the_plain_loop_bitwise(tmp_path: Path, fused: bool, accumulate: int) -> None:
    trainer = trainer_of(
        tmp_path,
        optim="adamw_torch_fused" if fused else "adamw_torch",
        gradient_accumulation_steps=accumulate,
    )
    trainer.train()
    expected, _, _, metrics = plain(
        loader(FIVE),
        partial(by_decay, fused=fused),
        accumulate=accumulate,
        share_remainder=True,
        epochs=3,
    )
    assert_same(trainer, expected, metrics[-1])
    assert trainer.state.global_step == len(metrics)


def test_clipping_schedules_and_evaluations_are_the_plain_loops(tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path,
        max_grad_norm=0.1,
        lr_scheduler_type="cosine",
        warmup_steps=4,
        eval_strategy="steps",
        eval_steps=2,
    )
    trainer.train()

    def clip(model: nn.Module, _: Optimizer) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    schedule = partial(get_scheduler, "cosine", num_warmup_steps=4, num_training_steps=15)
    expected, steps, _, metrics = plain(
        loader(FIVE), by_decay, epochs=3, clip=clip, schedule=lambda o: schedule(optimizer=o)
    )
    assert_same(trainer, expected, metrics[-1])
    assert {g["lr"] for g in trainer.optimizer.param_groups} == {
        g["lr"] for g in steps.param_groups
    }


def test_bf16_is_the_plain_loop_under_autocast(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, bf16=True)
    trainer.train()
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    expected, _, _, metrics = plain(loader(FIVE), by_decay, epochs=3, context=autocast)
    assert_same(trainer, expected, metrics[-1])


def test_observing_in_a_loss_of_ones_own(tmp_path: Path) -> None:
    """Which evaluations call as well: what they show must neither count nor pile up."""

    class Own(InOrder):
        def compute_loss(
            self, model: nn.Module, inputs: Batch, return_outputs: bool = False, **_: Any
        ) -> Any:
            fused, seen = model.net(inputs)
            self.observe(inputs["labels"], **seen)
            loss = nn.functional.cross_entropy(fused, inputs["labels"])
            return (loss, {"logits": fused}) if return_outputs else loss

    own = Own(
        Model(),
        arguments(tmp_path, eval_strategy="steps", eval_steps=2),
        train_dataset=Samples(FIVE),
        eval_dataset=Samples(16),
        modalities=by_pattern(),
    )
    own.train()
    expected, _, _, metrics = plain(loader(FIVE), by_decay, epochs=3)
    assert_same(own, expected, metrics[-1])
    own.evaluate()
    assert own._waiting._waiting == []


def test_it_mixes_with_other_trainers(tmp_path: Path) -> None:
    class Mine(InOrder, Seq2SeqTrainer):
        pass

    model = Model()
    trainer = Mine(
        model,
        arguments(tmp_path, Seq2SeqTrainingArguments),
        train_dataset=Samples(FIVE),
        modalities=by_pattern(),
        make=partial(VCMM, heads=model.net.heads),
        target="labels",
    )
    trainer.train()
    expected, _, _, metrics = plain(loader(FIVE), by_decay, epochs=3)
    assert_same(trainer, expected, metrics[-1])


# Groups


def test_groups_are_modality_times_decay(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    groups = trainer.create_optimizer().param_groups
    assert [(g["name"], g["modality"], g["weight_decay"]) for g in groups] == [
        ("audio/0", "audio", 0.1),
        ("video/0", "video", 0.1),
        ("shared/0", None, 0.1),
        ("audio/1", "audio", 0.0),
        ("video/1", "video", 0.0),
        ("shared/1", None, 0.0),
    ]
    names = {p: name for name, p in trainer.model.named_parameters()}
    for group in groups:
        for parameter in group["params"]:
            assert names[parameter].endswith("bias") == (group["weight_decay"] == 0)
            assert (group["modality"] or "last") in names[parameter]
    assert sorted(names[p] for g in groups for p in g["params"]) == sorted(names.values())


def test_frozen_parameters_stay_outside(tmp_path: Path) -> None:
    model = Model()
    model.net.audio.requires_grad_(False)
    groups = trainer_of(tmp_path, model=model).create_optimizer().param_groups
    found = {p for g in groups for p in g["params"]}
    assert found == {p for p in model.parameters() if p.requires_grad}


def test_an_optimizer_that_is_passed_in_keeps_its_groups(tmp_path: Path) -> None:
    model = Model()
    optimizer = by_decay(model.net)
    before = [list(g["params"]) for g in optimizer.param_groups]
    trainer = trainer_of(tmp_path, model=model, optimizers=(optimizer, None))
    trainer.train()
    assert [g["params"] for g in optimizer.param_groups] == before
    expected, _, _, metrics = plain(loader(FIVE), by_decay, epochs=3)
    assert_same(trainer, expected, metrics[-1])


def test_training_again_goes_on(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, num_train_epochs=1)
    for _ in range(3):
        trainer.train()
    expected, _, _, metrics = plain(loader(FIVE), by_decay, epochs=3)
    assert_same(trainer, expected, metrics[-1])


def test_a_model_that_is_made_anew_has_a_new_controller(tmp_path: Path) -> None:
    """As in a hyperparameter search, by `model_init`."""
    trainer = InOrder(
        model_init=Model,
        args=arguments(tmp_path),
        train_dataset=Samples(FIVE),
        modalities=by_pattern(),
        make=lambda optimizer: VCMM(optimizer, heads=trainer.model.net.heads),
        target="labels",
    )
    expected, _, _, metrics = plain(loader(FIVE), by_decay, epochs=3)
    controllers = []
    for _ in range(2):
        trainer.train()
        assert_same(trainer, expected, metrics[-1])
        controllers.append(trainer.vcmm)
    assert controllers[0] is not controllers[1]
    assert not any(head._forward_hooks for head in controllers[0]._capture.heads.values())


# Checkpoints


@pytest.mark.parametrize("step", [4, 6])
def test_a_resumed_run_is_the_uninterrupted_one_bitwise(tmp_path: Path, step: int) -> None:
    """The example's ViT and BERT, with dropout and shuffling, within an epoch and at its end."""
    trainer_in = runpy.run_path(str(EXAMPLE))["trainer_in"]
    settings: dict[str, Any] = {
        "use_cpu": True,
        "max_steps": 9,
        "per_device_train_batch_size": 86,  # of 1024: six steps are an epoch
        "gradient_accumulation_steps": 2,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "report_to": "none",
        "save_steps": step,
    }
    whole = trainer_in(str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = trainer_in(str(tmp_path / "resumed"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert whole.state.global_step == resumed.state.global_step == 9
    assert_bitwise(resumed.model, whole.model)
    assert resumed.vcmm.state_dict() == whole.vcmm.state_dict()
    assert resumed.vcmm.metrics() == whole.vcmm.metrics()
    assert resumed.vcmm.betas["image"] != resumed.vcmm.betas["text"]
    assert resumed.vcmm.metrics()["image/unmeasured"] == 0


# Logging


def test_every_report_of_the_loss_has_the_betas(tmp_path: Path) -> None:
    class Reporter(TrainerCallback):
        def __init__(self) -> None:
            self.rows: list[dict[str, float]] = []

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            self.rows.append(dict(logs))

    reporter = Reporter()
    settings = {"logging_steps": 1, "eval_strategy": "epoch"}
    trainer = trainer_of(tmp_path, callbacks=[reporter], **settings)
    trainer.train()
    _, _, _, metrics = plain(loader(FIVE), by_decay, epochs=3)
    for rows in (reporter.rows, trainer.state.log_history):
        reports = [row for row in rows if "loss" in row]
        assert [{key: row[key] for key in metrics[0]} for row in reports] == metrics
        assert all("audio/beta" not in row for row in rows if "loss" not in row)
    assert len([row for row in reporter.rows if "eval_loss" in row]) == 3


def test_tensorboard_shows_the_betas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = trainer_of(tmp_path, logging_steps=1, report_to="tensorboard", num_train_epochs=1)
    trainer.train()
    (file,) = (tmp_path / "board").rglob("events.out.tfevents.*")
    board = EventAccumulator(str(file)).Reload()
    _, _, _, metrics = plain(loader(FIVE), by_decay)
    for key in ("audio/beta", "video/beta", "audio/rho"):
        shown = [event.value for event in board.Scalars(f"train/{key}")]
        assert shown == pytest.approx([row[key] for row in metrics], rel=1e-6, nan_ok=True)


# Errors


def test_training_that_observes_nothing_is_refused(tmp_path: Path) -> None:
    trainer = InOrder(
        Model(), arguments(tmp_path), train_dataset=Samples(FIVE), modalities=by_pattern()
    )
    with pytest.raises(ValueError, match=r"call self\.observe\(target"):
        trainer.train()


def test_groups_without_modalities_are_refused(tmp_path: Path) -> None:
    trainer = InOrder(Model(), arguments(tmp_path), train_dataset=Samples(FIVE))
    with pytest.raises(ValueError, match="no parameter group carries a modality"):
        trainer.train()


def test_several_devices_in_one_process_are_refused(tmp_path: Path) -> None:
    settings = arguments(tmp_path)
    settings._n_gpu = 2
    with pytest.raises(ValueError, match="start one process per GPU, with torchrun"):
        InOrder(Model(), settings, train_dataset=Samples(FIVE), modalities=by_pattern())


# The page


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quiet = partial(TrainingArguments, use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True)
    monkeypatch.setattr("transformers.TrainingArguments", quiet)
    example = runpy.run_path(str(EXAMPLE))
    torch.manual_seed(0)
    space = {"model": example["ImageText"](), "dataset": example["samples"](64, seed=1)}
    trainer = page("transformers.md", space)["trainer"]
    assert trainer.state.global_step == 8
    assert min(trainer.vcmm.betas.values()) < 0.9 < max(trainer.vcmm.betas.values())
    assert "image/0 image 0.1" in capsys.readouterr().out


def test_the_loss_of_the_page_observes(tmp_path: Path) -> None:
    class Towers(nn.Module):
        """Whose output has what the page says."""

        def __init__(self) -> None:
            super().__init__()
            inner = net()
            self.image, self.image_head = inner.audio, inner.audio_head
            self.text, self.text_head = inner.video, inner.video_head

        def forward(
            self, pixel_values: Tensor, input_ids: Tensor, labels: Tensor
        ) -> dict[str, Tensor]:
            image, text = self.image(pixel_values), self.text(input_ids)
            z_i, z_t = self.image_head(image), self.text_head(text)
            loss = nn.functional.cross_entropy(z_i + z_t, labels)
            logits = {"image_logits": z_i, "text_logits": z_t}
            return {"loss": loss, "image": image, "text": text, **logits}

    source = (DOCS / "transformers.md").read_text("utf-8")
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", source, re.S) if "class Mine" in b]
    space: dict[str, Any] = {"VCMMTrainer": InOrder}
    exec(block, space)
    samples = Samples(FIVE)
    dataset = [
        {"pixel_values": a, "input_ids": v, "labels": y}
        for a, v, y in zip(samples.audio, samples.video, samples.label, strict=True)
    ]
    modalities = {"image": "image*", "text": "text*"}
    trainer = space["Mine"](
        Towers(), arguments(tmp_path), train_dataset=dataset, modalities=modalities
    )
    trainer.train()
    metrics = trainer.vcmm.metrics()
    assert metrics["image/beta"] != metrics["text/beta"]
    assert metrics["image/unmeasured"] == metrics["discarded"] == 0
