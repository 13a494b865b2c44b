from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vcmm.bench import seeds
from vcmm.bench.fusions import FUSIONS
from vcmm.bench.fusions.fusion import Entangled

CLASSES = 3
WIDTHS = {"audio": 4, "text": 2, "video": 5}
NAMES = sorted(FUSIONS)


def made(name: str, widths: Mapping[str, int] = WIDTHS, **options: Any) -> Any:
    """A fusion in float64, whose weights depend on their names alone."""
    fusion = FUSIONS[name](widths, CLASSES, **options)
    seeds.initialize(fusion, 1)
    return fusion.double()


def features(widths: Mapping[str, int] = WIDTHS, samples: int = 6) -> dict[str, Tensor]:
    return {
        m: torch.randn(samples, widths[m], generator=seeds.generator(2, m)).double()
        for m in sorted(widths)
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("modalities", [1, 2, 3, 6])
def test_every_modality_and_all_together_get_logits(name: str, modalities: int) -> None:
    widths = {f"m{i}": 2 + i for i in range(modalities)}
    h = features(widths)
    logits, fused = made(name, widths)(h)
    assert list(logits) == sorted(widths)
    assert fused.shape == (6, CLASSES)
    assert all(z.shape == (6, CLASSES) for z in logits.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_modalities_changes_nothing(name: str) -> None:
    backwards = {m: WIDTHS[m] for m in sorted(WIDTHS, reverse=True)}
    one, two = made(name), made(name, backwards)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    h = features()
    (a, fused), (b, same) = one(h), two({m: h[m] for m in backwards})
    assert torch.equal(fused, same)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[m], b[m]) for m in a)


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_has_two_owners_and_an_owners_parameters_are_its_own(name: str) -> None:
    fusion = made(name)
    owned = {m: list(fusion.owned(m)) for m in WIDTHS}
    everyone = [p for parts in owned.values() for p in parts]
    assert len(set(everyone)) == len(everyone)
    assert set(everyone) <= set(fusion.parameters())
    # What only one modality's features act on: with them at zero, and no gradient through a bias,
    # nothing of its own is trained but biases.
    for modality in WIDTHS:
        h = features()
        h[modality] = torch.zeros_like(h[modality])
        fusion.zero_grad()
        fusion(h)[1].square().sum().backward()
        for parameter in owned[modality]:
            if parameter.ndim > 1 and parameter.grad is not None:
                assert not parameter.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_trained_by_the_fused_logits_and_those_of_the_modalities(name: str) -> None:
    fusion = made(name)
    logits, fused = fusion(features())
    torch.stack([fused, *logits.values()]).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in fusion.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_of_a_modality_are_of_its_features_alone(name: str) -> None:
    fusion, h = made(name), features()
    logits, _ = fusion(h)
    for modality in WIDTHS:
        others = {m: h[m] if m == modality else torch.randn_like(h[m]) for m in h}
        assert_close(fusion(others)[0][modality], logits[modality], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_modalities_may_be_called_what_torch_calls_its_own(name: str) -> None:
    widths = {"type": 2, "values": 3, "pop": 2, "float": 3, "keys-2": 2}
    fusion = made(name, widths)
    logits, _ = fusion.train().eval()(features(widths))
    assert set(logits) == set(widths)
    twin = made(name, widths)
    twin.load_state_dict(fusion.state_dict())


def linear(layer: nn.Linear, rows: Tensor) -> Tensor:
    """W h + b, written out."""
    return rows @ layer.weight.T + layer.bias


def test_mean_and_sum_of_heads() -> None:
    h = features()
    for name, factor in (("mean", 1 / 3), ("sum", 1.0)):
        fusion = made(name)
        logits, fused = fusion(h)
        for modality, z in logits.items():
            assert_close(z, linear(fusion.heads[modality], h[modality]))
        assert_close(fused, sum(logits.values()) * factor)
        assert {id(p) for p in fusion.owned("text")} == {
            id(p) for p in fusion.heads["text"].parameters()
        }


def test_concat_is_one_head_and_its_slices_sum_to_the_fused_logits() -> None:
    fusion, h = made("concat"), features()
    logits, fused = fusion(h)
    weight, bias = fusion.head.weight, fusion.head.bias
    assert_close(fused, torch.cat([h["audio"], h["text"], h["video"]], dim=1) @ weight.T + bias)
    assert_close(sum(logits.values()), fused, rtol=1e-12, atol=1e-12)
    columns = {"audio": slice(0, 4), "text": slice(4, 6), "video": slice(6, 11)}
    for modality, where in columns.items():
        expected = h[modality] @ weight[:, where].T + bias / 3
        assert_close(logits[modality], expected, rtol=1e-12, atol=1e-12)
        assert not list(fusion.owned(modality))
    # In the precision of training the sum holds to its rounding.
    single = {m: x.float() for m, x in h.items()}
    logits, fused = fusion.float()(single)
    assert_close(sum(logits.values()), fused, rtol=1e-5, atol=1e-6)


def test_branches_have_heads_beside_the_one_of_all() -> None:
    fusion, h = made("branches"), features()
    logits, fused = fusion(h)
    assert_close(fused, linear(fusion.joint, torch.cat(list(h.values()), dim=1)))
    assert_close(logits["video"], linear(fusion.heads["video"], h["video"]))
    fused.sum().backward()
    assert fusion.heads["video"].weight.grad is None


def test_the_shared_head_sees_every_modality_at_the_same_width() -> None:
    fusion, h = made("shared"), features()
    logits, fused = fusion(h)
    for modality, z in logits.items():
        assert_close(z, linear(fusion.head, linear(fusion.inward[modality], h[modality])))
    assert_close(fused, sum(logits.values()) / 3)
    same = made("shared", {"a": 4, "b": 4}, hidden=5)
    assert not list(same.owned("a"))
    h = features({"a": 4, "b": 4})
    expected = linear(same.head[2], linear(same.head[0], h["a"]).relu())
    assert_close(same(h)[0]["a"], expected)


def test_the_others_gate_or_modulate_the_main_modality() -> None:
    h = features()
    for main in (None, "text"):
        gated, film = (made(name, main=main, width=7) for name in ("gated", "film"))
        chosen = main or "video"  # the last by name
        others = [m for m in WIDTHS if m != chosen]

        def inner(fusion: Any, modality: str) -> Tensor:
            return linear(fusion.inward[modality], h[modality])

        gates = torch.stack([inner(gated, m).sigmoid() for m in others]).prod(dim=0)
        assert_close(gated(h)[1], linear(gated.outward, gates * inner(gated, chosen)))
        both = sum(inner(film, m) for m in others)
        moved = both[:, :7] * inner(film, chosen) + both[:, 7:]
        assert_close(film(h)[1], linear(film.outward, moved))
    with pytest.raises(ValueError, match="main is 'smell'; the modalities are audio, text, video"):
        made("gated", main="smell")


@pytest.mark.parametrize("name", [n for n in NAMES if issubclass(FUSIONS[n], Entangled)])
def test_where_modalities_are_entangled_their_logits_are_those_without_the_others(
    name: str,
) -> None:
    fusion, h = made(name), features()
    logits, _ = fusion(h)
    for modality in h:
        alone = {m: x if m == modality else torch.zeros_like(x) for m, x in h.items()}
        assert torch.equal(logits[modality], fusion(alone)[1])
