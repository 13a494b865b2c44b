"""AUG: a modality that lags is given another branch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm import Fixed, MomentumController
from vcmm.bench.method import groups, total
from vcmm.bench.methods.aug import AUG, boosting_loss, lagging
from vcmm.bench.train import group_counts

TARGET = torch.tensor([0])


def double(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def growing(modalities: int = 2, **options: object) -> AUG:
    return AUG(*kit.small(modalities, "growing"), **options)


def test_the_loss_of_the_specification() -> None:
    terms = boosting_loss([double(0.5, 0, 0), double(0.2, 0.1, 0)], TARGET, 0.5)
    values = {name: term.item() for name, term in terms.items()}
    expected = {
        "all": 0.7155918733,
        "before": 0.7943767694,
        "last": 1.0019428482,
        "known": -0.2263703313,
    }
    assert values == pytest.approx(expected, abs=1e-9)
    assert total(terms).item() == pytest.approx(2.2855411596, abs=1e-9)


def test_one_branch_is_plain_cross_entropy() -> None:
    terms = boosting_loss([double(0.5, 0, 0)], TARGET, 0.5)
    assert total(terms).item() == pytest.approx(0.7943767694, abs=1e-9)


def test_the_sum_of_the_elders_is_held_fixed_in_the_target_alone() -> None:
    before, last = double(0.5, 0, 0).requires_grad_(), double(0.2, 0.1, 0).requires_grad_()
    total(boosting_loss([before, last], TARGET, 0.5)).backward()
    truth = F.one_hot(TARGET, 3).double()
    o, a, z = (x.detach().softmax(dim=1) for x in (before, last, before + last))
    known = truth * o
    on_last = (z - truth) + (a - truth) - 0.5 * (a * known.sum() - known)
    assert torch.allclose(before.grad, (z - truth) + (o - truth), rtol=1e-12)
    assert torch.allclose(last.grad, on_last, rtol=1e-12)


def test_who_lags() -> None:
    def of(**values: float) -> str | None:
        return lagging({m: torch.tensor(v) for m, v in values.items()}, 0.01)

    assert of(audio=2.0, video=1.0) == "video"
    assert of(audio=1.0, video=2.0) == "audio"
    assert of(audio=1.005, video=1.0) is None
    assert of(audio=1.0, video=1.0) is None
    assert of(audio=3.0, video=1.0, text=0.5) == "text"


@pytest.mark.parametrize("modalities", [2, 3])
def test_a_step_is_that_of_a_slow_loop(modalities: int) -> None:
    """Later modalities meet the head as the earlier ones have left it."""
    method = growing(modalities)
    model = method.model
    batch = kit.some(model)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    method.step(batch)
    after = dict(model.named_parameters())
    values = dict(before)
    for m in model.modalities:
        names = [f"encoders.{m}.weight", f"fusion.branches.{m}.0.weight"]
        names += [f"fusion.branches.{m}.0.bias", "fusion.head.weight", "fusion.head.bias"]
        encoder, u, c, w, b = (values[name].clone().requires_grad_() for name in names)
        old = before[names[0]].clone().requires_grad_()  # the features were made at the start
        z = ((batch.inputs[m] @ old.T) @ u.T + c).relu() @ w.T + b
        found = torch.autograd.grad(F.cross_entropy(z, batch.target), [old, u, c, w, b])
        pairs = zip(names, (encoder, u, c, w, b), found, strict=True)
        values |= {name: (value - 0.1 * gradient).detach() for name, value, gradient in pairs}
    for name, value in values.items():
        assert torch.allclose(after[name], value, rtol=1e-9, atol=1e-14), name


@pytest.mark.parametrize("as_released", [False, True])
def test_the_one_that_lags_grows_after_epoch_0_and_then_every_so_often(as_released: bool) -> None:
    method = growing(every=3, as_released=as_released)
    data = toys.data_of(kit.spec("aug"))
    sizes: list[int] = []
    for epoch in range(8):
        method.begin_epoch(epoch, data)
        sizes.append(method.growing.size("flow"))
        method.scores.copy_(torch.tensor([20.0, 10.0]))  # of audio and flow
    assert sizes == [1, 2, 2, 3, 3, 3, 4, 4]
    assert method.growing.size("audio") == 1
    counted = group_counts([method.optimizer])
    for branch in method.growing.branches["flow"][1:]:
        assert branch.weight.requires_grad != as_released
        assert counted.get(branch.weight, 0) == (0 if as_released else 1)


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_new_branch_learns_unless_as_released(as_released: bool, optimizer: str) -> None:
    axes = {"epochs": 3, "optimizer": optimizer}
    spec = kit.spec("aug", every=1, margin=0.0, as_released=as_released, axes=axes)
    training = toys.built(spec)
    told = toys.events(training, spec)
    growing = training.method.growing
    while all(growing.size(m) == 1 for m in ("m1", "m2")):
        next(told)
    (modality,) = [m for m in ("m1", "m2") if growing.size(m) > 1]
    newest = growing.branches[modality][1]
    before = newest.weight.detach().clone()
    next(told)
    assert torch.equal(newest.weight, before) == as_released


def test_a_sample_is_scored_by_the_probability_of_its_class() -> None:
    method = growing()
    batch = kit.some(method.model)
    first = method.model.modalities[0]
    p = method.model(batch.inputs).logits[first].softmax(dim=1)
    method.step(batch)
    expected = p[torch.arange(4), batch.target].sum().item()
    assert method.scores[0].item() == pytest.approx(expected, rel=1e-5)


def test_a_new_branch_takes_nothing_from_the_randomness_of_all() -> None:
    method = growing()
    before = torch.get_rng_state()
    method.growing.grow("audio", method.generator("branches"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}])
def test_it_grows_with_torchs_own_sgd_in_a_loop_of_ones_own(
    options: dict[str, bool], controlled: bool
) -> None:
    """All of its kernels, of which the fused one takes no parameter without momentum by itself."""

    def grown(options: dict[str, bool]) -> list[Tensor]:
        model, _ = kit.small(2, "growing")
        optimizer = torch.optim.SGD(groups(model), lr=0.1, momentum=0.9, **options)
        method = AUG(model, optimizer, every=1, margin=0.0)
        if controlled:
            MomentumController(optimizer, Fixed(audio=0.8, flow=0.95))
        for epoch in range(3):
            method.begin_epoch(epoch, toys.data_of(kit.spec("aug")))
            for seed in range(3):
                method.step(kit.some(model, 8, seed=seed))
        assert method.growing.size("audio") + method.growing.size("flow") == 4
        return list(model.parameters())

    for one, other in zip(grown(options), grown({"foreach": False}), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_shares_weigh_the_prediction() -> None:
    method = growing(shares={"audio": 0.4, "flow": 0.6})
    output = method.model(kit.some(method.model).inputs)
    expected = 0.4 * output.logits["audio"] + 0.6 * output.logits["flow"]
    assert torch.allclose(method.predict(output), expected)
    with pytest.raises(ValueError, match="shares names audio"):
        growing(shares={"audio": 1.0})


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match='fusion "growing"'):
        AUG(*kit.small())
    with pytest.raises(ValueError, match="every is 0"):
        growing(every=0)
    for name in ("kappa", "margin"):
        with pytest.raises(ValueError, match=f"{name} is -1"):
            growing(**{name: -1.0})
    with pytest.raises(ValueError, match=r"shares: flow is -0\.5"):
        growing(shares={"audio": 1.5, "flow": -0.5})
    with pytest.raises(ValueError, match="no other criterion"):
        AUG(*kit.small(2, "growing"), torch.nn.CrossEntropyLoss(label_smoothing=0.1))
    with pytest.raises(ValueError, match="several labels"):
        AUG(*kit.small(2, "growing"), F.binary_cross_entropy_with_logits)


def test_a_forward_and_a_backward_per_modality_a_step() -> None:
    method = growing(3)
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 3, "updates": 3}


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize("steps", [2, 4, 6, 9])
def test_a_stopped_training_goes_on_bitwise_also_when_it_has_grown(
    as_released: bool, controller: str, steps: int
) -> None:
    axes = {"controller": controller, "optimizer": "sgd", "epochs": 3}
    spec = kit.spec("aug", 3, every=2, margin=0.0, as_released=as_released, axes=axes)
    assert kit.differences_of_resume(spec, steps) == []


def test_it_learns() -> None:
    _, losses = toys.trained(kit.spec("aug", axes={"epochs": 40}))
    assert losses[-1]["loss"] < 0.7 * losses[0]["loss"]
