"""`modal_groups`: every parameter in exactly one group, and every group with its modality."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcmm import VCMM, modal_groups

Group = dict[str, Any]


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 5)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fusion = nn.Linear(10, 3)
        self.encoders = nn.ModuleDict({"audio": Encoder(2), "video": Encoder(3)})
        self.audio_head = nn.Linear(5, 3)
        self.token = nn.Parameter(torch.zeros(1, 5))

    @property
    def audio(self) -> nn.Module:
        return self.encoders["audio"]

    @property
    def video(self) -> nn.Module:
        return self.encoders["video"]


def members(model: nn.Module, groups: list[Group]) -> dict[str, list[str]]:
    """Per group name the names of its parameters."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {group["name"]: [names[id(p)] for p in group["params"]] for group in groups}


def assert_partition(model: nn.Module, groups: list[Group]) -> None:
    found = [id(p) for group in groups for p in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in model.parameters()}


AUDIO = [f"encoders.audio.{name}" for name, _ in Encoder(2).named_parameters()]
VIDEO = [f"encoders.video.{name}" for name, _ in Encoder(3).named_parameters()]
REST = ["token", "fusion.weight", "fusion.bias", "audio_head.weight", "audio_head.bias"]


def test_groups_are_named_and_tagged_and_the_rest_is_shared() -> None:
    model = Model()
    groups = modal_groups(model, audio=model.audio, video=model.video)
    assert members(model, groups) == {"audio": AUDIO, "video": VIDEO, "shared": REST}
    assert [group["modality"] for group in groups] == ["audio", "video", None]
    assert all(group.keys() == {"params", "name", "modality"} for group in groups)
    assert_partition(model, groups)


CLAIMS: dict[str, Callable[[Model], Any]] = {
    "module": lambda model: model.audio,
    "list of modules": lambda model: [model.audio.conv, model.audio.norm, model.audio.out],
    "module list": lambda model: nn.ModuleList([model.audio]),
    "modules and parameters": lambda model: [
        model.audio.conv,
        model.audio.out.bias,
        model.audio.norm,
        model.audio.out.weight,
    ],
    "parameters": lambda model: list(model.audio.parameters()),
    "tuple": lambda model: tuple(model.audio.parameters()),
    "set": lambda model: set(model.audio.parameters()),
    "generator of parameters": lambda model: model.audio.parameters(),
    "generator of modules": lambda model: model.audio.children(),
    "pattern": lambda model: "encoders.audio.*",
    "pattern in the middle": lambda model: "*.audio.*",
    "the same twice": lambda model: [model.audio, model.audio.conv, model.audio.conv.weight],
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_every_kind_of_claim_gives_the_same_groups(kind: str) -> None:
    """In the order of the model, whichever order the claim has."""
    model = Model()
    groups = modal_groups(model, audio=CLAIMS[kind](model), video="encoders.video.*")
    assert members(model, groups) == {"audio": AUDIO, "video": VIDEO, "shared": REST}
    assert_partition(model, groups)


def test_a_claim_may_mix_what_lies_apart() -> None:
    model = Model()
    groups = modal_groups(
        model, audio=[model.audio, model.audio_head, model.token], video=model.video
    )
    found = members(model, groups)
    assert set(found["audio"]) == {*AUDIO, "audio_head.weight", "audio_head.bias", "token"}
    assert found["shared"] == ["fusion.weight", "fusion.bias"]
    assert_partition(model, groups)


def test_patterns_match_whole_names_and_case() -> None:
    model = Model()
    exact = modal_groups(model, audio="audio_head.weight")
    assert members(model, exact)["audio"] == ["audio_head.weight"]
    sets = modal_groups(model, audio="audio_head.[bw]*", video="encoders.video.conv.?ias")
    assert members(model, sets)["audio"] == ["audio_head.weight", "audio_head.bias"]
    assert members(model, sets)["video"] == ["encoders.video.conv.bias"]
    for nothing in ("audio_head", "head.*", "Audio_head.*", ""):
        with pytest.raises(ValueError, match="'audio': no parameter name matches"):
            modal_groups(model, audio=nothing)


def test_order_of_keywords_is_the_order_of_groups_and_of_nothing_else() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("c", "a", "b", "rest")})
    claims = {name: model[name] for name in "abc"}
    expected = {name: [f"{name}.weight", f"{name}.bias"] for name in "abc"}
    for order in itertools.permutations("abc"):
        groups = modal_groups(model, **{name: claims[name] for name in order})
        assert [group["name"] for group in groups] == [*order, "shared"]
        found = members(model, groups)
        assert {name: found[name] for name in "abc"} == expected


def test_there_is_no_shared_group_where_nothing_is_left() -> None:
    model = nn.ModuleDict({"audio": nn.Linear(2, 2), "video": nn.Linear(2, 2)})
    for decay_filter in (False, True):
        groups = modal_groups(
            model, decay_filter=decay_filter, audio=model["audio"], video=model["video"]
        )
        assert {group["modality"] for group in groups} == {"audio", "video"}
        assert_partition(model, groups)


def test_frozen_parameters_are_kept() -> None:
    """They may be thawed later, and a checkpoint must fit either way."""
    model = Model()
    before = members(model, modal_groups(model, audio=model.audio, video=model.video))
    model.audio.requires_grad_(False)
    model.fusion.weight.requires_grad_(False)
    groups = modal_groups(model, audio=model.audio, video="encoders.video.*")
    assert members(model, groups) == before
    assert_partition(model, groups)


def test_buffers_are_no_parameters() -> None:
    model = Model()
    pattern = modal_groups(model, audio="encoders.audio.norm.*")
    assert members(model, pattern)["audio"] == [
        "encoders.audio.norm.weight",
        "encoders.audio.norm.bias",
    ]


# Weight decay


def test_decay_filter_true_is_matrices_against_biases_and_norms() -> None:
    model = Model()
    groups = modal_groups(model, decay_filter=True, audio=model.audio, video=model.video)
    found = members(model, groups)
    assert list(found) == [
        "audio/decay",
        "audio/no_decay",
        "video/decay",
        "video/no_decay",
        "shared/decay",
        "shared/no_decay",
    ]
    assert found["audio/decay"] == ["encoders.audio.conv.weight", "encoders.audio.out.weight"]
    assert set(found["audio/no_decay"]) == set(AUDIO) - set(found["audio/decay"])
    assert found["shared/decay"] == ["token", "fusion.weight", "audio_head.weight"]
    assert [group["modality"] for group in groups] == 2 * ["audio"] + 2 * ["video"] + 2 * [None]
    for group in groups:
        decays = group["name"].endswith("/decay")
        assert ("weight_decay" in group) != decays  # the optimizer's own default where it decays
        assert group.get("weight_decay", 0.0) == 0.0
    assert_partition(model, groups)


def test_decay_filter_is_a_function_of_name_and_parameter() -> None:
    model = Model()
    seen: dict[str, nn.Parameter] = {}

    def decays(name: str, parameter: nn.Parameter) -> bool:
        seen[name] = parameter
        return name.endswith("weight") and "norm" not in name

    groups = modal_groups(model, decay_filter=decays, audio=model.audio, video=model.video)
    names = dict(model.named_parameters())
    assert seen.keys() == names.keys()
    assert all(seen[name] is names[name] for name in names)
    found = members(model, groups)
    assert found["audio/decay"] == ["encoders.audio.conv.weight", "encoders.audio.out.weight"]
    assert found["shared/no_decay"] == ["token", "fusion.bias", "audio_head.bias"]
    assert_partition(model, groups)


def test_decay_filter_makes_no_empty_groups() -> None:
    model = nn.ModuleDict({"audio": nn.Linear(2, 2, bias=False), "video": nn.LayerNorm(2)})
    groups = modal_groups(model, decay_filter=True, audio=model["audio"], video=model["video"])
    assert members(model, groups) == {
        "audio/decay": ["audio.weight"],
        "video/no_decay": ["video.weight", "video.bias"],
    }


def test_decay_groups_of_a_modality_move_together() -> None:
    model = Model()
    groups = modal_groups(model, decay_filter=True, audio=model.audio, video=model.video)
    optimizer = torch.optim.AdamW(groups, weight_decay=0.3)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0] * 3
    vcmm = VCMM(optimizer)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        pairs = {
            name: (torch.randn(6, 5, generator=generator), torch.randn(6, 3, generator=generator))
            for name in ("audio", "video")
        }
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        vcmm.observe(torch.arange(6) % 3, **pairs)
        optimizer.step()
    shown = {g["name"]: g.get("vcmm_beta") for g in optimizer.param_groups}
    betas = vcmm.betas
    assert betas["audio"] != betas["video"]
    assert shown["audio/decay"] == shown["audio/no_decay"] == betas["audio"]
    assert shown["video/decay"] == shown["video/no_decay"] == betas["video"]
    assert shown["shared/decay"] is shown["shared/no_decay"] is None
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0] * 3


# Tied weights


def tied() -> nn.ModuleDict:
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("audio", "video", "text")})
    model["video"].weight = model["audio"].weight
    return model


def test_a_tied_weight_lands_in_one_group_by_either_of_its_names() -> None:
    for claim in ("audio.*", "video.*", "video.weight"):
        model = tied()
        groups = modal_groups(model, one=claim, text=model["text"])
        assert model["audio"].weight in set(groups[0]["params"])
        assert_partition(model, groups)


def test_a_weight_tied_within_a_modality_is_claimed_once() -> None:
    model = tied()
    groups = modal_groups(model, both=[model["audio"], model["video"]], text=model["text"])
    assert members(model, groups)["both"] == ["audio.weight", "audio.bias", "video.bias"]
    assert_partition(model, groups)


def test_a_weight_tied_across_modalities_must_be_left_to_one_of_them() -> None:
    model = tied()
    for second in (model["video"], "video.*"):
        with pytest.raises(ValueError, match=r"'audio\.weight' .*'audio' .*'video'"):
            modal_groups(model, audio=model["audio"], video=second)
    groups = modal_groups(model, audio=[model["audio"].bias], video="video.bias")
    assert members(model, groups)["shared"] == ["audio.weight", "text.weight", "text.bias"]
    assert_partition(model, groups)


# As torch's optimizers take them


@pytest.mark.parametrize("decay_filter", [False, True])
def test_groups_go_into_a_torch_optimizer_and_its_checkpoint(decay_filter: bool) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(
        modal_groups(model, decay_filter=decay_filter, audio=model.audio, video=model.video),
        lr=1e-2,
    )
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    saved = optimizer.state_dict()
    assert [g["modality"] for g in saved["param_groups"]] == [
        g["modality"] for g in optimizer.param_groups
    ]
    again = torch.optim.AdamW(
        modal_groups(model, decay_filter=decay_filter, audio=model.audio, video=model.video)
    )
    again.load_state_dict(saved)
    assert [g["lr"] for g in again.param_groups] == [1e-2] * len(again.param_groups)


def test_group_settings_may_be_added_by_hand() -> None:
    model = Model()
    groups = modal_groups(model, audio=model.audio, video=model.video)
    groups[0]["lr"] = 0.5
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1, 0.1]


# What is refused


def test_no_modality_at_all() -> None:
    with pytest.raises(ValueError, match=r"no modality was named; .*audio=model\.audio"):
        modal_groups(Model())


@pytest.mark.parametrize("name", ["shared", "mask"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    """`mask` would be the mask in observe(target, mask=...), and could never be observed."""
    model = Model()
    with pytest.raises(ValueError, match=rf"'{name}'.*choose another"):
        modal_groups(model, audio=model.audio, **{name: model.video})


@pytest.mark.parametrize("name", ["self", "target", "model", "loss", "beta", "a/b", "größe", "2d"])
def test_any_other_name_works_all_the_way(name: str) -> None:
    model = Model()
    groups = modal_groups(model, **{"audio": model.audio, name: model.video})
    optimizer = torch.optim.Adam(groups)
    vcmm = VCMM(optimizer)
    pair: tuple[Tensor, Tensor] = (torch.randn(4, 5), torch.randn(4, 3))
    vcmm.observe(torch.tensor([0, 1, 2, 0]), **{name: pair})
    optimizer.step()
    assert vcmm.metrics()[f"{name}/R"] > 0
    assert vcmm.betas.keys() == {"audio", name}


def test_a_module_of_another_model() -> None:
    model = Model()
    with pytest.raises(ValueError, match=r"'audio' claims .*\(4, 2, 3\).*does not hold"):
        modal_groups(model, audio=Model().audio, video=model.video)


@pytest.mark.parametrize(
    "claim",
    [nn.ReLU(), [], (p for p in ()), [nn.ReLU(), nn.Flatten()]],
    ids=["module", "list", "generator", "modules"],
)
def test_a_claim_of_nothing(claim: Any) -> None:
    model = Model()
    with pytest.raises(ValueError, match=r"'audio' claims nothing .*pass parameters\(\) anew"):
        modal_groups(model, audio=claim, video=model.video)


def test_a_generator_that_was_used_before() -> None:
    model = Model()
    parameters = model.audio.parameters()
    modal_groups(model, audio=parameters, video=model.video)
    with pytest.raises(ValueError, match="'audio' claims nothing"):
        modal_groups(model, audio=parameters, video=model.video)


@pytest.mark.parametrize(
    ("claim", "kind"),
    [
        (["encoders.audio.*"], "str"),
        ([torch.zeros(2)], "Tensor"),
        ([nn.Linear(1, 1), None], "NoneType"),
        (nn.Parameter(torch.zeros(2)), ""),
        (None, "NoneType"),
        (3, "int"),
    ],
    ids=["patterns", "tensors", "with None", "a bare parameter", "None", "a number"],
)
def test_a_claim_of_another_type(claim: Any, kind: str) -> None:
    model = Model()
    with pytest.raises(TypeError, match=rf"'audio' claims a {kind}.*may claim a module"):
        modal_groups(model, audio=claim, video=model.video)
