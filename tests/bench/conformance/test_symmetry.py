"""No method treats a modality by its name or its place.

Everything is in float64, because a sum over modalities has another order in another alphabet. What
the controller measures is in float32, so results agree to 1e-5: float32 has 6e-8, and eight steps
enlarge it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from vcmm.bench.fusions.aligned import Aligned
from vcmm.bench.fusions.branches import Branches
from vcmm.bench.fusions.linear import Concat
from vcmm.bench.methods import METHODS
from vcmm.bench.spec import Choice, Spec

from ..toys import OPTIONS, Training, built, data_of, events, losses, precise, renamed, tiny
from .cases import every_method, every_number

# Noise is drawn for each modality by its name, so it is another one under another name.
QUIET: dict[str, dict[str, Any]] = {"decalign": {"dropout": 0.0}, "ogm": {"noise": False}}
# These take the modalities in turn within a batch or over epochs, in the order of the alphabet.
IN_TURN = ("aug", "mla", "reconboost")
# Where the features are put side by side: a weight has a block of columns for each modality.
SIDE_BY_SIDE = {
    Aligned: "model.fusion.head.weight",
    Branches: "model.fusion.joint.weight",
    Concat: "model.fusion.head.weight",
}
TOLERANCE = 1e-5


def spec_of(name: str, modalities: int, names: Mapping[str, str]) -> Spec:
    """The method's spec where the modalities are called otherwise."""
    options = {**OPTIONS.get(name, {}), **QUIET.get(name, {})}
    if "modality" in options:
        options["modality"] = names[options["modality"]]
    return tiny(modalities, method=Choice(name, **options), controller="vcmm")


def under(names: Mapping[str, str], state: Any) -> Any:
    """A state in which every modality has its new name."""
    if not isinstance(state, Mapping):
        return state
    keys = {key: ".".join(names.get(part, part) for part in key.split(".")) for key in state}
    return {keys[key]: under(names, value) for key, value in state.items()}


def started_as(training: Training, other: Training, names: Mapping[str, str]) -> None:
    """Give it the other's weights, each under its new name and in its new place."""
    state = under(names, other.method.state_dict())
    place = SIDE_BY_SIDE.get(type(training.method.model.fusion))
    if place is not None:
        blocks = state[place].chunk(len(names), dim=1)
        new = dict(zip((names[m] for m in sorted(names)), blocks, strict=True))
        state[place] = torch.cat([new[m] for m in sorted(new)], dim=1)
    training.method.load_state_dict(state)


def outcome(training: Training, spec: Spec) -> tuple[list[dict[str, float]], torch.Tensor]:
    """The values of every step, and what is predicted in the end."""
    steps = losses(events(training, spec))
    training.method.eval()
    with torch.no_grad():
        batch = training.data.batch("test", torch.arange(12))
        return steps, training.method.predict(training.method(batch.inputs))


def both(name: str, modalities: int, names: Mapping[str, str]) -> list[Any]:
    """The outcome as it is, and under other names."""
    identity = {modality: modality for modality in names}
    spec = spec_of(name, modalities, identity)
    data = precise(data_of(spec))
    one = built(spec, data)
    one.method.double()
    spec = spec_of(name, modalities, names)
    other = built(spec, renamed(data, names))
    other.method.double()
    started_as(other, one, names)
    return [outcome(one, spec), outcome(other, spec)]


def assert_same(one: Any, other: Any, names: Mapping[str, str]) -> None:
    (steps, predicted), (again, predicted_again) = one, other
    torch.testing.assert_close(predicted_again, predicted, rtol=TOLERANCE, atol=TOLERANCE)
    for row, renamed_row in zip(steps, again, strict=True):
        assert len(row) == len(renamed_row)
        for term, value in row.items():
            *path, last = term.split("/")
            key = "/".join([*path, names.get(last, last)])
            assert renamed_row[key] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE)


@every_method
@every_number
def test_other_names_change_nothing(name: str, modalities: int) -> None:
    """Names of the same alphabetical order."""
    names = {f"m{i + 1}": f"{'abcdef'[i]}-x" for i in range(modalities)}
    assert_same(*both(name, modalities, names), names)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - set(IN_TURN)))
@every_number
def test_another_order_changes_nothing(name: str, modalities: int) -> None:
    """The first becomes the last, and so on."""
    names = {f"m{i + 1}": f"m{modalities - i}" for i in range(modalities)}
    assert_same(*both(name, modalities, names), names)
