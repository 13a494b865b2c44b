from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vcmm.bench.build import build_model
from vcmm.bench.encoders import ENCODERS, auto
from vcmm.bench.encoders.conv import Conv1d, Conv2d
from vcmm.bench.encoders.mlp import MLP
from vcmm.bench.spec import Choice
from vcmm.bench.types import Form, Kind

from . import toys

KINDS: tuple[Kind, ...] = ("vector", "sequence", "image")
OF: dict[str, tuple[Kind, ...]] = {
    "auto": KINDS,
    "conv1d": ("sequence",),
    "conv2d": ("image",),
    "mlp": KINDS,
}


def form(kind: Kind, *shape: int) -> Form:
    zero, one = np.zeros(shape[:1]), np.ones(shape[:1])
    return Form(kind, shape, None if kind == "vector" else 1, zero, one)


SMALL = [
    *(form("vector", length) for length in (1, 2, 9)),
    *(form("sequence", channels, length) for length in range(1, 9) for channels in (1, 3)),
    *(form("image", 1, side, side) for side in range(1, 10)),
    *(form("image", 3, height, width) for height, width in ((1, 9), (9, 1), (3, 40), (40, 5))),
]


@pytest.mark.parametrize("name", sorted(OF))
def test_any_size_gives_the_features_that_were_promised_and_trains_all_weights(name: str) -> None:
    for shape in (one for one in SMALL if one.kind in OF[name]):
        encoder = ENCODERS[name](shape, outputs=7, width=3)
        assert encoder.outputs == 7
        features = encoder(torch.randn(2, *shape.shape))
        assert features.shape == (2, 7), shape
        features.square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("name", sorted(OF))
def test_a_sample_is_encoded_alone_when_judged(name: str) -> None:
    """In eval mode no sample sees its neighbours."""
    for kind in OF[name]:
        shape = {"vector": (5,), "sequence": (2, 6), "image": (1, 5, 5)}[kind]
        encoder = ENCODERS[name](form(kind, *shape), width=3, outputs=4).eval()
        rows = torch.randn(6, *shape)
        each = torch.cat([encoder(row[None]) for row in rows])
        torch.testing.assert_close(encoder(rows), each)


def test_auto_chooses_by_kind_and_hands_its_options_on() -> None:
    assert isinstance(auto(form("vector", 5)), MLP)
    assert isinstance(auto(form("sequence", 2, 9)), Conv1d)
    assert isinstance(auto(form("image", 1, 9, 9)), Conv2d)
    for shape in (form("vector", 5), form("sequence", 2, 9), form("image", 1, 9, 9)):
        assert auto(shape, outputs=5).outputs == 5
        small, large = (
            sum(p.numel() for p in auto(shape, width=width).parameters()) for width in (4, 8)
        )
        assert small < large


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("conv1d", form("vector", 5), r"kind sequence, not vector of shape \(5,\); use .*mlp"),
        ("conv1d", form("image", 1, 5, 5), "kind sequence, not image .* use encoder conv2d"),
        ("conv2d", form("vector", 5), "kind image, not vector .*mlp"),
        ("conv2d", form("sequence", 2, 9), "kind image, not sequence .* use encoder conv1d"),
        ("conv2d", form("video", 3, 4, 9, 9), "not video .* use encoder resnet18 .* or i3d"),
        ("auto", form("video", 3, 4, 9, 9), "not video .* use encoder resnet18 .* or i3d"),
        ("auto", form("tokens", 9), "not tokens .* use encoder bert"),
        ("mlp", form("tokens", 9), "not tokens .* use encoder bert"),
    ],
)
def test_a_modality_of_another_kind_is_refused_with_the_encoder_that_takes_it(
    name: str, given: Form, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ENCODERS[name](given)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *((name, option) for name in OF for option in ("width", "outputs")),
        ("conv1d", "kernel"),
        ("conv2d", "kernel"),
        ("mlp", "depth"),
    ],
)
def test_sizes_below_one_are_refused(name: str, option: str) -> None:
    for kind in OF[name]:
        shape = {"vector": (5,), "sequence": (2, 6), "image": (1, 5, 5)}[kind]
        for value in (0, -1):
            with pytest.raises(ValueError, match=f"{option} is {value}; it must be at least 1"):
                ENCODERS[name](form(kind, *shape), **{option: value})


def test_depth_counts_the_linear_layers() -> None:
    for depth in (1, 2, 4):
        layers = MLP(form("vector", 5), depth=depth).modules()
        assert sum(isinstance(layer, nn.Linear) for layer in layers) == depth


@pytest.mark.parametrize("kind", KINDS)
def test_a_modality_starts_from_the_same_weights_alone_and_beside_others(kind: str) -> None:
    spec = toys.tiny(3, kind, encoders={"m1": Choice("auto", width=3, outputs=5)})
    data = toys.data_of(spec)

    def weights(modalities: Any, seed: int = 0) -> dict[str, torch.Tensor]:
        torch.manual_seed(torch.seed() % 1000)  # which must not matter
        one = toys.tiny(3, kind, seed=seed)
        model = build_model(one, data.select(modalities))
        return {k: v for k, v in model.state_dict().items() if ".m2." in k}

    alone, beside = weights(["m2"]), weights(["m1", "m2", "m3"])
    assert alone.keys() == beside.keys() != set()
    assert all(torch.equal(alone[name], beside[name]) for name in alone)
    reseeded = weights(["m2"], 1)
    assert any(not torch.equal(alone[name], reseeded[name]) for name in alone)
    # Nor do the encoders of others matter.
    other = build_model(spec, data).state_dict()
    assert all(torch.equal(alone[name], other[name]) for name in alone)
