"""Bad input: an error at the boundary that names the modality, the value, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcmm import (
    VCMM,
    Fixed,
    Frozen,
    Kalman,
    MomentumController,
    Policy,
    Probe,
    ProbeHeads,
    modal_groups,
)
from vcmm.probe import Form

N, D, C = 6, 5, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.audio = nn.Linear(3, D)
        self.video = nn.Linear(3, D)
        self.fusion = nn.Linear(2 * D, C)


def an_optimizer(beta0: float = 0.9) -> torch.optim.Adam:
    model = Model()
    groups = modal_groups(model, audio=model.audio, video=model.video)
    optimizer = torch.optim.Adam(groups, lr=1e-2, betas=(beta0, 0.999))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return optimizer


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


H, Z, Y = normal(N, D), normal(N, C, seed=1), torch.arange(N) % C
TOKENS = normal(N, 3, D), normal(N, 3, C, seed=1)
FINE = normal(N, D, seed=2), normal(N, C, seed=3)


def says(*parts: str) -> str:
    """A pattern for texts that hold all of these, in any order."""
    return "(?s)" + "".join(f"(?=.*{part})" for part in parts)


# Groups


def test_a_parameter_claimed_twice() -> None:
    model = Model()
    with pytest.raises(ValueError, match=says("video.weight", "'audio'", "'video'", "leave it")):
        modal_groups(model, audio=[model.audio, model.video], video=model.video)


def test_a_pattern_that_matches_nothing() -> None:
    text = says("'audio'", r"'encoders.audio.\*'", r"whole names", r"audio\.\*", r"fusion\.\*")
    with pytest.raises(ValueError, match=text):
        modal_groups(Model(), audio="encoders.audio.*", video="video.*")


def test_no_group_carries_a_modality() -> None:
    for policy in (Kalman(), Fixed(), Frozen(Kalman(), after=2, average=1)):
        with pytest.raises(ValueError, match=says("no parameter group", r"modal_groups\(")):
            MomentumController(torch.optim.Adam(Model().parameters()), policy)


def test_groups_of_one_modality_with_different_betas() -> None:
    model = Model()
    groups = modal_groups(model, decay_filter=True, audio=model.audio, video=model.video)
    groups[0]["betas"] = (0.85, 0.999)
    with pytest.raises(ValueError, match=says("'audio'", "0.85", "0.9", "the same")):
        VCMM(torch.optim.Adam(groups))
    # As well when a schedule parts them later on.
    del groups[0]["betas"]
    optimizer = torch.optim.Adam(groups)
    vcmm = VCMM(optimizer)
    optimizer.param_groups[0]["betas"] = (0.85, 0.999)
    with pytest.raises(ValueError, match=says("'audio'", "0.85", "0.9", "the same")):
        optimizer.step()
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    optimizer.step()
    assert vcmm.betas == {"audio": 0.9, "video": 0.9}


def test_different_modalities_may_have_different_betas() -> None:
    model = Model()
    groups = modal_groups(model, audio=model.audio, video=model.video)
    groups[0]["betas"] = (0.85, 0.999)
    assert VCMM(torch.optim.Adam(groups)).betas == {"audio": 0.85, "video": 0.9}


# Names that no group carries


def test_observe_of_a_name_that_no_group_carries() -> None:
    vcmm = VCMM(an_optimizer())
    with pytest.raises(ValueError, match=says("'text'", "audio, video", "modal_groups")):
        vcmm.observe(Y, text=(H, Z))


def test_fixed_of_a_name_that_no_group_carries() -> None:
    text = says("Fixed", "'text'", "audio, video", "modality='text'")
    with pytest.raises(ValueError, match=text):
        MomentumController(an_optimizer(), Fixed(audio=0.95, text=0.8))
    with pytest.raises(ValueError, match=text):
        MomentumController(an_optimizer(), Frozen(Fixed(text=0.8), after=2, average=1))


def test_heads_of_a_name_that_no_group_carries() -> None:
    optimizer = an_optimizer()
    head = nn.Linear(D, C)
    with pytest.raises(ValueError, match=says("'text'", "audio, video", "modal_groups")):
        VCMM(optimizer, heads={"audio": nn.Linear(D, C), "text": head})
    # A controller that could not be made leaves no hook behind.
    assert not head._forward_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_probe_head_of_an_unknown_name() -> None:
    with pytest.raises(ValueError, match=says("'text'", "audio, video")):
        ProbeHeads({"audio": D, "video": D}, C)(Y, text=H)


# What is observed

mse = partial(F.mse_loss, reduction="none")
BAD: dict[str, tuple[type[Exception], tuple[str, ...], Any, dict[str, Any]]] = {
    # error, what its text says, (h, z, y), further arguments
    "fewer features": (
        ValueError,
        (r"\(5, 5\)", r"\(6, 4\)", "must agree", "the head takes"),
        (H[:5], Z, Y),
        {},
    ),
    "fewer logits": (ValueError, (r"\(6, 5\)", r"\(5, 4\)", "must agree"), (H, Z[:5], Y), {}),
    "pooled features of token logits": (
        ValueError,
        (r"\(6, 5\)", r"\(6, 3, 4\)", "must agree"),
        (H, TOKENS[1], Y),
        {},
    ),
    "fewer targets": (ValueError, ("6 samples", r"\(5,\)", "target"), (H, Z, Y[:5]), {}),
    "fewer targets, own loss": (
        ValueError,
        ("6 samples", r"\(5, 4\)", "target"),
        (H, Z, Z[:5]),
        {"loss": mse},
    ),
    "a scalar target": (ValueError, ("6 samples", r"\(\)", "target"), (H, Z, Y[0]), {}),
    "class ids per sample for token logits": (
        ValueError,
        ("class ids", r"\(6,\)", r"\(6, 3\)"),
        (*TOKENS, Y),
        {},
    ),
    "class ids per token for plain logits": (
        ValueError,
        ("class ids", r"\(6, 3\)", r"\(6,\)"),
        (H, Z, Y.unsqueeze(1).expand(N, 3)),
        {},
    ),
    "integer multi-label": (
        ValueError,
        ("class ids", r"\(6, 4\)", "binary_cross_entropy_with_logits", "reduction=.none"),
        (H, Z, torch.ones(N, C, dtype=torch.int64)),
        {},
    ),
    "a float target that is no soft label": (
        ValueError,
        (r"\(6,\)", r"\(6, 4\)", "soft labels", "mse_loss", "reduction=.none"),
        (H, Z, normal(N)),
        {},
    ),
    "integer features": (TypeError, ("features", "int64", "floating"), (H.long(), Z, Y), {}),
    "integer logits": (TypeError, ("logits", "int32", "floating"), (H, Z.int(), Y), {}),
    "features without a second axis": (
        ValueError,
        ("features", r"\(6,\)", "unsqueeze"),
        (H[:, 0], Z, Y),
        {},
    ),
    "logits without a second axis": (
        ValueError,
        ("logits", r"\(6,\)", "unsqueeze"),
        (H, Z[:, 0], Y),
        {},
    ),
    "one logit under softmax": (
        ValueError,
        ("softmax over one output", "binary_cross_entropy_with_logits", "loss="),
        (H, Z[:, :1], Y),
        {},
    ),
    "a shorter mask": (
        ValueError,
        ("mask", r"\(5,\)", r"\(6,\)", "bool"),
        (H, Z, Y),
        {"mask": torch.ones(5, dtype=torch.bool)},
    ),
    "a token mask on plain logits": (
        ValueError,
        ("mask", r"\(6, 3\)", r"\(6,\)"),
        (H, Z, Y),
        {"mask": torch.ones(N, 3, dtype=torch.bool)},
    ),
    "a mask over other tokens": (
        ValueError,
        ("mask", r"\(6, 2\)", r"\(6, 3\)"),
        (*TOKENS, Y.unsqueeze(1).expand(N, 3)),
        {"mask": torch.ones(N, 2, dtype=torch.bool)},
    ),
    "a mask of numbers": (
        ValueError,
        ("mask", "float32", "bool", "true where"),
        (H, Z, Y),
        {"mask": torch.ones(N)},
    ),
    "a loss that is a mean": (
        ValueError,
        (r"\(\)", "6 samples", 'reduction="none"'),
        (H, Z, Y),
        {"loss": F.cross_entropy},
    ),
    "a loss that is a sum over samples": (
        ValueError,
        (r"\(4,\)", "6 samples", 'reduction="none"'),
        (H, Z, FINE[1]),
        {"loss": lambda z, y: mse(z, y).sum(0)},
    ),
    "features alone": (TypeError, ("features", "logits"), None, {}),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("modality", ["audio", "video"])
def test_bad_observations_name_the_modality_and_the_fix(case: str, modality: str) -> None:
    kind, texts, observed, more = BAD[case]
    vcmm = VCMM(an_optimizer(), loss=more.get("loss", "cross_entropy"))
    h, z, y = (H, Z, Y) if observed is None else observed
    pair: Any = h if observed is None else (h, z)  # "features alone": audio=h, not audio=(h, z)
    with pytest.raises(kind, match=says(f"'{modality}'", *texts)):
        vcmm.observe(y, mask=more.get("mask"), **{modality: pair})


def test_an_unknown_loss_is_refused_where_it_is_named() -> None:
    """Not at the first observation, by a string that cannot be called."""
    with pytest.raises((TypeError, ValueError), match=says("mse", "cross_entropy", "per sample")):
        VCMM(an_optimizer(), loss="mse")  # type: ignore[arg-type]


def test_observe_after_detach() -> None:
    vcmm = VCMM(an_optimizer())
    vcmm.observe(Y, audio=(H, Z))
    vcmm.detach()
    with pytest.raises(ValueError, match=says("audio, video", "no hook", r"attach\(\)")):
        vcmm.observe(Y, audio=(H, Z))
    vcmm.attach()
    vcmm.observe(Y, audio=(H, Z))


def test_a_second_controller_on_the_same_optimizer() -> None:
    optimizer = an_optimizer()
    first = VCMM(optimizer)
    with pytest.raises(ValueError, match=says("audio, video", r"detach\(\)")):
        VCMM(optimizer)
    first.observe(Y, audio=(H, Z))  # the refused one has left nothing behind
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    first.detach()
    VCMM(optimizer)


@pytest.mark.parametrize(("classes", "form"), [(4, "direct"), (40, "gram")])
@pytest.mark.parametrize("order", [("audio", "video"), ("video", "audio")])
@pytest.mark.parametrize("broken", ["features", "name", "target"])
def test_an_error_in_observe_leaves_no_half_observation(
    broken: str, order: tuple[str, str], classes: int, form: Form
) -> None:
    """The right call that follows must not count one modality twice; in either form."""
    n = 16
    target = torch.arange(n) % C

    def run(*, with_error: bool) -> tuple[dict[str, float], int]:
        optimizer = an_optimizer()
        vcmm = VCMM(optimizer)
        for step in range(4):
            z = normal(n, classes, seed=40 + step)
            pairs = {"audio": (normal(n, D, seed=step), z), "video": (normal(n, D, seed=9), z)}
            if with_error and step == 2:
                wrong = dict(pairs)
                if broken == "features":
                    wrong["video"] = (H[:3], z)
                if broken == "name":
                    wrong["text"] = pairs["audio"]
                short = target[:3] if broken == "target" else target
                with pytest.raises(ValueError, match=r"modality"):
                    vcmm.observe(short, **{name: wrong[name] for name in (*order, *wrong)})
            vcmm.observe(target, **pairs)
            samples = vcmm._pool.streams["audio"].extent.samples
            optimizer.step()
            assert vcmm._pool.streams["audio"].form == form
        return vcmm.metrics(), samples

    found, samples = run(with_error=True)
    assert samples == n
    assert (found, samples) == run(with_error=False)
    assert found["discarded"] == 0


# Policies


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"strength": -0.1}, "strength"),
        ({"strength": float("inf")}, "strength"),
        ({"strength": float("nan")}, "strength"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"smoothing": -0.1}, "smoothing"),
        ({"floor": -1e-4}, "floor"),
        ({"floor": float("inf")}, "floor"),
        ({"gain_range": (0.0, 0.3)}, "gain_range"),
        ({"gain_range": (0.01, 1.0)}, "gain_range"),
        ({"gain_range": (0.3, 0.01)}, "gain_range"),
        ({"warmup": -1}, "warmup"),
    ],
)
def test_bad_arguments_of_kalman(settings: dict[str, Any], name: str) -> None:
    ((_, value),) = settings.items()
    text = says("Kalman", name, str(value).replace("(", r"\(").replace(")", r"\)"), "must be")
    with pytest.raises(ValueError, match=text):
        Kalman(**settings)
    with pytest.raises(ValueError, match=text):
        VCMM(an_optimizer(), **settings)


@pytest.mark.parametrize("beta0", [0.5, 0.995])
def test_base_momentum_outside_of_gain_range(beta0: float) -> None:
    text = says("'audio'", str(beta0), "gain_range", r"0\.01, 0\.3", r"\[0\.7, 0\.99\]")
    with pytest.raises(ValueError, match=text):
        VCMM(an_optimizer(beta0))
    with pytest.raises(ValueError, match=text):
        MomentumController(an_optimizer(beta0), Frozen(Kalman(), after=5, average=1))
    # What needs no anchor within the range objects to none.
    for policy in (Kalman(strength=0), Kalman(center=False), Kalman(gain_range=(0.004, 0.6))):
        assert MomentumController(an_optimizer(beta0), policy).betas["audio"] == beta0


@pytest.mark.parametrize("beta0", [0.7, 0.99])
def test_base_momentum_at_the_bounds_of_gain_range_is_within(beta0: float) -> None:
    assert VCMM(an_optimizer(beta0)).betas == {"audio": beta0, "video": beta0}


def test_a_base_momentum_that_leaves_the_gain_range_later() -> None:
    optimizer = an_optimizer()
    vcmm = VCMM(optimizer)
    optimizer.step()
    for group in optimizer.param_groups:
        group["betas"] = (0.6, 0.999)
    with pytest.raises(ValueError, match=says("'audio'", "0.6", "gain_range")):
        optimizer.step()
    assert [group["betas"] for group in optimizer.param_groups] == [(0.6, 0.999)] * 3
    assert vcmm.betas["audio"] == 0.6


@pytest.mark.parametrize("beta", [1.0, -0.1, 1.5, float("nan"), float("inf")])
def test_bad_arguments_of_fixed(beta: float) -> None:
    with pytest.raises(ValueError, match=says("Fixed", "'audio'", str(beta), r"\[0, 1\)")):
        Fixed(audio=beta, video=0.9)


@pytest.mark.parametrize(("after", "average"), [(0, 0), (5, 0), (5, 6), (-1, -1), (0, 1)], ids=str)
def test_bad_arguments_of_frozen(after: int, average: int) -> None:
    text = says("Frozen", f"average is {average}", f"after is {after}", "1 <= average <= after")
    with pytest.raises(ValueError, match=text):
        Frozen(Kalman(), after=after, average=average)


class Says(Policy):
    """A policy that answers whatever it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.answer


NONSENSE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "nan": ({"audio": float("nan")}, ("'audio'", "nan", r"\[0, 1\)")),
    "one": ({"video": 1.0}, ("'video'", r"1\.0", r"\[0, 1\)")),
    "negative": ({"audio": 0.9, "video": -0.2}, ("'video'", r"-0\.2", r"\[0, 1\)")),
    "another modality": ({"text": 0.9}, ("'text'", "audio, video")),
    "a word": ({"audio": "high"}, ("'audio'", "high", r"\[0, 1\)")),
    "nothing of a modality": ({"audio": None}, ("'audio'", "None", r"\[0, 1\)")),
    "no answer": (None, ("None", "audio, video")),
    "a number": (0.9, (r"0\.9", "audio, video")),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_a_policy_that_returns_nonsense_is_named_and_nothing_is_written(case: str) -> None:
    answer, texts = NONSENSE[case]
    optimizer = an_optimizer()
    before = [dict(group, params=None) for group in optimizer.param_groups]
    parameters = [p.detach().clone() for g in optimizer.param_groups for p in g["params"]]
    controller = MomentumController(optimizer, Says(answer))
    with pytest.raises((TypeError, ValueError), match=says("Says", *texts)):
        optimizer.step()
    assert controller.betas == {"audio": 0.9, "video": 0.9}
    assert [dict(group, params=None) for group in optimizer.param_groups] == before
    now = [p for g in optimizer.param_groups for p in g["params"]]
    assert all(torch.equal(a, b) for a, b in zip(parameters, now, strict=True))
    # With a sensible answer it goes on as if nothing had been.
    controller.policy = Fixed(audio=0.8)
    optimizer.step()
    assert controller.betas == {"audio": 0.8, "video": 0.9}


def test_a_tensor_is_a_number_too() -> None:
    optimizer = an_optimizer()
    controller = MomentumController(optimizer, Says({"audio": torch.tensor(0.75), "video": 0}))
    optimizer.step()
    assert controller.betas == {"audio": 0.75, "video": 0.0}


def test_unknown_arguments_are_not_swallowed() -> None:
    for build in (VCMM, partial(MomentumController, policy=Kalman())):
        make: Callable[..., Any] = build
        with pytest.raises(TypeError, match="strenght"):
            make(an_optimizer(), strenght=1.0)


# Heads


def test_slices_and_heads_that_do_not_go_together() -> None:
    with pytest.raises(ValueError, match=says("slices need", "heads=")):
        VCMM(an_optimizer(), slices={"audio": slice(0, 5)})
    with pytest.raises(ValueError, match=says("slices", "audio")):
        VCMM(an_optimizer(), heads=nn.Linear(2 * D, C))
    with pytest.raises(ValueError, match=says("slices go with a single")):
        VCMM(an_optimizer(), heads={"audio": nn.Linear(D, C)}, slices={"audio": slice(0, 5)})
    with pytest.raises(ValueError, match=says("'video'", "slice", "10 inputs")):
        VCMM(
            an_optimizer(),
            heads=nn.Linear(2 * D, C),
            slices={"audio": slice(0, 5), "video": slice(10, 15)},
        )
    head = nn.Linear(D, C)
    with pytest.raises(ValueError, match=says("'audio'", "'video'", "same head", r"observe\(")):
        VCMM(an_optimizer(), heads={"audio": head, "video": head})


def test_observe_before_any_head_was_called() -> None:
    vcmm = VCMM(an_optimizer(), heads={"audio": nn.Linear(D, C), "video": nn.Linear(D, C)})
    with pytest.raises(RuntimeError, match=says("no head", "training mode")):
        vcmm.observe(Y)
