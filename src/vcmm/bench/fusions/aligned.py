"""What a modality has alone and what all have in common, and attention across modalities.

It is what DecAlign trains. For features h_m [n, D], or sequences of them [n, t, D]:

| part                                                       | owner of its weights  |
|------------------------------------------------------------|-----------------------|
| x_m = A_m h_m (no bias, so an absent modality has x_m = 0) | the modality          |
| s_m = S_m x_m + b_m, what it has alone                     | the modality          |
| c_m = C x_m + b, what all have in common                   | nobody: it is shared  |
| r_m: s_m asks the others' s_j, a transformer; mean of time | nobody: others' too   |
| z = W [r_1; c_1; ..; r_M; c_M], c_m the mean over time     | nobody: it is shared  |

The maps A, S, C are the published convolutions of kernel 1. A transformer's query is its own
stream, its keys and values are the others' s_j as they are, side by side in time; all are scaled by
sqrt(width). Norms come after sums, the inner layer has four times the width, and there are neither
positions nor a mask. No rate of dropout inside of it is known, so there is none.

With one vector per sample a sequence has length 1, so with two modalities there is one key, all
attention is on it, and query and key maps would do nothing: then there are none. A single modality
asks itself (ours). z_m are the fused logits with all other features zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..by_modality import ByModality
from .fusion import Entangled, Features, Logits, alone


class Attention(nn.Module):
    """Some rows [n, t, d] take a mixture of others [n, u, d], by several heads.

    With `choosing` false there is only one row to take, and nothing to choose it by.
    """

    def __init__(self, width: int, heads: int, *, choosing: bool) -> None:
        super().__init__()
        self.heads = heads
        # Keys have no bias: it would add the same to all of a query's scores.
        self.keys = nn.Linear(width, width, bias=False) if choosing else None
        self.queries = nn.Linear(width, width) if choosing else None
        self.values = nn.Linear(width, width)
        self.outward = nn.Linear(width, width)

    def forward(self, asking: Tensor, asked: Tensor) -> Tensor:
        values = self.values(asked)
        if self.queries is None or self.keys is None:
            return self.outward(values)
        q, k, v = map(self._split, (self.queries(asking), self.keys(asked), values))
        shares = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return self.outward((shares @ v).transpose(1, 2).flatten(2))

    def _split(self, rows: Tensor) -> Tensor:
        """[n, t, d] as [n, heads, t, d / heads]."""
        return rows.reshape(*rows.shape[:2], self.heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """Attention, then two layers for each row, each added to what there was and normalized."""

    def __init__(self, width: int, heads: int, *, choosing: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, choosing=choosing)
        self.first = nn.LayerNorm(width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.second = nn.LayerNorm(width)

    def forward(self, rows: Tensor, others: Tensor) -> Tensor:
        rows = self.first(rows + self.attention(rows, others))
        return self.second(rows + self.inner(rows))


class Aligned(Entangled):
    """Specific and common parts of every modality, and a head over both.

    Args:
        widths: of the features.
        classes: the number of outputs.
        width: d, of both parts.
        heads: of attention.
        layers: of every modality's transformer.
        sequences: features are [n, t, D], and not [n, D]; t may differ between modalities.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int,
        *,
        width: int = 64,
        heads: int = 8,
        layers: int = 5,
        sequences: bool = False,
    ) -> None:
        super().__init__(widths, classes)
        for name, value in (("width", width), ("heads", heads), ("layers", layers)):
            if value < 1:
                raise ValueError(f"fusion: {name} is {value}; it must be at least 1")
        if width % heads:
            raise ValueError(
                f"fusion: width is {width}, and {heads} heads cannot share it equally; "
                f"use width={heads * math.ceil(width / heads)}"
            )
        names = list(self.widths)
        self.width = width
        self.sequences = sequences
        choosing = sequences or len(self._asked(names[0])) > 1
        self.inward = ByModality({m: nn.Linear(widths[m], width, bias=False) for m in names})
        self.specific = ByModality({m: nn.Linear(width, width) for m in names})
        self.common = nn.Linear(width, width)
        self.crossing = ByModality(
            {
                m: nn.ModuleList(Layer(width, heads, choosing=choosing) for _ in range(layers))
                for m in names
            }
        )
        self.head = nn.Linear(2 * width * len(names), classes)

    def owned(self, modality: str) -> Iterator[nn.Parameter]:
        yield from self.inward[modality].parameters()
        yield from self.specific[modality].parameters()

    def decoupled(self, features: Features) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """s_m and c_m [n, t, d] of every modality."""
        inner = {m: layer(self._timed(m, features[m])) for m, layer in self.inward.items()}
        specific = {m: layer(inner[m]) for m, layer in self.specific.items()}
        return specific, {m: self.common(x) for m, x in inner.items()}

    def joined(self, features: Features) -> Tensor:
        """[r_1; c_1; ..; r_M; c_M] [n, 2 M d], which the head takes."""
        specific, common = self.decoupled(features)
        scaled = {m: s * math.sqrt(self.width) for m, s in specific.items()}
        parts: list[Tensor] = []
        for modality, layers in self.crossing.items():
            rows = scaled[modality]
            others = torch.cat([scaled[m] for m in self._asked(modality)], dim=1)
            assert isinstance(layers, nn.ModuleList)
            for layer in layers:
                rows = layer(rows, others)
            parts += [rows.mean(dim=1), common[modality].mean(dim=1)]
        return torch.cat(parts, dim=1)

    def fuse(self, features: Features) -> Tensor:
        return self.head(self.joined(features))

    def forward(self, features: Features) -> tuple[Logits, Tensor]:
        """All at once: no row depends on another, so one long batch takes the place of M + 1."""
        given = [features, *(alone(features, modality) for modality in self.widths)]
        stacked = {m: torch.cat([one[m] for one in given]) for m in self.widths}
        fused, *own = self.fuse(stacked).chunk(len(given))
        return dict(zip(self.widths, own, strict=True)), fused

    def _asked(self, modality: str) -> list[str]:
        """Whose s_j a modality's transformer looks at."""
        return [m for m in self.widths if m != modality] or [modality]

    def _timed(self, modality: str, features: Tensor) -> Tensor:
        if features.ndim != 2 + self.sequences:
            raise ValueError(
                f"fusion: features of {modality!r} have {features.ndim} dimensions; Aligned takes "
                "[n, D], or with sequences=True [n, t, D]"
            )
        return features if self.sequences else features.unsqueeze(1)
