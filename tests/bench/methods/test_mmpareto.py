"""MMPareto: two objectives per encoder, without conflict."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench import lists
from vcmm.bench.lists import lengths
from vcmm.bench.methods.mmpareto import MMPareto, combine_, integrate_, share


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def shared(*pairs: tuple[Tensor, Tensor]) -> float:
    """k0 of an encoder whose tensors have these g0 and g1."""
    joint, own = (list(each) for each in zip(*pairs, strict=True))
    both = [a + b for a, b in pairs]
    return share(lengths(joint), lengths(own), lengths(both)).item()


def integrated(joint: Tensor, own: Tensor, gamma: float) -> Tensor:
    """The gradient of an encoder of one tensor."""
    found = joint.clone()
    integrate_([found], [own.clone()], gamma)
    return found


def test_numbers_of_the_paper() -> None:
    joint, own = tensor(1, 0), tensor(-1, 2)
    assert shared((joint, own)) == pytest.approx(0.75)
    assert integrated(joint, own, 1.0).tolist() == pytest.approx([math.sqrt(2)] * 2)
    assert integrated(joint, own, 1.5).tolist() == pytest.approx([2.1213203, 2.1213203], abs=1e-7)


def test_where_gradients_agree_they_are_added_up() -> None:
    joint, own = tensor(1, 2), tensor(3, -1)
    assert shared((joint, own)) == 0.5
    assert integrated(joint, own, 1.5).tolist() == pytest.approx([6.0, 1.5])


def test_conflict_is_judged_over_the_whole_encoder() -> None:
    pairs = [(tensor(1, 0), tensor(-1, 2)), (tensor(3), tensor(2))]  # -1 and 6
    assert shared(*pairs) == 0.5
    pairs = [(tensor(1, 0), tensor(-1, 2)), (tensor(3), tensor(-2))]
    joint, own = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
    grid = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    norms = (grid[:, None] * joint + (1 - grid[:, None]) * own).square().sum(dim=1)
    assert shared(*pairs) == pytest.approx(grid[norms.argmin()].item(), abs=1e-5)


def test_shares_have_bounds_and_zeros_are_no_trouble() -> None:
    zero = tensor(0, 0)
    assert shared((zero, tensor(1, 2))) == 0.999
    assert shared((tensor(1, 2), zero)) == 0.001
    assert integrated(zero, zero, 1.5).tolist() == [0.0, 0.0]
    assert integrated(tensor(2), tensor(-1), 1.5).isfinite().all()


def test_a_short_combination_is_made_longer_and_a_long_one_is_left() -> None:
    joint, own = tensor(1, 0), tensor(0, 3)
    for k, longer in ((0.9, True), (0.5, False), (0.05, False)):
        combined = 2 * k * joint + 2 * (1 - k) * own
        expected = max(combined.norm(), (joint + own).norm())
        assert (expected > combined.norm()) == longer
        found = joint.clone()
        combine_([found], [own.clone()], lengths([joint + own]), tensor(k)[0], 1.0)
        assert found.norm().item() == pytest.approx(expected.item())
        assert F.cosine_similarity(found, combined, dim=0).item() == pytest.approx(1.0)


@pytest.mark.parametrize("numbers", [1, 4, 1000])
def test_blocks_change_nothing(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "CACHED", numbers)
    chance = torch.Generator().manual_seed(0)
    joint, own = ([torch.randn(n, generator=chance).double() for n in (1, 3, 2, 5)] for _ in "01")
    blocks = list(lists.blocks(joint))
    assert len(blocks) == {1: 4, 4: 2, 1000: 1}[numbers]
    assert [x for block in blocks for x in joint[block]] == joint
    k = shared(*zip(joint, own, strict=True))
    found = [x.clone() for x in joint]
    integrate_(found, [x.clone() for x in own], 1.5)
    for a, b, g in zip(joint, own, found, strict=True):
        n = 2 * k * a + 2 * (1 - k) * b
        assert torch.allclose(g, 1.5 * max((a + b).norm() / n.norm(), 1.0) * n, rtol=1e-12)


def by_a_backward_per_loss(
    method: MMPareto, batch: kit.Batch
) -> tuple[dict[str, Tensor], list[bool]]:
    """The same gradients, slowly, with encoders flattened; and which encoders have a conflict."""
    model = method.model
    parameters = dict(model.named_parameters())

    def gradients(name: str) -> dict[str, Tensor]:
        model.zero_grad()
        output = model(batch.inputs)
        logits = output.fused if name == "fused" else output.logits[name]
        F.cross_entropy(logits, batch.target).backward()
        return {
            n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for n, p in parameters.items()
        }

    each = {name: gradients(name) for name in ("fused", *model.modalities)}
    model.zero_grad()
    found = {n: sum(g[n] for g in each.values()) for n in parameters if n.startswith("fusion")}
    conflicts: list[bool] = []
    for m in model.modalities:
        names = [n for n in parameters if n.startswith(f"encoders.{m}.")]
        joint, own = (torch.cat([each[k][n].flatten() for n in names]) for k in ("fused", m))
        k = 0.5
        conflicts.append(bool(F.cosine_similarity(joint, own, dim=0) <= 0))
        if conflicts[-1]:
            k = float((own @ own - joint @ own) / (joint - own).square().sum())
            k = min(max(k, 0.001), 0.999)
        for n in names:
            a, b = each["fused"][n], each[m][n]
            combined = 2 * k * a + 2 * (1 - k) * b
            found[n] = 1.5 * max((a + b).norm() / combined.norm(), 1.0) * combined
    return found, conflicts


@pytest.mark.parametrize("modalities", [2, 3, 5])
@pytest.mark.parametrize("fusion", ["branches", "gated"])
def test_the_gradients_are_those_of_a_backward_per_loss(modalities: int, fusion: str) -> None:
    conflicts: list[bool] = []
    for seed in range(6):
        model, _ = kit.small(modalities, fusion)
        for m in model.modalities:
            layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
            model.encoders[m] = layers
        method = MMPareto(model, torch.optim.SGD(model.parameters(), lr=0.1))
        batch = kit.some(model, seed=seed)
        expected, found_conflicts = by_a_backward_per_loss(method, batch)
        conflicts += found_conflicts
        found = kit.gradients(method, batch)
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            assert torch.allclose(gradient, expected[name], rtol=1e-8, atol=1e-14), name
    assert not all(conflicts)
    assert any(conflicts) == (fusion == "branches")  # elsewhere all logits come from one layer


def test_by_hand_on_two_weights_in_conflict() -> None:
    """h = (a_1 x, a_2 x); the joint head sees h_1, the own one wants less of it and more of h_2."""
    model, optimizer = kit.small(1, "branches", inputs=1, width=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.encoders["audio"].weight.copy_(torch.tensor([[0.5], [0.25]]))
        model.fusion.joint.weight[0, 0] = 2.0
        model.fusion.heads["audio"].weight[0].copy_(torch.tensor([-1.0, 4.0]))
    batch = kit.some(model, 1, inputs=1)
    batch.inputs["audio"].fill_(3.0)
    found = kit.gradients(MMPareto(model, optimizer), batch)

    def pull(score: float) -> float:  # dCE/dz_0 at z = (score, 0, 0), for class 0
        return math.exp(score) / (math.exp(score) + 2) - 1

    # h = (1.5, .75), so z_0 is 3 together and -1.5 + 3 alone.
    g0 = [pull(3.0) * 2.0 * 3.0, 0.0]
    g1 = [pull(1.5) * -1.0 * 3.0, pull(1.5) * 4.0 * 3.0]
    assert g0[0] * g1[0] < 0
    k = (g1[0] ** 2 + g1[1] ** 2 - g0[0] * g1[0]) / ((g0[0] - g1[0]) ** 2 + g1[1] ** 2)
    n = [2 * k * a + 2 * (1 - k) * b for a, b in zip(g0, g1, strict=True)]
    longer = math.hypot(g0[0] + g1[0], g1[1]) / math.hypot(*n)
    assert longer > 1
    expected = [1.5 * longer * x for x in n]
    assert found["encoders.audio.weight"].flatten().tolist() == pytest.approx(expected, rel=1e-12)
    assert found["fusion.joint.weight"][0].tolist() == pytest.approx(
        [pull(3) * 1.5, pull(3) * 0.75]
    )
    own = found["fusion.heads.audio.weight"][0].tolist()
    assert own == pytest.approx([pull(1.5) * 1.5, pull(1.5) * 0.75])


def test_a_frozen_encoder_stays_as_it_is() -> None:
    model, optimizer = kit.small(2, "branches")
    model.encoders["flow"].requires_grad_(False)
    before = model.encoders["flow"].weight.clone()
    MMPareto(model, optimizer).step(kit.some(model))
    assert torch.equal(model.encoders["flow"].weight, before)
    assert model.encoders["flow"].weight.grad is None


def test_several_labels_in_a_loop_of_ones_own() -> None:
    model, optimizer = kit.small(3, "branches")
    method = MMPareto(model, optimizer, F.binary_cross_entropy_with_logits)
    batch = kit.some(model)
    labels = F.one_hot(batch.target, kit.CLASSES).double()
    steps = [method.step(kit.Batch(batch.inputs, labels, batch.index)) for _ in range(30)]
    assert steps[-1]["loss"] < steps[0]["loss"]


@pytest.mark.parametrize("gamma", [0.0, -1.5])
def test_bad_settings_are_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match="mmpareto: gamma is"):
        MMPareto(*kit.small(), gamma=gamma)


@pytest.mark.parametrize("modalities", [1, 2, 6])
def test_one_forward_and_two_backwards_a_step(modalities: int) -> None:
    method = MMPareto(*kit.small(modalities, "branches"))
    report = method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 2, "updates": 1}
    names = {f"loss/{m}" for m in method.model.modalities}
    assert report.keys() == {"loss", "loss/fused"} | names


@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize(("optimizer", "steps"), [("adam", 2), ("sgd", 5)])
def test_a_stopped_training_goes_on_bitwise(controller: str, optimizer: str, steps: int) -> None:
    axes: dict[str, Any] = {"controller": controller, "optimizer": optimizer}
    assert kit.differences_of_resume(kit.spec("mmpareto", 3, axes=axes), steps) == []


def test_renaming_modalities_renames_the_losses() -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("mmpareto", 3), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-9)


def test_it_learns() -> None:
    _, losses = toys.trained(kit.spec("mmpareto", axes={"epochs": 40}))
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
