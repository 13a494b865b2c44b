from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from vcmm.bench.fusions import FUSIONS
from vcmm.bench.method import groups
from vcmm.bench.model import Multimodal
from vcmm.bench.seeds import initialize

WIDTHS = {"video": 3, "audio": 2}
SIZES = {"video": 4, "audio": 5}


def made(fusion: str = "mean", names: tuple[str, ...] = ("video", "audio")) -> Multimodal:
    encoders = {m: nn.Linear(SIZES[m], WIDTHS[m]) for m in names}
    model = Multimodal(encoders, FUSIONS[fusion]({m: WIDTHS[m] for m in names}, 3))
    initialize(model, 1)
    return model


def inputs(names: tuple[str, ...] = ("video", "audio")) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    each = {m: torch.randn(6, SIZES[m]) for m in sorted(SIZES)}
    return {m: each[m] for m in names}


@pytest.mark.parametrize("fusion", sorted(FUSIONS))
def test_the_order_of_modalities_changes_nothing_bitwise(fusion: str) -> None:
    backwards = ("audio", "video")
    one, two = made(fusion), made(fusion, backwards)
    a, b, c = one(inputs()), two(inputs(backwards)), one(inputs(backwards))
    for other in (b, c):
        assert torch.equal(a.fused, other.fused)
        assert list(a.features) == list(other.features) == ["audio", "video"]
        for name in a.logits:
            assert torch.equal(a.logits[name], other.logits[name])
            assert torch.equal(a.features[name], other.features[name])
    assert [group["name"] for group in groups(one)] == [group["name"] for group in groups(two)]


@pytest.mark.parametrize("fusion", sorted(FUSIONS))
def test_every_parameter_has_one_group_and_a_modality_has_what_it_owns(fusion: str) -> None:
    model = made(fusion)
    found: dict[Any, set[nn.Parameter]] = {}
    for group in groups(model):
        assert group["name"] == (group["modality"] or "shared")
        found[group["modality"]] = set(group["params"])
        assert len(found[group["modality"]]) == len(group["params"])
    everything = [parameter for parts in found.values() for parameter in parts]
    assert len(everything) == len(set(everything)) == len(list(model.parameters()))
    assert set(everything) == set(model.parameters())
    for modality in WIDTHS:
        encoder = set(model.encoders[modality].parameters())
        assert found[modality] == encoder | set(model.fusion.owned(modality))


def test_who_owns_the_head() -> None:
    mean, concat = made("mean"), made("concat")
    assert {group["modality"] for group in groups(mean)} == {"audio", "video"}
    shared = next(group for group in groups(concat) if group["modality"] is None)
    assert set(shared["params"]) == set(concat.fusion.parameters())


def test_the_features_are_what_the_heads_take() -> None:
    model = made("mean")
    output = model(inputs())
    for modality, logits in output.logits.items():
        head = model.fusion.heads[modality]  # type: ignore[union-attr,index]
        assert torch.equal(head(output.features[modality]), logits)
    assert model.modalities == ("audio", "video")
    # An input that the model has no encoder for is not looked at.
    more = model({**inputs(), "smell": None})  # type: ignore[dict-item]
    assert torch.equal(more.fused, output.fused)


def test_a_modality_may_have_any_name_but_those_that_mean_something() -> None:
    odd = ("type", "values", "pop", "items", "forward", "half-1", "x_2", "encoders")
    encoders = {name: nn.Linear(2, 2) for name in odd}
    model = Multimodal(encoders, FUSIONS["mean"](dict.fromkeys(odd, 2), 3))
    assert model.modalities == tuple(sorted(odd))
    rows = {name: torch.randn(3, 2) for name in odd}
    first = model.train()(rows)
    again = copy.deepcopy(model).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(rows).fused, first.fused)
    assert {group["name"] for group in groups(model)} == set(odd)
    assert "encoders.type.weight" in model.state_dict()
    for name in ("decay_filter", "fused", "loss", "mask", "self", "shared", "training"):
        fusion = FUSIONS["mean"]({name: 2}, 3)
        with pytest.raises(ValueError, match=f"modality '{name}'.*choose another name"):
            Multimodal({name: nn.Linear(2, 2)}, fusion)
