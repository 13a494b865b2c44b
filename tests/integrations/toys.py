"""A model of two modalities, its data, and the plain loop that libraries are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vcmm import VCMM, MomentumController, modal_groups

Batch = dict[str, Tensor]
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "Adam-fused": (torch.optim.Adam, {"lr": 0.01, "fused": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.audio = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        self.video = nn.Sequential(nn.Linear(6, 7), nn.Tanh())
        self.audio_head, self.video_head = nn.Linear(5, 3), nn.Linear(7, 3)
        self.last = nn.Linear(3, 3)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        h_a, h_v = self.audio(batch["audio"]), self.video(batch["video"])
        z_a, z_v = self.audio_head(h_a), self.video_head(h_v)
        return self.last(z_a + z_v), {"audio": (h_a, z_a), "video": (h_v, z_v)}

    @property
    def heads(self) -> dict[str, nn.Module]:
        return {"audio": self.audio_head, "video": self.video_head}


class Samples(torch.utils.data.Dataset[Batch]):
    """Samples of known classes under noise."""

    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.label = torch.randint(3, (n,), generator=generator)
        centres = torch.randn(3, 10, generator=generator)
        x = centres[self.label] + torch.randn(n, 10, generator=generator)
        self.audio, self.video = x.split([4, 6], dim=1)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> Batch:
        return {"audio": self.audio[i], "video": self.video[i], "label": self.label[i]}


def loader(n: int, size: int = 8) -> torch.utils.data.DataLoader[Batch]:
    return torch.utils.data.DataLoader(Samples(n), batch_size=size)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def optimizer_of(net: Net, name: str = "AdamW", within: nn.Module | None = None) -> Optimizer:
    """Over all parameters of the module that the net is a part of."""
    audio, video = [net.audio, net.audio_head], [net.video, net.video_head]
    kind, settings = OPTIMIZERS[name]
    return kind(modal_groups(within or net, audio=audio, video=video), **settings)


def plain(
    batches: Iterable[Batch],
    optimizer: str | Callable[[Net], Optimizer] = "AdamW",
    *,
    accumulate: int = 1,
    share_remainder: bool = False,
    epochs: int = 1,
    clip: Callable[[nn.Module, Optimizer], Any] | None = None,
    schedule: Callable[[Optimizer], Any] | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    skip: frozenset[int] = frozenset(),
    make: Callable[[Optimizer], MomentumController] = VCMM,
) -> tuple[Net, Optimizer, MomentumController, list[dict[str, float]]]:
    """What a user's own loop does; the batches named in `skip` are left out.

    Libraries divide the losses of an epoch's last, incomplete step by `accumulate`, or by how many
    there are: then they `share_remainder`.
    """
    model = net()
    steps = optimizer_of(model, optimizer) if isinstance(optimizer, str) else optimizer(model)
    vcmm = make(steps)
    scheduler = schedule(steps) if schedule else None
    metrics: list[dict[str, float]] = []
    for _ in range(epochs):
        all_of_them = list(batches)
        for i, batch in enumerate(all_of_them):
            if i in skip:
                continue
            with context():
                fused, seen = model(batch)
                loss = nn.functional.cross_entropy(fused, batch["label"])
            rest = len(all_of_them) % accumulate
            last = rest and i >= len(all_of_them) - rest
            (loss / (rest if last and share_remainder else accumulate)).backward()
            vcmm.observe(batch["label"], **seen)
            if (i + 1) % accumulate == 0 or i + 1 == len(all_of_them):
                if clip:
                    clip(model, steps)
                steps.step()
                steps.zero_grad()
                if scheduler:
                    scheduler.step()
                metrics.append(vcmm.metrics())
    assert metrics[-1]["audio/beta"] != metrics[-1]["video/beta"]
    return model, steps, vcmm, metrics


def assert_bitwise(mine: nn.Module, theirs: nn.Module) -> None:
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)
