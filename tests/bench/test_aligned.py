"""The fusion that has specific and common parts, and attention across modalities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from vcmm.bench import seeds
from vcmm.bench.fusions.aligned import Aligned, Attention
from vcmm.bench.fusions.fusion import alone

WIDTHS = {"audio": 4, "text": 2, "video": 5}
TIMES = {"audio": 3, "text": 1, "video": 6}
CLASSES = 3


def made(widths: dict[str, int] = WIDTHS, **options: Any) -> Aligned:
    """In float64, with norms that are not at their beginning."""
    fusion = Aligned(widths, CLASSES, **{"width": 8, "heads": 2, "layers": 2, **options})
    seeds.initialize(fusion, 1)
    for name, parameter in fusion.named_parameters():
        if "first" in name or "second" in name:
            nn.init.normal_(parameter, 1.0, 0.3, generator=seeds.generator(3, name))
    return fusion.double()


def features(*, sequences: bool = False) -> dict[str, Tensor]:
    return {
        m: torch.randn(
            5, *([TIMES[m]] if sequences else []), width, generator=seeds.generator(2, m)
        ).double()
        for m, width in WIDTHS.items()
    }


def by_torch(attention: Any, asking: Tensor, asked: Tensor) -> Tensor:
    """torch's own attention with the same weights."""
    maps = [attention.queries, attention.keys, attention.values]
    biases = [m.bias if m.bias is not None else torch.zeros_like(maps[0].bias) for m in maps]
    found, _ = F.multi_head_attention_forward(
        asking.transpose(0, 1),
        asked.transpose(0, 1),
        asked.transpose(0, 1),
        asking.shape[2],
        attention.heads,
        torch.cat([m.weight for m in maps]),
        torch.cat(biases),
        None,
        None,
        False,
        0.0,
        attention.outward.weight,
        attention.outward.bias,
    )
    return found.transpose(0, 1)


def by_hand(fusion: Any, h: dict[str, Tensor]) -> Tensor:
    """The fused logits of sequences, from torch's attention and norms."""
    x = {m: F.linear(h[m], fusion.inward[m].weight) for m in h}
    s = {m: fusion.specific[m](x[m]) for m in h}
    parts: list[Tensor] = []
    for m in sorted(h):
        rows = s[m] * math.sqrt(8)
        asked = torch.cat([s[j] for j in sorted(h) if j != m], dim=1) * math.sqrt(8)
        for layer in fusion.crossing[m]:
            rows = layer.first(rows + by_torch(layer.attention, rows, asked))
            hidden = layer.inner[0](rows).relu()
            assert hidden.shape[-1] == 4 * 8
            rows = layer.second(rows + layer.inner[2](hidden))
        parts += [rows.mean(1), fusion.common(x[m]).mean(1)]
    return fusion.head(torch.cat(parts, dim=1))


@pytest.mark.parametrize("sequences", [False, True])
def test_logits_are_those_of_torchs_own_attention(sequences: bool) -> None:
    fusion, h = made(sequences=sequences), features(sequences=sequences)
    timed = h if sequences else {m: x[:, None] for m, x in h.items()}
    assert_close(fusion(h)[1], by_hand(fusion, timed), rtol=1e-10, atol=1e-12)


def test_vectors_are_sequences_of_length_one() -> None:
    one, other = made(), made(sequences=True)
    other.load_state_dict(one.state_dict())
    h = features()
    logits, fused = one(h)
    again, same = other({m: x[:, None] for m, x in h.items()})
    assert_close(same, fused, rtol=1e-12, atol=1e-14)
    for m, z in logits.items():
        assert_close(again[m], z, rtol=1e-12, atol=1e-14)


def test_there_are_neither_positions_nor_a_mask() -> None:
    fusion, h = made(sequences=True), features(sequences=True)
    turned = {m: x.flip(1) for m, x in h.items()}
    assert_close(fusion(turned)[1], fusion(h)[1], rtol=1e-10, atol=1e-12)


def test_all_logits_come_from_one_pass_and_are_those_of_many() -> None:
    fusion, h = made(sequences=True), features(sequences=True)
    passes: list[int] = []
    fusion.head.register_forward_hook(lambda *seen: passes.append(len(seen[1][0])))
    logits, fused = fusion(h)
    assert passes == [5 * 4]
    assert_close(fusion.fuse(h), fused, rtol=1e-10, atol=1e-12)
    for m, z in logits.items():
        assert_close(fusion.fuse(alone(h, m)), z, rtol=1e-10, atol=1e-12)


def test_one_key_needs_no_query() -> None:
    """All attention is on it, so the maps would never be trained."""
    widths = {"audio": 4, "text": 2}
    fusion = made(widths)
    assert fusion.head.in_features == 4 * 8
    layer: Any = fusion.crossing["audio"][0]
    assert layer.attention.queries is layer.attention.keys is None
    timed = made(widths, sequences=True)
    timed.load_state_dict(fusion.state_dict(), strict=False)  # has both maps besides
    h = {m: x for m, x in features().items() if m in widths}
    single = {m: x[:, None] for m, x in h.items()}
    assert_close(timed(single)[1], fusion(h)[1], rtol=1e-10, atol=1e-12)
    assert made().crossing["audio"][0].attention.queries is not None


def test_a_bias_of_the_keys_would_change_nothing() -> None:
    attention: Any = Attention(4, 2, choosing=True).double()
    rows, others = (torch.randn(2, t, 4, generator=seeds.generator(t)).double() for t in (3, 5))
    with_bias: Any = Attention(4, 2, choosing=True).double()
    with_bias.keys = nn.Linear(4, 4).double()
    with_bias.load_state_dict(attention.state_dict(), strict=False)
    assert_close(with_bias(rows, others), attention(rows, others), rtol=1e-10, atol=1e-12)


def test_what_takes_one_modality_alone_is_its_own() -> None:
    fusion = made()
    own = {*fusion.inward["text"].parameters(), *fusion.specific["text"].parameters()}
    assert set(fusion.owned("text")) == own
    assert len(own) == 3  # the first map has no bias: an absent modality is zero behind it
    h = alone(features(), "text")
    specific, common = fusion.decoupled(h)
    assert_close(specific["audio"], fusion.specific["audio"].bias.expand(5, 1, 8))
    assert_close(common["audio"], fusion.common.bias.expand(5, 1, 8))


def test_parts_have_the_time_of_their_modality() -> None:
    specific, common = made(sequences=True).decoupled(features(sequences=True))
    for parts in (specific, common):
        assert {m: part.shape for m, part in parts.items()} == {
            m: (5, time, 8) for m, time in TIMES.items()
        }


def test_bad_settings_and_features_are_refused() -> None:
    for name in ("width", "heads", "layers"):
        with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
            made(**{name: 0})
    with pytest.raises(ValueError, match="3 heads cannot share it equally; use width=12"):
        made(width=10, heads=3)
    with pytest.raises(ValueError, match=r"features of 'audio' have 3 dimensions.*sequences=True"):
        made()(features(sequences=True))
    with pytest.raises(ValueError, match="features of 'audio' have 2 dimensions"):
        made(sequences=True)(features())
