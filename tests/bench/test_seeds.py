from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from vcmm.bench import seeds


def parts(names: Iterable[str], depth: int = 2) -> nn.Module:
    """Small networks by name, made in this order."""
    model = nn.ModuleDict()
    for name in names:
        layers = [nn.Linear(3, 3) for _ in range(depth)]
        model[name] = nn.Sequential(*layers, nn.BatchNorm1d(3), nn.Conv1d(1, 2, 3))
    return model


def state(model: nn.Module, prefix: str) -> dict[str, Tensor]:
    """A copy of what lies under a name."""
    items = model.state_dict().items()
    return {name: value.clone() for name, value in items if name.startswith(prefix)}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_weights_depend_on_name_and_seed_alone() -> None:
    torch.manual_seed(1)
    one = parts(["a", "b", "c"])
    torch.manual_seed(2)
    two = parts(["c", "a"])
    before = torch.get_rng_state()
    seeds.initialize(one, 5)
    seeds.initialize(two, 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(state(one, "a."), state(two, "a."))
    assert equal(state(one, "c."), state(two, "c."))
    # No two modules share their draws.
    weights = [module.weight for module in one.modules() if isinstance(module, nn.Linear)]
    assert len({weight.flatten()[0].item() for weight in weights}) == len(weights)


def test_a_further_layer_leaves_those_before_it_as_they_are() -> None:
    short, long = parts(["a"], depth=1), parts(["a"], depth=1)
    long["a"].append(nn.Linear(3, 3))  # type: ignore[operator]
    seeds.initialize(short, 5)
    seeds.initialize(long, 5)
    assert all(torch.equal(value, long.state_dict()[k]) for k, value in short.state_dict().items())


def test_initializing_again_undoes_training_and_another_seed_gives_other_weights() -> None:
    model = parts(["a"])
    seeds.initialize(model, 5)
    first = state(model, "a.")
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(1)
    seeds.initialize(model, 5)
    assert equal(state(model, "a."), first)
    seeds.initialize(model, 6)
    assert not torch.equal(state(model, "a.")["a.0.weight"], first["a.0.weight"])


class Halved(nn.Module):
    """Has its own opinion on a layer that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.layer.weight, 0.5)


def test_a_module_has_the_last_word_on_its_parts() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Halved())
    seeds.initialize(model, 5)
    assert (model[1].layer.weight == 0.5).all()  # type: ignore[union-attr]
    drawn = model[1].layer.bias.clone()  # type: ignore[union-attr]
    alone = nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"layer": nn.Linear(3, 3)}))
    seeds.initialize(alone, 5)
    assert torch.equal(alone[1]["layer"].bias, drawn)  # type: ignore[index]


def test_fixed_gives_the_global_generator_back_exactly() -> None:
    torch.manual_seed(3)
    torch.rand(1), torch.randn(1)  # one half of a pair of normals may still lie in its cache
    before, seed = torch.get_rng_state(), torch.initial_seed()
    with seeds.fixed(5, "use"):
        inside = torch.randn(7)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.initial_seed() == seed

    def fails() -> None:
        with seeds.fixed(5, "use"):
            assert torch.equal(torch.randn(7), inside)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.equal(torch.get_rng_state(), before)
    with seeds.fixed(5, "use"), seeds.fixed(6, "other"):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), before)
    with seeds.fixed(5, "other"):
        assert not torch.equal(torch.randn(7), inside)


def test_a_generator_stands_apart_from_the_global_one() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    drawn = torch.rand(4, generator=seeds.generator(0, "order", 1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(torch.rand(4, generator=seeds.generator(0, "order", 1)), drawn)
    assert not torch.equal(torch.rand(4, generator=seeds.generator(0, "order", 2)), drawn)
    assert not torch.equal(torch.rand(4, generator=seeds.generator(1, "order", 1)), drawn)


@given(st.sets(st.tuples(st.integers(0, 2**63), st.text("ab.12", max_size=4)), max_size=30))
def test_seeds_of_different_uses_differ_and_fit_torch(uses: set[tuple[int, str]]) -> None:
    derived = [seeds.derived(seed, name) for seed, name in uses]
    assert len(set(derived)) == len(uses)
    assert all(0 <= seed < 2**63 for seed in derived)


def test_seeds_are_the_same_on_every_machine() -> None:
    """Not Python's hash, which is drawn anew in every process."""
    # The first 7 bytes of sha256(b"0/order/3"), big end first.
    assert seeds.derived(0, "order", 3) == 0x4B9958534E8D93
