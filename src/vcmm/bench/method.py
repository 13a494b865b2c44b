"""`Method`: joint training. Every other method overrides the sentence that its paper changes.

There are seven seams: `sampler`, `begin_epoch`, `loss`, `backward`, `modulate`, `predict`, and
`step` itself for methods that change the schedule. A method sees train and nothing else; what it
needs to hold out, it holds out of train.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from vcmm import modal_groups

from .model import Multimodal
from .types import Batch, Data, Output

Criterion = Callable[[Tensor, Tensor], Tensor]  # logits [n, C] and target -> a mean
Watcher = Callable[[Output, Batch], None]
Terms = dict[str, Tensor]  # of the loss, by name; their sum is what is differentiated
SURVEYED = 64  # rows in a batch of `survey`, so that its forwards compare with those of training


class Method(nn.Module):
    """Joint training: the loss of the fused logits, by gradient descent on everything at once.

    Args:
        model: what is trained.
        optimizer: over its parameters, each in one group; see `groups`.
        criterion: the loss of logits and target, a mean over samples.

    Example:
        method = Joint(model, optimizer)
        for batch in batches:
            report = method.step(batch)
    """

    fusion: ClassVar[str] = "mean"  # that a spec gets if it names none

    def __init__(
        self, model: Multimodal, optimizer: Optimizer, criterion: Criterion = F.cross_entropy
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer = optimizer
        self.criterion = criterion
        self.watchers: list[Watcher] = []
        self.others: dict[str, Optimizer] = {}  # of modules of the method's own, stepped by it
        self.counts: Counter[str] = Counter()  # forwards, backwards, updates, samples
        self._generators: dict[str, torch.Generator] = {}

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from one batch. What is returned is detached, and still on the device."""
        output = self(batch.inputs)
        terms = self.loss(output, batch)
        self.backward(terms)
        self.modulate(output, batch)
        self.update(output, batch)
        return self.report(terms)

    # The seams

    def sampler(self, epoch: int) -> Tensor | None:
        """The rows of train in the order in which this epoch visits them; None is shuffled."""

    def begin_epoch(self, epoch: int, data: Data) -> None:
        """Look at train before an epoch. `data` has no other split."""

    def loss(self, output: Output, batch: Batch) -> Terms:
        """The terms of the loss."""
        return {"fused": self.criterion(output.fused, batch.target)}

    def backward(self, terms: Terms) -> None:
        """Make the gradients."""
        self.counts["backwards"] += 1
        total(terms).backward()

    def modulate(self, output: Output, batch: Batch) -> None:
        """Change the gradients."""

    def predict(self, output: Output) -> Tensor:
        """Logits [n, C] of the prediction."""
        return output.fused

    # What they stand on

    def shuffled(self, rows: Tensor) -> Tensor:
        """These rows, in the order of an epoch that visits no others."""
        return rows[torch.randperm(len(rows), generator=self.generator("order"))]

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        """What the model makes of some inputs. Those of training are counted."""
        self.counts["forwards"] += self.training
        return self.model(inputs)

    @property
    def device(self) -> torch.device:
        """Where the model is, and batches go."""
        return next(self.model.parameters()).device

    def update(self, output: Output, batch: Batch) -> None:
        """Show the step to those who watch it, and take it."""
        for watch in self.watchers:
            watch(output, batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.counts["updates"] += 1

    def report(self, terms: Terms) -> dict[str, Tensor]:
        """The loss and its terms."""
        terms = {name: term.detach() for name, term in terms.items()}
        named = {f"loss/{name}": term for name, term in terms.items()} if len(terms) > 1 else {}
        return {"loss": total(terms), **named}

    @torch.no_grad()
    def survey(
        self, data: Data, rows: Tensor, *, training: bool = False
    ) -> Iterator[tuple[Output, Batch]]:
        """What the model makes of rows of train, without gradients; its forwards are counted.

        With `training` it is in training mode, as some released codes are by mistake.
        """
        self.train(training)
        for part in torch.tensor_split(rows, math.ceil(len(rows) / SURVEYED)):  # none of one row
            batch = data.batch("train", part).to(self.device)
            self.counts["forwards"] += 1
            yield self.model(batch.inputs), batch
        self.train()

    def twin(self) -> tuple[Multimodal, Optimizer]:
        """A copy of the model, and a fresh optimizer over it with the settings of the present."""
        model, optimizer = copy.deepcopy((self.model, self.optimizer))
        optimizer.state.clear()
        optimizer.zero_grad()
        return model, optimizer

    def adopt(self, module: nn.Module, modality: str | None = None) -> None:
        """Have the optimizer train a module of the method's own, as the modality's or shared.

        It joins the group that there is, so that schedules and checkpoints see no new one.
        """
        parameters = list(module.parameters())
        for group in self.optimizer.param_groups:
            if group.get("modality") == modality:
                group["params"].extend(parameters)
                if type(self.optimizer) is torch.optim.SGD and group["fused"]:
                    # Its fused kernel fails if some have a momentum and some are to begin one.
                    group["fused"], group["foreach"] = False, True
                return
        tags = {"name": modality or "shared", "modality": modality}
        self.optimizer.add_param_group({"params": parameters, **tags})

    def generator(self, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """A source of randomness for one use, seeded from torch's own seed and the name.

        Its state is part of `state_dict`.
        """
        if name not in self._generators:
            text = f"{torch.initial_seed()}/{type(self).__name__}/{name}".encode()
            seed = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
            self._generators[name] = torch.Generator(device).manual_seed(seed)
        return self._generators[name]

    def get_extra_state(self) -> dict[str, Any]:
        """All that must survive a restart and is neither a parameter nor a buffer."""
        return {
            "generators": {
                name: {"device": g.device.type, "state": g.get_state()}
                for name, g in self._generators.items()
            },
            "others": {name: other.state_dict() for name, other in self.others.items()},
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name, value in state["generators"].items():
            self.generator(name, value["device"]).set_state(value["state"].cpu())
        for name, value in state["others"].items():
            self.others[name].load_state_dict(value)

    @classmethod
    def modalities(cls, available: Iterable[str], options: Mapping[str, Any]) -> tuple[str, ...]:
        """Those of the available modalities that the method with these options trains on."""
        return tuple(available)


def total(terms: Terms) -> Tensor:
    """The sum of the terms."""
    return torch.stack(list(terms.values())).sum() if len(terms) > 1 else next(iter(terms.values()))


def groups(model: Multimodal) -> list[dict[str, Any]]:
    """The model's parameters as an optimizer takes them: a group per modality, and a shared one."""
    claims: dict[str, Any] = dict(model.claims())
    return modal_groups(model, **claims)


def confidence(logits: Tensor, target: Tensor) -> Tensor:
    """The probability of the right class, summed over samples."""
    return logits.softmax(dim=1).gather(1, target.unsqueeze(1)).sum()


# What constructors refuse


def require_at_least(method: str, least: float, /, **options: float) -> None:
    """An error if an option is below the least that it can be."""
    for name, value in options.items():
        if value < least:
            raise ValueError(f"{method}: {name} is {value}; it must be at least {least}")


def require_positive(method: str, /, **options: float | None) -> None:
    """An error if an option is 0 or below. None stands for none."""
    for name, value in options.items():
        if value is not None and value <= 0:
            raise ValueError(f"{method}: {name} is {value}; it must be positive")


def window(method: str, starts: int, ends: int) -> range:
    """The epochs from `starts` to `ends`, both of them included."""
    require_at_least(method, 0, starts=starts)
    if ends < starts:
        raise ValueError(f"{method}: ends is {ends}; it must not be before starts = {starts}")
    return range(starts, ends + 1)


def refuse_several_labels(method: str, criterion: Criterion, why: str) -> None:
    """An error where a method that needs one class per sample is given several labels."""
    if criterion is F.binary_cross_entropy_with_logits:
        raise ValueError(
            f"{method}: {why} one class per sample, and this data has several labels; use method "
            '"joint" or "multi_loss"'
        )


def require_cross_entropy(method: str, criterion: Criterion) -> None:
    """An error where a loss is made of cross entropies, and another criterion would do nothing."""
    if criterion is not F.cross_entropy:
        raise ValueError(
            f"{method}: its loss is made of cross entropies of one class per sample, and no other "
            "criterion has a place in it; leave it out, and for several labels use method "
            '"joint" or "multi_loss"'
        )
