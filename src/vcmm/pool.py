"""All that one optimizer step observes, pooled over its micro-batches and over ranks.

The micro-batches of a step, and the batches of all ranks in rank order, count as one batch: the
even-odd halves run on across them, and noise and drift are formed once, when the step is taken.
Each modality settles on the direct or on the Gram form (`probe.cheaper_form`), from the largest
number of rows on any rank, so that all ranks take the same collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from .probe import (
    Batch,
    Form,
    Memory,
    Probe,
    Rows,
    Sums,
    cheaper_form,
    choose_memory,
    direct_probe,
    full_precision,
    gram_probe,
    half_rows,
    half_sums,
    in_direct_form,
    numbers_of,
)


class Extent(NamedTuple):
    """How much was observed of one modality; zeros where nothing was."""

    batches: int = 0
    samples: int = 0
    rows: int = 0
    outputs: int = 0
    features: int = 0
    itemsize: int = 4


NOTHING = Extent()


@dataclass(slots=True)
class Stream:
    """One modality: what the coming step has observed so far, and the memory of the one before."""

    form: Form | None = None
    batches: list[tuple[Batch, int]] = field(default_factory=list[tuple[Batch, int]])
    sums: Sums | None = None
    extent: Extent = NOTHING
    memory: Memory | None = None

    def add(self, batch: Batch) -> None:
        """Sums are taken at once where they are cheaper; rows must wait for their peers."""
        parity = self.extent.samples % 2
        samples, rows = batch.residuals.shape[0], batch.valid.numel()
        outputs, features = batch.residuals.shape[-1], batch.features.shape[-1]
        self.extent = Extent(
            self.extent.batches + 1,
            self.extent.samples + samples,
            self.extent.rows + rows,
            outputs,
            features,
            batch.residuals.dtype.itemsize,
        )
        # More rows only make the direct form cheaper still, so it can be chosen before they come.
        if "direct" in (self.form, cheaper_form(rows, outputs, features)):
            self._sum_up(batch, parity)
        else:
            # The caller may fill the same buffer anew, or hold much more than this view of it.
            self.batches.append((batch._replace(features=batch.features.clone()), parity))

    def _sum_up(self, batch: Batch, parity: int) -> None:
        sums = half_sums(batch, parity)
        if self.sums is not None:
            sums = Sums(self.sums.gradients + sums.gradients, self.sums.weights + sums.weights)
        self.sums = sums

    def take_sums(self) -> Sums | None:
        """What was observed, in the direct form."""
        for batch, parity in self.batches:
            self._sum_up(batch, parity)
        return self.sums

    def take_rows(self) -> Rows | None:
        """What was observed, in the Gram form."""
        if not self.batches:
            return None
        pieces = [half_rows(batch, parity) for batch, parity in self.batches]
        if len(pieces) == 1:
            return pieces[0]
        residuals, features, halves = zip(*pieces, strict=True)
        return Rows(torch.cat(residuals), torch.cat(features), torch.cat(halves, dim=1))

    def clear(self) -> None:
        self.batches = []
        self.sums = None
        self.extent = NOTHING


class Pool:
    """The streams of all modalities, summed over a process group."""

    def __init__(
        self, modalities: Iterable[str], group: dist.ProcessGroup | None, device: torch.device
    ) -> None:
        self.streams = {modality: Stream() for modality in modalities}
        self._group = group
        self.device = device  # for the collectives of a rank that has observed nothing
        self.observed = False  # whether anything was, on any rank, for the step last measured
        self._fresh: dict[str, Memory] = {}
        self._ahead: dict[str, Probe] | None = None  # measured already, as `measure` will give them
        self._single = False  # whether the last step was of one batch per modality

    def __bool__(self) -> bool:
        return self._ahead is not None or any(s.extent.batches for s in self.streams.values())

    @property
    def ever_observed(self) -> bool:
        return any(s.extent.batches or s.memory is not None for s in self.streams.values())

    def open(self, modalities: Iterable[str]) -> None:
        """Have a stream for each, in this order, which must be the same on all ranks."""
        names = list(modalities)
        if list(self.streams) != names:
            self.streams = {m: self.streams.get(m) or Stream() for m in names}

    def discard(self) -> None:
        """Forget what the coming step has observed; the memory of the last one stands."""
        for stream in self.streams.values():
            stream.clear()
        self._ahead = None

    @torch.no_grad()
    def anticipate(self, *, on_device: bool) -> dict[str, Probe] | None:
        """Measure now what `measure` is going to be asked for, if it is likely to be all.

        The steps of a training are alike: where one batch made the last step, it makes this one.
        A CPU's numbers are read at once, for that waits for nothing, unless they are to stay there.
        They are returned if so, the very ones that `measure` is going to give.
        """
        streams = [stream for stream in self.streams.values() if stream.extent.batches]
        self._ahead = None
        alone = self._single and self._ranks() is None
        if alone and all(stream.form and stream.extent.batches == 1 for stream in streams):
            with full_precision(self.device):
                self._ahead = self._measure_alone()
            if not on_device and all(_on_cpu(probe) for probe in self._ahead.values()):
                self._ahead, _ = on_host(self._ahead)
                return self._ahead
        return None

    def measure(self) -> dict[str, Probe]:
        """Probes of the modalities that any rank has observed; empties the pool.

        Their numbers are tensors, or floats where `anticipate` has read them already.
        They become the memory that the next step is compared with only by `remember`.
        """
        probes = self._ahead
        if probes is None:
            self._single = all(stream.extent.batches <= 1 for stream in self.streams.values())
            ranks = self._ranks()
            with torch.no_grad(), full_precision(self.device):
                probes = self._measure_over(ranks) if ranks else self._measure_alone()
        self.discard()
        return probes

    def take(self, probes: Mapping[str, Probe]) -> bool:
        """`measure` and `remember` what `anticipate` gave; whether these are what it gave last."""
        if self._ahead is not probes:
            return False
        for modality, stream in self.streams.items():
            stream.memory = self._fresh[modality]
            stream.clear()
        self._fresh, self._ahead = {}, None
        return True

    def keep_measurable(self) -> None:
        """Have `remember` keep the last gradient, without asking the device, where this one is nan.

        Rows can be chosen so only if there are as many as before. If not, and if this gradient is
        nan, the next change is nan, which a policy must take for none at all.
        """
        for modality, new in self._fresh.items():
            old = self.streams[modality].memory
            if old is not None:
                finite = torch.isfinite(new.noise) & torch.isfinite(new.energy)
                self._fresh[modality] = choose_memory(finite, new, old)

    def remember(self, modalities: Iterable[str]) -> None:
        """Keep the gradients just measured of these modalities as the ones of the last step."""
        for modality in modalities:
            self.streams[modality].memory = self._fresh[modality]
        self._fresh = {}

    def _measure_alone(self) -> dict[str, Probe]:
        probes: dict[str, Probe] = {}
        self.observed = bool(self)
        for modality, stream in self.streams.items():
            if stream.extent.samples:
                _settle(stream, stream.extent)
                content = stream.take_sums() if stream.form == "direct" else stream.take_rows()
                probes[modality] = self._probe(modality, content)
        return probes

    def _measure_over(self, ranks: Ranks) -> dict[str, Probe]:
        extents = ranks.gather_extents([stream.extent for stream in self.streams.values()])
        contents: dict[str, Sums | Rows] = {}
        self.observed = any(extent.batches for rank in extents for extent in rank)
        for i, (modality, stream) in enumerate(self.streams.items()):
            column = [rank[i] for rank in extents]
            most = Extent(*(max(values) for values in zip(*column, strict=True)))
            if most.samples:
                _settle(stream, most)
                before = sum(extent.samples for extent in column[: ranks.rank])
                contents[modality] = _content(stream, most, before % 2, self.device)
        contents = ranks.combine(contents)
        probes = {modality: self._probe(modality, c) for modality, c in contents.items()}
        return ranks.same_everywhere(probes)

    def _probe(self, modality: str, content: Sums | Rows | None) -> Probe:
        memory = self.streams[modality].memory
        if isinstance(content, Sums):
            probe, self._fresh[modality] = direct_probe(content, memory)
        else:
            probe, self._fresh[modality] = gram_probe(cast(Rows, content), memory)
        return probe

    def _ranks(self) -> Ranks | None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        ranks = Ranks(self._group, self.device)
        return ranks if ranks.size > 1 else None

    def state_dict(self) -> dict[str, Any]:
        return {
            modality: {
                "form": stream.form or "",
                "memory": {} if stream.memory is None else _memory_state(stream.memory),
            }
            for modality, stream in self.streams.items()
        }

    def staged(self, state: Mapping[str, Any]) -> dict[str, Stream]:
        """The streams that `state_dict` described, for the present modalities."""
        streams: dict[str, Stream] = {}
        for modality in self.streams:
            saved = state[modality]
            if saved["form"] not in ("", "direct", "gram"):
                raise ValueError(f"modality {modality!r}: unknown form {saved['form']!r}")
            memory = _memory_from(saved["memory"], self.device) if saved["memory"] else None
            streams[modality] = Stream(form=saved["form"] or None, memory=memory)
        return streams


def on_host(
    probes: dict[str, Probe], more: Sequence[Tensor] = ()
) -> tuple[dict[str, Probe], list[float]]:
    """The measurable probes, and further numbers, as floats by one copy for all of them.

    Probes that have been read before are returned as they are.
    """
    waiting: list[str] = []
    numbers: list[Tensor] = []
    for name, probe in probes.items():
        if isinstance(probe.noise, Tensor):
            waiting.append(name)
            numbers += cast(list[Tensor], numbers_of(probe))
    numbers += more
    if not numbers:
        return probes, []
    device = numbers[0].device
    together = torch.stack([n if n.device == device else n.to(device) for n in numbers])
    host = cast(list[float], together.tolist())
    rest = host[4 * len(waiting) :]
    if not waiting:
        return probes, rest
    read = {name: Probe(*host[4 * i : 4 * i + 4]) for i, name in enumerate(waiting)}
    return {name: probe for name, probe in read.items() if probe.measurable}, rest


def _on_cpu(probe: Probe) -> bool:
    """Where reading a number does not wait for what was queued."""
    return cast(Tensor, probe.noise).device.type == "cpu"


@dataclass(frozen=True, slots=True)
class Ranks:
    """The collectives. Every rank calls the same ones in the same order, whatever it observed."""

    group: dist.ProcessGroup | None
    device: torch.device

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    def gather_extents(self, mine: list[Extent]) -> list[list[Extent]]:
        """[rank][modality]."""
        flat = torch.tensor(mine, dtype=torch.int64, device=self.device)
        every = self._gather(flat)
        numbers: list[list[list[int]]] = [rank.tolist() for rank in every]
        return [[Extent(*extent) for extent in rank] for rank in numbers]

    def combine(self, contents: Mapping[str, Sums | Rows]) -> dict[str, Sums | Rows]:
        """Half sums of all modalities are added up in one collective; rows are put end to end."""
        combined: dict[str, Sums | Rows] = {}
        sums = {name: c for name, c in contents.items() if isinstance(c, Sums)}
        if sums:
            flat = torch.cat([part.flatten() for c in sums.values() for part in c])
            dist.all_reduce(flat, group=self.group)
            for name, content in sums.items():
                gradients, weights, flat = flat.tensor_split(
                    (content.gradients.numel(), content.gradients.numel() + 2)
                )
                combined[name] = Sums(gradients.view_as(content.gradients), weights)
        for name, content in contents.items():
            if isinstance(content, Rows):
                outputs = content.residuals.shape[1]
                table = torch.cat([content.residuals, content.features, content.halves.T], dim=1)
                table = torch.cat(self._gather(table))
                combined[name] = Rows(table[:, :outputs], table[:, outputs:-2], table[:, -2:].T)
        return {name: combined[name] for name in contents}

    def same_everywhere(self, probes: Mapping[str, Probe]) -> dict[str, Probe]:
        """Rank 0's numbers: ranks on unlike machines may round a sum differently."""
        if not probes:
            return {}
        rows = [torch.stack(cast(list[Tensor], numbers_of(probe))) for probe in probes.values()]
        table = torch.stack(rows)
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.broadcast(table, src=first, group=self.group)
        return {name: Probe(*row.unbind()) for name, row in zip(probes, table, strict=True)}

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous(), group=self.group)
        return parts


def _settle(stream: Stream, most: Extent) -> None:
    """Choose the form, and leave the Gram form for good once batches are too large for it."""
    if stream.form != "direct":
        stream.form = cheaper_form(most.rows, most.outputs, most.features)
        if stream.form == "direct" and stream.memory is not None:
            stream.memory = in_direct_form(stream.memory)


def _content(stream: Stream, most: Extent, parity: int, device: torch.device) -> Sums | Rows:
    """This rank's share, in the shape that all ranks have agreed on, zeros where it has nothing."""
    dtype = torch.float64 if most.itemsize == 8 else torch.float32
    if stream.form == "direct":
        sums = stream.take_sums()
        if sums is None:
            shape = (2, most.outputs, most.features + 1)
            zeros = torch.zeros(shape, dtype=dtype, device=device)
            return Sums(zeros, torch.zeros(2, dtype=dtype, device=device))
        gradients, weights = sums.gradients.to(dtype), sums.weights.to(dtype)
        return Sums(gradients.flip(0), weights.flip(0)) if parity else Sums(gradients, weights)
    rows = stream.take_rows()
    if rows is None:
        nothing = torch.zeros((0, 1), dtype=dtype, device=device)
        rows = Rows(
            nothing.expand(0, most.outputs),
            nothing.expand(0, most.features),
            nothing.expand(0, 2).T,
        )
    residuals, features, halves = (part.to(dtype) for part in rows)
    missing = most.rows - residuals.shape[0]
    return Rows(
        torch.nn.functional.pad(residuals, (0, 0, 0, missing)),
        torch.nn.functional.pad(features, (0, 0, 0, missing)),
        torch.nn.functional.pad(halves.flip(0) if parity else halves, (0, missing)),
    )


def _memory_state(memory: Memory) -> dict[str, Any]:
    gradient = memory.gradient
    tensors = {"gradient": gradient} if isinstance(gradient, Tensor) else gradient._asdict()
    return {**tensors, "noise": memory.noise, "energy": memory.energy}


def _memory_from(state: Mapping[str, Any], device: torch.device) -> Memory:
    tensors = {name: tensor.to(device) for name, tensor in state.items()}
    noise, energy = tensors.pop("noise"), tensors.pop("energy")
    gradient = tensors["gradient"] if "gradient" in tensors else Rows(**tensors)
    return Memory(gradient, noise, energy)
