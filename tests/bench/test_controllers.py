from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from vcmm import VCMM, Fixed, Frozen, Kalman, MomentumController
from vcmm.bench.build import momenta
from vcmm.bench.controllers import CONTROLLERS
from vcmm.bench.spec import Choice

from . import toys
from .toys import tiny


def policy(name: str, steps: int = 100, optimizer: Any = None, **options: Any) -> Any:
    """What a controller of this name follows."""
    optimizer = optimizer or toys.built(tiny()).method.optimizer
    controller = CONTROLLERS[name](optimizer, "cross_entropy", steps, **options)
    return cast(MomentumController, controller).policy


def states(spec: Any) -> tuple[Any, Any, list[dict[str, float]]]:
    training, losses = toys.trained(spec)
    optimizer = training.method.optimizer
    # The controller's own record travels in the optimizer's state dict, beside the groups.
    inner = {i: dict(state) for i, state in enumerate(optimizer.state.values())}
    return training.method.model.state_dict(), inner, losses


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "nadam", "radam", "adamax"])
@pytest.mark.parametrize(
    ("controller", "method"),
    [
        (Choice("fixed", betas={"m1": 0.9, "m2": 0.9}), "joint"),
        (Choice("fixed", betas={"m2": 0.9}), "multi_loss"),
        (Choice("vcmm", strength=0.0), "joint"),
        (Choice("vcmm", warmup=1000), "joint"),
        (Choice("vcmm"), "unimodal"),  # there is nothing to centre on
        (Choice("frozen"), "unimodal"),
    ],
    ids=["fixed", "fixed-one", "strength-0", "warmup", "one-modality", "frozen-one"],
)
def test_a_momentum_that_stays_at_its_base_is_no_controller_bitwise(
    optimizer: str, controller: Choice, method: str
) -> None:
    axes: dict[str, Any] = {"optimizer": optimizer, "method": method}
    plain, ours = states(tiny(**axes)), states(tiny(**axes, controller=controller))
    for a, b in zip(plain, ours, strict=True):
        assert not toys.differences(a, b)


@pytest.mark.parametrize("name", ["vcmm", "fixed", "frozen"])
def test_a_momentum_that_moves_changes_what_is_learned(name: str) -> None:
    plain, _ = toys.trained(tiny(2))
    ours, _ = toys.trained(tiny(2, controller=name))
    assert toys.differences(plain.method.model.state_dict(), ours.method.model.state_dict())
    assert ours.controller is not None
    found = momenta(ours)
    assert found["m1/beta"] != found["m2/beta"]
    assert all(0.7 <= found[f"{m}/beta"] <= 0.99 for m in ("m1", "m2"))
    measured = {"R", "Q", "rho", "gain"} if name != "fixed" else set[str]()
    assert {f"m1/{quantity}" for quantity in measured} <= found.keys()


def test_none_is_no_controller() -> None:
    training = toys.built(tiny())
    assert CONTROLLERS["none"](training.method.optimizer, "cross_entropy", 10) is None
    assert training.controller is None
    assert not training.method.watchers
    assert momenta(training) == {}


def test_vcmm_hands_every_option_to_the_policy() -> None:
    given: dict[str, Any] = {
        "strength": 0.5,
        "smoothing": 0.9,
        "floor": 1e-3,
        "gain_range": (0.02, 0.25),
        "warmup": 7,
        "subtract_noise": False,
        "center": False,
        "floor_after_smoothing": True,
    }
    made = policy("vcmm", **given)
    assert isinstance(made, Kalman)
    default = policy("vcmm")
    for name, value in given.items():
        assert getattr(made, name) == value
        assert getattr(default, name) == getattr(Kalman(), name) != value
    optimizer = toys.built(tiny()).method.optimizer
    assert isinstance(CONTROLLERS["vcmm"](optimizer, "cross_entropy", 10), VCMM)


@pytest.mark.parametrize(
    "option",
    [
        {"strength": 0.3},
        {"smoothing": 0.5},
        {"floor": 0.3},
        {"gain_range": (0.0999, 0.1001)},
        {"warmup": 4},
        {"subtract_noise": False},
        {"center": False},
        {"floor_after_smoothing": True},
        {"exact": False},
    ],
    ids=str,
)
def test_every_option_of_vcmm_changes_what_is_learned(option: dict[str, Any]) -> None:
    published, _ = toys.trained(tiny(2, controller="vcmm", epochs=3))
    other, _ = toys.trained(tiny(2, controller=Choice("vcmm", **option), epochs=3))
    one, two = (training.method.model.state_dict() for training in (published, other))
    assert toys.differences(one, two)


def test_fixed_holds_what_it_was_told() -> None:
    spec = tiny(3, controller=Choice("fixed", betas={"m1": 0.95, "m3": 0.8}))
    training, _ = toys.trained(spec)
    assert isinstance(policy("fixed", betas={"m1": 0.8}), Fixed)
    found = momenta(training)
    assert found["m1/beta"] == 0.95
    assert found["m3/beta"] == 0.8
    assert found.get("m2/beta", 0.9) == 0.9
    with pytest.raises(ValueError, match=r"Fixed names modality 'm9'.*m1, m2"):
        toys.built(tiny(2, controller=Choice("fixed", betas={"m9": 0.8})))
    with pytest.raises(ValueError, match=r"momentum of 'm1' is 1\.0"):
        toys.built(tiny(2, controller=Choice("fixed", betas={"m1": 1.0})))


@pytest.mark.parametrize(
    ("steps", "after", "average", "expected"),
    [
        (1000, 0.1, 0.02, (100, 20)),
        (12, 0.1, 0.02, (1, 1)),  # the shares round to less than a step
        (3, 0.1, 0.02, (1, 1)),
        (100, 0.1, 0.5, (10, 10)),  # no more can be averaged than there was
        (100, 1.0, 1.0, (100, 100)),
    ],
)
def test_frozen_counts_shares_of_all_steps(
    steps: int, after: float, average: float, expected: tuple[int, int]
) -> None:
    made = policy("frozen", steps, after=after, average=average)
    assert isinstance(made, Frozen)
    assert (made.after, made.average) == expected


def test_frozen_follows_vcmm_and_then_stands_still() -> None:
    spec = tiny(2, controller=Choice("frozen", after=0.5, average=0.25), epochs=4)
    training = toys.built(spec)
    assert training.steps == 16
    betas: list[tuple[float, ...]] = []
    vcmm: list[tuple[float, ...]] = []
    for made, seen in ((training, betas), (toys.built(tiny(2, controller="vcmm", epochs=4)), vcmm)):
        for event in toys.events(made, spec):
            if hasattr(event, "values"):
                found = momenta(made)
                seen.append(tuple(found[f"{m}/beta"] for m in ("m1", "m2")))
    assert betas[:8] == vcmm[:8]
    assert len(set(betas[8:])) == 1
    mean = [sum(column) / 4 for column in zip(*vcmm[4:8], strict=True)]
    assert list(betas[-1]) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("name", ["after", "average"])
@pytest.mark.parametrize("value", [0.0, -0.1, 1.5])
def test_a_share_lies_between_nothing_and_all(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"frozen: {name} is {value}"):
        policy("frozen", **{name: value})


def test_a_base_outside_of_the_gain_range_is_told_when_the_training_is_built() -> None:
    with pytest.raises(ValueError, match="gain_range"):
        toys.built(tiny(2, optimizer=Choice("adam", betas=(0.5, 0.999)), controller="vcmm"))
    with pytest.raises(ValueError, match="momentum"):
        toys.built(tiny(2, optimizer=Choice("sgd", momentum=0.0), controller="vcmm"))


def test_the_probe_is_of_the_batch_that_was_trained_on() -> None:
    """R of the first step, from the features and logits before it, written out."""
    training = toys.built(tiny(2, controller="vcmm"))
    batch = training.data.batch("train", torch.arange(16))
    with torch.random.fork_rng():
        output = training.method.train()(batch.inputs)
    training.method.step(batch)
    found = momenta(training)
    for modality, z in output.logits.items():
        h = torch.cat([output.features[modality], torch.ones(16, 1)], dim=1).double()
        error = z.double().softmax(dim=1) - torch.nn.functional.one_hot(batch.target, 3)
        halves = [error[s::2].T @ h[s::2] / 8 for s in (0, 1)]
        noise = (halves[0] - halves[1]).square().mean().item() / 4
        assert found[f"{modality}/R"] == pytest.approx(noise, rel=1e-5)
