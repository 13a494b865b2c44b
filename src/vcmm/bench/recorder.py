"""Noise and drift of the encoders' own gradients, measured beside a training and without a trace.

VCMM measures at the classifier, where it costs next to nothing, and takes it for what happens in
the encoder. Whether it may can be looked at: every `every` steps a recorder computes both, at the
same step and by the same formulas.

| logged                       | noise and drift of the gradient of                             |
|------------------------------|----------------------------------------------------------------|
| `m/encoder_R`, `m/encoder_Q` | the loss of the fused logits, by all parameters of m's encoder |
| `m/probe_R`, `m/probe_Q`     | m's own loss, by its linear head, as the controller probes it  |

R = w_A w_B / (w_A + w_B)^2 mean((g_A - g_B)^2), with A the even positions of the batch and B the
odd ones; Q = max(mean((g_t - g_{t-1})^2) - R_t - R_{t-1}, floor * mean(g_t^2)). Nothing is
smoothed. A drift needs two steps in a row, so the step before is looked at as well.

Both halves come out of one forward of the whole batch in training mode, so that batch norm has the
statistics that it has in training, and (w_A g_A + w_B g_B) / (w_A + w_B) is the gradient of joint
training. Dropout has other masks than in the step itself. No buffer, no `.grad` and none of torch's
randomness is touched. The passes are counted apart; the seconds of a run contain them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from vcmm.probe import Loss, Memory, Sums, batch_of, direct_probe, half_sums

from .encoders.encoder import Encoder
from .method import Criterion, Method
from .model import Multimodal
from .types import Batch, Output

Observed = Mapping[str, tuple[Tensor, Tensor]]  # what goes into a head, and what comes out


@contextmanager
def as_written(model: Multimodal) -> Generator[None]:
    """Without compiled code, of which a graph can be walked only once."""
    encoders = [one for one in model.encoders.values() if isinstance(one, Encoder)]
    had = [encoder.compiled_for for encoder in encoders]
    for encoder in encoders:
        encoder.compiled_for = 0
    try:
        yield
    finally:
        for encoder, samples in zip(encoders, had, strict=True):
            encoder.compiled_for = samples


@torch.enable_grad()
def fused_logits(model: Multimodal, inputs: Mapping[str, Tensor]) -> Tensor:
    """The model's logits in training mode, from which gradients can be taken, and nothing else.

    Buffers are lent as copies. To put them back would not do: a graph that is still to be walked,
    as methods have that take several steps of one forward, would see that they were touched.
    """
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    lent = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng(devices=sorted(devices)), as_written(model):
        output: Output = torch.func.functional_call(model, lent, (inputs,))
    return output.fused


@torch.enable_grad()
def encoder_sums(
    model: Multimodal, criterion: Criterion, batch: Batch, modalities: Iterable[str]
) -> dict[str, Sums]:
    """The gradients of these modalities' encoders on both halves, times the sizes of the halves.

    A modality whose encoder is frozen is left out.
    """
    owned = {m: [p for p in model.encoders[m].parameters() if p.requires_grad] for m in modalities}
    owned = {m: parameters for m, parameters in owned.items() if parameters}
    everything = [p for parameters in owned.values() for p in parameters]
    if not everything:
        return {}
    rows: list[list[Tensor]] = []
    fused = fused_logits(model, batch.inputs)
    for half in (0, 1):
        target = batch.target[half::2]
        loss = criterion(fused[half::2], target) * len(target)
        found = torch.autograd.grad(
            loss, everything, retain_graph=half == 0, materialize_grads=True
        )
        parts = torch.split(torch.cat([g.flatten() for g in found]), sizes(owned))
        rows.append(list(parts))
    n = len(batch.target)
    weights = rows[0][0].new_tensor([(n + 1) // 2, n // 2])
    pairs = zip(owned, *rows, strict=True)
    return {m: Sums(torch.stack([a, b]).unsqueeze(1), weights) for m, a, b in pairs}


def sizes(owned: Mapping[str, list[nn.Parameter]]) -> list[int]:
    """Numbers that each modality's encoder consists of."""
    return [sum(p.numel() for p in parameters) for parameters in owned.values()]


class Recorder(nn.Module):
    """Watches the steps of a method. A module, so that what it remembers is part of the method's.

    Args:
        every: steps between two measurements.
        steps: of the whole training; what is tried out after its end is none of it.
        floor: least drift, as a share of the gradient's energy; VCMM's own.
        loss: as for the controller.
        device: where the training is.
    """

    def __init__(
        self, every: int, *, steps: int, floor: float, loss: Loss, device: torch.device
    ) -> None:
        super().__init__()
        self.every = every
        self.steps = steps
        self.floor = floor
        self.loss: Loss = loss
        self.device = device
        self._seen: dict[str, int] = {}  # steps of each modality
        self._memory: dict[str, dict[str, Memory]] = {}  # of the step before: modality, place
        self._found: dict[str, Tensor] = {}

    def watch(self, method: Method, batch: Batch, observed: Observed) -> None:
        """A step that is about to be taken."""
        for modality in observed:
            self._seen[modality] = self._seen.get(modality, 0) + 1
        due = [m for m in observed if self._due(self._seen[m])]
        if not due or len(batch.target) < 2:
            return
        encoders = encoder_sums(method.model, method.criterion, batch, due)
        method.counts["recorded_forwards"] += 1
        method.counts["recorded_backwards"] += 2
        for modality, sums in encoders.items():
            rows = batch_of(modality, *observed[modality], batch.target, self.loss)
            self._measure(modality, "encoder", sums)
            self._measure(modality, "probe", half_sums(rows, 0))

    def _due(self, step: int) -> bool:
        """Whether this step is measured, or the next one is."""
        return step <= self.steps and (step % self.every == 0 or (step + 1) % self.every == 0)

    @torch.no_grad()
    def _measure(self, modality: str, place: str, sums: Sums) -> None:
        memory = self._memory.setdefault(modality, {})
        probe, now = direct_probe(sums, memory.pop(place, None))
        measured = self._seen[modality] % self.every == 0
        if not measured or self.every == 1:
            memory[place] = now
        if measured:
            noise, energy, drift = (
                cast(Tensor, one) for one in (probe.noise, probe.energy, probe.drift)
            )
            name = f"{modality}/{place}"
            self._found[f"{name}_R"] = noise
            # After a nan, which stands for no step before, `maximum` is nan, and is not written.
            self._found[f"{name}_Q"] = torch.maximum(drift, self.floor * energy)

    @property
    def measured(self) -> bool:
        """Whether there is something to take."""
        return bool(self._found)

    def taken(self) -> dict[str, float]:
        """What was measured since the last call, by one copy from the device."""
        found, self._found = self._found, {}
        if not found:
            return {}
        host = cast(list[float], torch.stack(list(found.values())).tolist())
        return dict(zip(found, host, strict=True))

    def get_extra_state(self) -> dict[str, Any]:
        memory = {
            modality: {place: one._asdict() for place, one in places.items()}
            for modality, places in self._memory.items()
        }
        return {"seen": dict(self._seen), "memory": memory}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._seen = dict(state["seen"])
        self._memory = {
            modality: {
                place: Memory(**{name: part.to(self.device) for name, part in one.items()})
                for place, one in places.items()
            }
            for modality, places in state["memory"].items()
        }
