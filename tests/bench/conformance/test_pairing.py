"""Methods are compared seed by seed, so a seed must mean the same to all: the same first weights.

That they see the same samples in the same order is in `test_isolation`.
"""

from __future__ import annotations

import pytest
from torch import Tensor

from vcmm.bench.controllers import CONTROLLERS
from vcmm.bench.methods import METHODS

from ..toys import built, tiny
from .cases import every_method


def encoders(method: str, seed: int, fusion: str = "auto", **spec: object) -> dict[str, Tensor]:
    """The weights that training starts from, of all encoders."""
    training = built(tiny(method=method, fusion=fusion, seed=seed, **spec))
    weights = training.method.model.encoders.state_dict()
    return {name: value.clone() for name, value in weights.items()}


@every_method
@pytest.mark.parametrize("seed", [0, 3])
def test_its_encoders_start_from_the_weights_of_joint_training(name: str, seed: int) -> None:
    joint, found = encoders("joint", seed), encoders(name, seed)
    assert found
    assert found.keys() <= joint.keys()
    assert all(found[key].equal(joint[key]) for key in found)


@every_method
def test_all_that_it_shares_with_joint_training_by_its_fusion_starts_alike(name: str) -> None:
    fusion = METHODS[name].fusion
    joint = built(tiny(method="joint", fusion=fusion)).method.model.state_dict()
    found = built(tiny(method=name, fusion=fusion)).method.model.state_dict()
    shared = joint.keys() & found.keys()
    assert any(key.startswith("fusion") for key in shared) or name == "unimodal"
    assert all(found[key].equal(joint[key]) for key in shared)


def test_another_seed_starts_elsewhere() -> None:
    one, other = encoders("joint", 0), encoders("joint", 1)
    assert any(not one[key].equal(other[key]) for key in one)


@pytest.mark.parametrize("controller", sorted(CONTROLLERS))
def test_a_controller_changes_no_first_weight(controller: str) -> None:
    plain = encoders("joint", 0)
    found = encoders("joint", 0, controller=controller)
    assert found.keys() == plain.keys()
    assert all(found[key].equal(plain[key]) for key in plain)
