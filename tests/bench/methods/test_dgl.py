"""DGL: the fused loss trains the fusion, every encoder learns alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.method import total
from vcmm.bench.methods.dgl import DGL, fused_logits, lone_logits


def test_by_hand_on_one_weight_per_module() -> None:
    """h_m = a_m x_m and z = (w_1 h_1 + w_2 h_2 + b, 0, 0), for one sample of class 0."""
    model, optimizer = kit.small(2, "concat", inputs=1, width=1)
    with torch.no_grad():
        model.encoders["audio"].weight.fill_(0.5)
        model.encoders["flow"].weight.fill_(-1.0)
        model.fusion.head.weight.copy_(torch.tensor([[2.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
        model.fusion.head.bias.copy_(torch.tensor([0.25, 0.0, 0.0]))
    batch = kit.some(model, 1, inputs=1)
    batch.inputs["audio"].fill_(3.0)
    batch.inputs["flow"].fill_(2.0)
    gradients = kit.gradients(DGL(model, optimizer, alpha=4.0, clip=None), batch)

    def pull(score: float) -> float:  # dCE/dz_0 at z = (score, 0, 0)
        e = torch.tensor(score, dtype=torch.float64).exp().item()
        return e / (e + 2) - 1

    # Features are 1.5 and -2; z_0 is 3 - 2 + .25 together, 3 + .25 and -2 + .25 alone: the whole b.
    together, audio, flow = pull(1.25), pull(3.25), pull(-1.75)
    head = gradients["fusion.head.weight"][0]
    assert head.tolist() == pytest.approx([together * 1.5, together * -2.0], rel=1e-12)
    assert gradients["fusion.head.bias"][0].item() == pytest.approx(together, rel=1e-12)
    own = [gradients[f"encoders.{m}.weight"].item() for m in ("audio", "flow")]
    assert own == pytest.approx([4 * audio * 2.0 * 3.0, 4 * flow * 1.0 * 2.0], rel=1e-12)


@pytest.mark.parametrize("modalities", [2, 3, 5])
@pytest.mark.parametrize("fusion", ["concat", "mean", "gated", "shared"])
def test_the_gradients_are_those_of_two_separate_backwards(modalities: int, fusion: str) -> None:
    model, optimizer = kit.small(modalities, fusion)
    batch = kit.some(model)
    expected: dict[str, torch.Tensor] = {}
    features = model(batch.inputs).features
    own = {
        m: model.fusion({k: h if k == m else h * 0 for k, h in features.items()})[1]
        for m in features
    }
    (2.5 * total({m: F.cross_entropy(z, batch.target) for m, z in own.items()})).backward()
    for name, parameter in model.encoders.named_parameters():
        expected[f"encoders.{name}"] = parameter.grad.clone()
    model.zero_grad()
    F.cross_entropy(model(batch.inputs).fused, batch.target).backward()
    for name, parameter in model.fusion.named_parameters():
        expected[f"fusion.{name}"] = parameter.grad.clone()
    model.zero_grad()
    found = kit.gradients(DGL(model, optimizer, alpha=2.5, clip=None), batch)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.allclose(gradient, expected[name], rtol=1e-10, atol=1e-14), name


def test_neither_loss_reaches_the_other_side() -> None:
    model, _ = kit.small(3, "concat")
    features = model(kit.some(model).inputs).features
    fused = fused_logits(model.fusion, features).sum()
    own = total({m: z.sum() for m, z in lone_logits(model.fusion, features).items()})
    for value, parts in ((fused, model.encoders), (own, model.fusion)):
        reached = torch.autograd.grad(value, list(parts.parameters()), allow_unused=True)
        assert all(gradient is None for gradient in reached)


def test_all_gradients_together_are_clipped() -> None:
    def norm(clip: float | None) -> float:
        model, optimizer = kit.small(2, "concat")
        found = kit.gradients(DGL(model, optimizer, clip=clip), kit.some(model))
        return torch.stack([g.square().sum() for g in found.values()]).sum().sqrt().item()

    whole = norm(None)
    assert norm(whole / 3) == pytest.approx(whole / 3, rel=1e-4)
    assert norm(whole * 3) == pytest.approx(whole, rel=1e-12)


def test_published_settings_are_the_defaults() -> None:
    method = DGL(*kit.small())
    assert (method.alpha, method.clip) == (4.0, 40.0)


@pytest.mark.parametrize("bad", [{"alpha": 0.0}, {"alpha": -1.0}, {"clip": 0.0}, {"clip": -2.0}])
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        DGL(*kit.small(), **bad)


def test_one_modality_and_several_labels() -> None:
    model, optimizer = kit.small(1, "concat")
    method = DGL(model, optimizer, F.binary_cross_entropy_with_logits)
    batch = kit.some(model)
    labels = F.one_hot(batch.target, kit.CLASSES).double()
    assert method.step(type(batch)(batch.inputs, labels, batch.index))["loss"].isfinite()


def test_one_forward_and_one_backward_a_step() -> None:
    method = DGL(*kit.small())
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 1, "updates": 1}


@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_stopped_training_goes_on_bitwise(controller: str, optimizer: str) -> None:
    axes = {"controller": controller, "optimizer": optimizer}
    assert kit.differences_of_resume(kit.spec("dgl", 3, axes=axes), 2) == []


def test_renaming_modalities_renames_the_losses() -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("dgl", 3), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-9)


def test_it_learns() -> None:
    _, losses = toys.trained(kit.spec("dgl", axes={"epochs": 40}))
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
