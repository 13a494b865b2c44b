"""The public interface: its names, signatures and documents, and the loop that users type."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vcmm
from vcmm import VCMM, Fixed, Kalman, MomentumController, Policy, Probe, ProbeHeads, modal_groups

NAMES = {
    "VCMM",
    "MomentumController",
    "modal_groups",
    "ProbeHeads",
    "Policy",
    "Kalman",
    "Fixed",
    "Frozen",
    "Probe",
    "Binding",
    "register",
}


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(vcmm.__all__) == sorted(NAMES)
    assert len(vcmm.__all__) == 11
    assert all(hasattr(vcmm, name) for name in NAMES)


def test_nothing_else_is_shown_and_nothing_else_is_found() -> None:
    assert dir(vcmm) == sorted(NAMES)
    with pytest.raises(AttributeError, match=r"'vcmm' has no attribute 'Controller'"):
        _ = vcmm.Controller  # type: ignore[attr-defined]


def test_a_public_name_is_the_object_of_its_file() -> None:
    for name in NAMES:
        assert getattr(vcmm, name) is getattr(vcmm, name)
        assert getattr(vcmm, name).__module__.startswith("vcmm.")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_object_is_documented(name: str) -> None:
    public = getattr(vcmm, name)
    assert inspect.getdoc(public)
    # A dataclass without a docstring gets its signature for one.
    assert not inspect.getdoc(public).startswith(f"{name}(")


# A method that a class inherits from torch or that a policy answers is documented where it is
# first declared, and inspect.getdoc finds it there.
@pytest.mark.parametrize("name", ["VCMM", "MomentumController", "Kalman", "Frozen", "ProbeHeads"])
def test_every_public_method_is_documented(name: str) -> None:
    public = getattr(vcmm, name)
    own = {
        attribute
        for owner in public.__mro__
        if owner.__module__.startswith("vcmm")
        for attribute in vars(owner)
        if not attribute.startswith("_") and callable(getattr(owner, attribute))
    }
    undocumented = {
        method
        for method in own - {"get_extra_state", "set_extra_state"}
        if not inspect.getdoc(getattr(public, method))
    }
    assert own
    assert not undocumented


def parameters(function: Any) -> dict[str, tuple[inspect._ParameterKind, Any]]:
    return {
        name: (parameter.kind, parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    }


ANY = inspect.Parameter.POSITIONAL_OR_KEYWORD
FIRST = inspect.Parameter.POSITIONAL_ONLY
KEYWORD = inspect.Parameter.KEYWORD_ONLY
REST = inspect.Parameter.VAR_KEYWORD
NONE = inspect.Parameter.empty


def test_signature_of_the_controller() -> None:
    found = parameters(MomentumController)
    assert found.pop("loss") == (KEYWORD, "cross_entropy")  # beyond the four of the specification
    assert found == {
        "optimizer": (ANY, NONE),
        "policy": (ANY, NONE),
        "exact": (KEYWORD, True),
        "process_group": (KEYWORD, None),
    }


def test_signature_of_vcmm() -> None:
    assert parameters(VCMM) == {
        "optimizer": (ANY, NONE),
        "loss": (KEYWORD, "cross_entropy"),
        "heads": (KEYWORD, None),
        "slices": (KEYWORD, None),
        "exact": (KEYWORD, True),
        "process_group": (KEYWORD, None),
        "kalman": (REST, NONE),
    }
    assert issubclass(VCMM, MomentumController)


def test_signature_of_kalman_has_the_papers_defaults() -> None:
    assert parameters(Kalman) == {
        "strength": (KEYWORD, 1.0),
        "smoothing": (KEYWORD, 0.95),
        "floor": (KEYWORD, 1e-4),
        "gain_range": (KEYWORD, (0.01, 0.30)),
        "warmup": (KEYWORD, 0),
        "subtract_noise": (KEYWORD, True),
        "center": (KEYWORD, True),
        "floor_after_smoothing": (KEYWORD, False),
    }


def test_vcmm_takes_exactly_the_arguments_of_kalman() -> None:
    """Its keywords are typed, so the two lists could drift apart."""
    from vcmm.facade import KalmanOptions

    assert KalmanOptions.__annotations__.keys() == parameters(Kalman).keys()


def test_signatures_of_the_rest() -> None:
    assert parameters(modal_groups) == {
        "model": (FIRST, NONE),  # so that a modality may have this name
        "decay_filter": (KEYWORD, False),
        "modalities": (REST, NONE),
    }
    for kind in (MomentumController, VCMM):
        assert parameters(kind.observe) == {
            "self": (FIRST, NONE),
            "target": (FIRST, NONE),
            "mask": (KEYWORD, None),
            "modalities": (REST, NONE),
        }
        for method in ("metrics", "state_dict", "applied", "discard", "detach"):
            assert list(parameters(getattr(kind, method))) == ["self"]
        assert list(parameters(kind.load_state_dict)) == ["self", "state_dict"]
        assert isinstance(inspect.getattr_static(kind, "betas"), property)
    assert list(parameters(ProbeHeads))[:2] == ["features", "classes"]
    frozen = parameters(vcmm.Frozen)
    assert list(frozen) == ["policy", "after", "average"]
    assert frozen["after"][0] is frozen["average"][0] is KEYWORD
    assert list(parameters(vcmm.register)) == ["optimizer", "binding"]


def test_probe_is_a_small_frozen_record() -> None:
    probe = Probe(noise=0.25, change=1.0, previous_noise=0.5, energy=2.0)
    assert probe.drift == 0.25
    assert probe.measurable
    with pytest.raises(AttributeError):
        probe.noise = 1.0  # type: ignore[misc]
    assert not Probe(float("nan"), 1.0, 0.5, 2.0).measurable


# The loop


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.audio = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.video = nn.Sequential(nn.Linear(9, 8), nn.ReLU())
        self.head_a = nn.Linear(8, 3)
        self.head_v = nn.Linear(8, 3)

    def forward(self, x_a: Tensor, x_v: Tensor) -> tuple[Tensor, ...]:
        h_a, h_v = self.audio(x_a), self.video(x_v)
        return h_a, self.head_a(h_a), h_v, self.head_v(h_v)


SET_UP = """
optimizer = torch.optim.AdamW(modal_groups(model, audio=model.audio, video=model.video), lr=1e-3, fused=True)
vcmm = VCMM(optimizer)
"""  # noqa: E501
STEP = """
loss.backward()
vcmm.observe(target, audio=(h_a, z_a), video=(h_v, z_v))
optimizer.step()                                     # unchanged
"""
POLICIES = """
Kalman(strength=1.0, smoothing=0.95, floor=1e-4, gain_range=(0.01, 0.30), warmup=0)      # the paper
Fixed(audio=0.95, video=0.80)                                                            # fixed asymmetric
Frozen(Kalman(), after=steps // 10, average=steps // 50)                                 # frozen; wraps a policy
Kalman(subtract_noise=False), Kalman(center=False), VCMM(optimizer, exact=False)         # the ablations
Kalman(floor_after_smoothing=True)                                                       # the unbiased order
"""  # noqa: E501


def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    target = torch.randint(3, (16,), generator=generator)
    x_a = torch.randn(16, 6, generator=generator)
    x_v = torch.randn(16, 9, generator=generator) + target.unsqueeze(1)
    return x_a, x_v, target


def namespace(model: Model) -> dict[str, Any]:
    return {**{name: getattr(vcmm, name) for name in NAMES}, "torch": torch, "model": model}


def test_the_loop_that_users_type_runs_verbatim() -> None:
    torch.manual_seed(0)
    model = Model()
    space = namespace(model)
    exec(SET_UP, space)
    losses: list[float] = []
    for step in range(30):
        x_a, x_v, target = batch(step)
        h_a, z_a, h_v, z_v = model(x_a, x_v)
        loss = nn.functional.cross_entropy((z_a + z_v) / 2, target)
        losses.append(loss.item())
        space["optimizer"].zero_grad()
        space.update(loss=loss, target=target, h_a=h_a, z_a=z_a, h_v=h_v, z_v=z_v)
        exec(STEP, space)
    assert sum(losses[-5:]) < sum(losses[:5])
    found = space["vcmm"].metrics()
    for name in ("audio", "video"):
        for quantity in ("beta", "R", "Q", "rho", "gain"):
            assert type(found[f"{name}/{quantity}"]) is float
        assert 0.70 <= found[f"{name}/beta"] <= 0.99
    assert found["audio/beta"] != found["video/beta"]
    assert all(type(value) is float for value in found.values())
    assert space["vcmm"].betas == {m: found[f"{m}/beta"] for m in ("audio", "video")}


def test_with_heads_the_line_becomes_shorter_and_says_the_same() -> None:
    """VCMM(optimizer, heads={"audio": model.head_a, ...}), then vcmm.observe(target)."""
    found: list[dict[str, float]] = []
    for by_heads in (False, True):
        torch.manual_seed(0)
        model = Model()
        groups = modal_groups(model, audio=model.audio, video=model.video)
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        heads = {"audio": model.head_a, "video": model.head_v} if by_heads else None
        controller = VCMM(optimizer, heads=heads)
        for step in range(4):
            x_a, x_v, target = batch(step)
            h_a, z_a, h_v, z_v = model(x_a, x_v)
            optimizer.zero_grad()
            nn.functional.cross_entropy((z_a + z_v) / 2, target).backward()
            if by_heads:
                controller.observe(target)
            else:
                controller.observe(target, audio=(h_a, z_a), video=(h_v, z_v))
            optimizer.step()
        found.append(controller.metrics())
    assert found[0] == found[1]


def test_probe_heads_serve_a_fusion_without_modality_logits() -> None:
    torch.manual_seed(0)
    model = Model()
    fusion = nn.Bilinear(8, 8, 3)
    model.add_module("fusion", fusion)
    optimizer = torch.optim.Adam(modal_groups(model, audio=model.audio, video=model.video))
    heads = ProbeHeads({"audio": 8, "video": 8}, classes=3)
    controller = VCMM(optimizer)
    for step in range(4):
        x_a, x_v, target = batch(step)
        h_a, h_v = model.audio(x_a), model.video(x_v)
        optimizer.zero_grad()
        nn.functional.cross_entropy(fusion(h_a, h_v), target).backward()
        controller.observe(target, **heads(target, audio=h_a, video=h_v))
        optimizer.step()
    assert controller.betas["audio"] != controller.betas["video"]


def test_the_policies_of_the_paper_as_they_are_typed() -> None:
    space = namespace(Model())
    exec(SET_UP, space)
    space["vcmm"].detach()
    exec(POLICIES, {**space, "steps": 1000})


def test_vcmm_is_kalman_in_a_controller() -> None:
    found: list[list[Tensor]] = []
    for by_hand in (False, True):
        torch.manual_seed(0)
        model = Model()
        groups = modal_groups(model, audio=model.audio, video=model.video)
        optimizer = torch.optim.Adam(groups)
        if by_hand:
            policy = Kalman(strength=0.7, warmup=2)
            controller = MomentumController(optimizer, policy, exact=False)
        else:
            controller = VCMM(optimizer, exact=False, strength=0.7, warmup=2)
        for step in range(6):
            x_a, x_v, target = batch(step)
            h_a, z_a, h_v, z_v = model(x_a, x_v)
            optimizer.zero_grad()
            nn.functional.cross_entropy((z_a + z_v) / 2, target).backward()
            controller.observe(target, audio=(h_a, z_a), video=(h_v, z_v))
            optimizer.step()
        assert controller.betas["audio"] != 0.9
        found.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class SignalToNoise(Policy):
    """Ten lines: a long memory where most of a modality's gradient energy is noise."""

    def __init__(self, low: float = 0.8, high: float = 0.95) -> None:
        self.low, self.high = low, high

    def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, Any]:
        share = {m: min(p.noise / p.energy, 1) for m, p in probes.items()}
        return {m: self.low + s * (self.high - self.low) for m, s in share.items()}


def test_a_policy_of_ten_lines_works() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(modal_groups(model, audio=model.audio, video=model.video))
    controller = MomentumController(optimizer, SignalToNoise())
    assert controller.betas == {"audio": 0.9, "video": 0.9}
    for step in range(3):
        x_a, x_v, target = batch(step)
        h_a, z_a, h_v, z_v = model(x_a, x_v)
        optimizer.zero_grad()
        nn.functional.cross_entropy((z_a + z_v) / 2, target).backward()
        controller.observe(target, audio=(h_a, z_a), video=(h_v, z_v))
        optimizer.step()
    betas = controller.betas
    assert all(0.8 <= beta <= 0.95 for beta in betas.values())
    assert betas["audio"] != betas["video"]
    assert [g["vcmm_beta"] for g in optimizer.param_groups[:2]] == list(betas.values())
    # What it leaves out of its answer keeps the base: nobody observed anything here.
    optimizer.step()
    assert controller.betas == {"audio": 0.9, "video": 0.9}
    # And it travels in a checkpoint like any other.
    state, betas = controller.state_dict(), controller.betas
    controller.detach()
    again = MomentumController(optimizer, SignalToNoise())
    again.load_state_dict(state)
    assert again.betas == betas


def test_a_policy_must_say_how_it_updates() -> None:
    class Empty(Policy):
        pass

    with pytest.raises(TypeError, match="update"):
        Empty()  # type: ignore[abstract]


def test_detach_leaves_the_optimizer_to_another_controller_as_it_was() -> None:
    optimizer = torch.optim.Adam(
        modal_groups(model := Model(), audio=model.audio, video=model.video)
    )
    before = [dict(group) for group in optimizer.param_groups]
    first = MomentumController(optimizer, Fixed(audio=0.8))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert first.betas["audio"] == 0.8
    first.detach()
    assert [dict(group) for group in optimizer.param_groups] == before
    second = VCMM(optimizer)
    optimizer.step()
    assert second.betas == {"audio": 0.9, "video": 0.9}
