"""From a `Spec` and its data to everything that a training needs, all of it seeded by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler

from vcmm import MomentumController, ProbeHeads
from vcmm.probe import Loss

from . import seeds
from .controllers import CONTROLLERS
from .encoders import ENCODERS
from .encoders.encoder import Encoder
from .execution import Execution
from .fusions import FUSIONS
from .method import Criterion, Method, Watcher, groups
from .methods import METHODS
from .model import Multimodal
from .optimizers import OPTIMIZERS
from .recorder import Recorder
from .schedules import SCHEDULES
from .spec import Spec
from .train import steps_per_epoch
from .types import Batch, Data, Form, Output


@dataclass(frozen=True, slots=True)
class Training:
    """A method on a model, with its optimizer, schedule and controller."""

    method: Method
    schedule: LRScheduler
    controller: MomentumController | None
    data: Data  # of the modalities that the method trains on
    steps: int  # that the whole training takes
    recorder: Recorder | None = None  # of the encoders' own gradients


def chosen_data(spec: Spec, data: Data) -> Data:
    """The data, of the modalities that the spec and its method name."""
    for modality in spec.encoders.keys() - data.forms.keys():
        raise ValueError(
            f"encoders names modality {modality!r}; the data has {', '.join(data.modalities)}"
        )
    if spec.modalities is not None:
        data = data.select(spec.modalities)
    method = METHODS[spec.method.name]
    return data.select(method.modalities(data.modalities, spec.method.options))


def build(spec: Spec, data: Data, execution: Execution | None = None) -> Training:
    """Everything at its beginning. torch's own seed is set from the spec's."""
    execution = execution or Execution()
    torch.manual_seed(spec.seed)
    data = chosen_data(spec, data)
    model = build_model(spec, data).to(execution.device)
    for encoder in model.encoders.values():
        execute(encoder, execution, spec.batch_size)
    optimizer = OPTIMIZERS[spec.optimizer.name](groups(model), **spec.optimizer.options)
    criterion: Criterion = F.cross_entropy
    if data.multilabel:
        criterion = F.binary_cross_entropy_with_logits
    method = METHODS[spec.method.name](model, optimizer, criterion, **spec.method.options)
    per_epoch = steps_per_epoch(len(data.splits["train"]), spec.batch_size)
    make = SCHEDULES[spec.schedule.name]
    schedule = make(optimizer, spec.epochs, per_epoch, **spec.schedule.options)
    steps = spec.epochs * per_epoch
    loss: Loss = "cross_entropy"
    if data.multilabel:
        loss = partial(F.binary_cross_entropy_with_logits, reduction="none")
    recorder = build_recorder(spec, method, steps, loss)
    controller = build_controller(spec, method, steps, loss, recorder)
    return Training(method, schedule, controller, data, steps, recorder)


def build_model(spec: Spec, data: Data) -> Multimodal:
    """Encoders and fusion. Every module's weights are drawn from its own name and the seed."""
    with seeds.fixed(spec.seed, "build"):
        encoders = {m: build_encoder(spec, m, data.forms[m]) for m in data.modalities}
        widths = {modality: encoder.outputs for modality, encoder in encoders.items()}
        fusion = FUSIONS[spec.fusion.name](widths, data.classes, **spec.fusion.options)
        model = Multimodal(encoders, fusion)
        seeds.initialize(model, spec.seed)
    return model


def execute(encoder: Any, execution: Execution, batch_size: int) -> None:
    """Have an encoder compute as asked."""
    if execution.precision != "float32":
        encoder.precision = getattr(torch, execution.precision)
    if execution.channels_last:
        encoder.to(memory_format=torch.channels_last)
    if execution.compiled:
        encoder.compiled_for = batch_size


def build_encoder(spec: Spec, modality: str, form: Form) -> Encoder:
    """A modality's encoder; an error says whose it was."""
    choice = spec.encoders.get(modality, spec.encoder)
    try:
        return ENCODERS[choice.name](form, **choice.options)
    except ValueError as error:
        raise ValueError(f"modality {modality!r}: {error}") from None


def build_controller(
    spec: Spec, method: Method, steps: int, loss: Loss, recorder: Recorder | None
) -> MomentumController | None:
    """The controller, watching the method's steps."""
    make = CONTROLLERS[spec.controller.name]
    controller = make(method.optimizer, loss, steps, **spec.controller.options)
    if controller is not None:
        method.watchers.append(watcher(controller, method, loss, recorder))
    return controller


def build_recorder(spec: Spec, method: Method, steps: int, loss: Loss) -> Recorder | None:
    """The recorder that the controller's options ask for, as a part of the method's state."""
    options = spec.controller.options
    every = options.get("encoder_every", 0)
    if not every:
        return None
    recorder = Recorder(every, steps=steps, floor=options["floor"], loss=loss, device=method.device)
    method.add_module("recorder", recorder)
    return recorder


def watcher(
    controller: MomentumController, method: Method, loss: Loss, recorder: Recorder | None
) -> Watcher:
    """Shows the controller, and the recorder if there is one, what a step made of its batch.

    Where the fusion has no linear head of each modality, the probe has heads of its own, which
    learn from features alone. They belong to the method's state, and train nothing but themselves.
    """
    fusion = method.model.fusion

    def show(batch: Batch, seen: dict[str, Any]) -> None:
        controller.observe(batch.target, **seen)
        if recorder is not None:
            recorder.watch(method, batch, seen)

    def watch(output: Output, batch: Batch) -> None:
        show(batch, {m: (output.features[m], z) for m, z in output.logits.items()})

    if fusion.linear:
        return watch
    probes = ProbeHeads(fusion.widths, fusion.classes, loss=loss).to(method.device)
    method.add_module("probes", probes.requires_grad_(False))

    def watch_features(output: Output, batch: Batch) -> None:
        seen: dict[str, Any] = {m: output.features[m] for m in output.logits}
        show(batch, probes(batch.target, **seen))

    return watch_features


def momenta(training: Training) -> dict[str, float]:
    """Every modality's momentum and what it was made of, as far as they are known."""
    if training.controller is None:
        return {}
    found = training.controller.metrics()
    names = ("beta", "R", "Q", "rho", "gain", "unmeasured")
    wanted = {f"{m}/{name}" for m in training.data.modalities for name in names}
    return {k: v for k, v in found.items() if k in wanted and math.isfinite(v)}
