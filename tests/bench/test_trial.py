"""A bad value fails when the spec is made, whatever axis it belongs to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vcmm.bench.methods import METHODS
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.trial import spoken_of

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": Choice("ogm", alpha=-1.0)}, "alpha is -1.0"),
    "agm": ({"method": Choice("agm", alpha=-0.5)}, "alpha is -0.5"),
    "pmr": ({"method": Choice("pmr", alpha=-0.5)}, "alpha"),
    "gblend": ({"method": Choice("gblend", share=1.5)}, "share is 1.5"),
    "epochs outside the run": ({"method": Choice("ogm", starts=15)}, "starts is 15"),
    "fusion": ({"fusion": Choice("gated", width=0)}, "width is 0"),
    "growing": ({"method": "aug", "fusion": Choice("growing", hidden=0)}, "hidden is 0"),
    "boosted": ({"method": "reconboost", "fusion": Choice("boosted", hidden=0)}, "hidden is 0"),
    "fusion of the method": ({"method": "mla", "fusion": "mean"}, 'fusion "shared"'),
    "encoder": ({"encoder": Choice("conv2d", kernel=0)}, "kernel"),
    "encoders": ({"encoders": {"audio": Choice("mlp", depth=0)}}, "depth"),
    "optimizer": ({"optimizer": Choice("adam", betas=(1.5, 0.9))}, "beta"),
    "learning rate": ({"optimizer": Choice("sgd", lr=-1.0)}, "learning rate"),
    "sgdf": ({"optimizer": Choice("sgdf", eps=-1.0)}, "eps -1.0"),
    "schedule": ({"schedule": Choice("step", every=0)}, "every"),
    "controller": ({"controller": Choice("vcmm", gain_range=(0.5, 0.2))}, "gain_range"),
    "frozen": ({"controller": Choice("frozen", after=2.0)}, "after is 2.0"),
    "fixed": ({"controller": Choice("fixed", betas={"audio": 1.5})}, "'audio' is 1.5"),
    "together": (
        {"controller": "vcmm", "optimizer": Choice("sgd", momentum=0.0)},
        "momentum is 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_fails_when_the_spec_is_made(case: str) -> None:
    axes, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        Spec(**axes)


def test_nothing_is_drawn_and_nothing_is_kept() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for name in METHODS.keys() - {"unimodal"}:
        Spec(method=name, controller="vcmm")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        ({}, ("a", "b")),
        ({"modalities": ["y", "x"]}, ("x", "y")),
        ({"method": Choice("unimodal", modality="sound")}, ("sound",)),
        ({"controller": Choice("fixed", betas={"sound": 0.9})}, ("sound",)),
        ({"method": Choice("gblend", weights={"x": 0.5, "y": 0.3, "fused": 0.2})}, ("x", "y")),
        ({"fusion": Choice("gated", main="sound")}, ("sound",)),
        ({"method": Choice("aug", shares={"x": 0.4, "y": 0.6})}, ("x", "y")),
    ],
)
def test_modalities_that_are_named_are_taken(axes: dict[str, Any], names: tuple[str, ...]) -> None:
    assert spoken_of(Spec(**axes)) == names


def test_an_encoder_of_any_size_costs_no_memory() -> None:
    Spec(encoder=Choice("mlp", width=200_000, depth=3))  # 160 GB of weights, if it were made


def test_several_modalities_are_needed_by_none_of_the_methods_to_be_made() -> None:
    for name in METHODS.keys() - {"unimodal"}:
        Spec(method=name, modalities=["only"])
