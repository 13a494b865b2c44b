"""InfoReg: the leader is held to where the epoch began."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.methods.inforeg import InfoReg, leads, learning, regulation, trace
from vcmm.bench.types import Data


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def train() -> Data:
    return toys.data_of(kit.spec("inforeg")).only("train")


def test_numbers_of_the_paper() -> None:
    betas = tensor(0.95, 0.1)
    assert regulation(tensor(9, 4), betas).tolist() == pytest.approx([2.5821332797, 0], abs=1e-9)
    assert regulation(tensor(4, 9), betas).tolist() == pytest.approx([0, 0.2718035031], abs=1e-9)
    found = regulation(tensor(4.3, 4), betas).tolist()
    assert found == pytest.approx([1.2712737086, 0], abs=1e-9)


def test_the_leader_is_ahead_of_the_mean_of_the_others() -> None:
    assert leads(tensor(1, 6, 3)).tolist() == [0, 4, 0]
    assert leads(tensor(5, 5, 1)).tolist() == [0, 0, 0]
    assert leads(tensor(2, 2)).tolist() == [0, 0]
    assert leads(tensor(7)).tolist() == [0]
    scores, order = tensor(1, 6, 3, 2), torch.tensor([2, 3, 1, 0])
    betas = tensor(0.1, 0.2, 0.3, 0.4)
    permuted = regulation(scores[order], betas[order])
    assert torch.equal(permuted, regulation(scores, betas)[order])


def test_what_is_left_to_learn() -> None:
    def k(*traces: float) -> float:
        history = torch.zeros(1, 11, dtype=torch.float64)
        history[0, 11 - len(traces) :] = tensor(*traces)
        return learning(history).item()

    assert k() == k(0, 0) == 1.0  # nothing is known
    assert k(5.0) == 1.0  # at epoch 1
    assert k(5.0, 3.0) == pytest.approx(3 / 8)
    series = [3.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.5, 2.0]
    assert k(*series) == pytest.approx((2.0 - 3.0) / sum(series[1:]))
    means = [sum(part) / 10 for part in (series[1:], series[:-1])]
    assert k(*series) == pytest.approx((means[0] - means[1]) / means[0])


def test_the_trace_is_a_sum_of_means() -> None:
    encoder = nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(4, 3))
    encoder(torch.randn(5, 1, 4)).square().sum().backward()
    gradients = [encoder[0].weight.grad, encoder[3].weight.grad]
    expected = sum(gradient.square().mean() for gradient in gradients)
    assert trace(gradients).item() == pytest.approx(expected.item())


def by_hand(**options: Any) -> tuple[InfoReg, kit.Batch]:
    """h_m = a_m x_m and z = (w_1 h_1 + w_2 h_2, 0, 0), for one sample of class 0."""
    model, optimizer = kit.small(2, "concat", inputs=1, width=1)
    with torch.no_grad():
        model.encoders["audio"].weight.fill_(0.5)
        model.encoders["flow"].weight.fill_(-1.0)
        model.fusion.head.weight.copy_(torch.tensor([[2.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
        model.fusion.head.bias.zero_()
    batch = kit.some(model, 1, inputs=1)
    batch.inputs["audio"].fill_(3.0)
    batch.inputs["flow"].fill_(2.0)
    return InfoReg(model, optimizer, **options), batch


def right(score: float) -> float:
    return math.exp(score) / (math.exp(score) + 2)


def test_by_hand_on_one_weight_per_module() -> None:
    method, batch = by_hand(beta=0.3)
    method.begin_epoch(0, train())
    with torch.no_grad():  # as if steps had been taken since the epoch began
        method.model.encoders["audio"].weight.fill_(0.75)
        method.model.encoders["flow"].weight.fill_(-1.5)
    found = kit.gradients(method, batch)
    # Features are 2.25 and -3, so z_0 is 4.5 for audio, -3 for flow and 1.5 together.
    s = right(4.5), right(-3.0)
    hold = 0.3 * math.exp(math.tanh(s[0] - s[1]))
    pull = right(1.5) - 1
    audio = (pull + s[0] - 1) * 2.0 * 3.0 + hold * (0.75 - 0.5)
    flow = (pull + s[1] - 1) * 1.0 * 2.0
    assert found["encoders.audio.weight"].item() == pytest.approx(audio, rel=1e-12)
    assert found["encoders.flow.weight"].item() == pytest.approx(flow, rel=1e-12)
    assert method.traces.tolist() == pytest.approx([audio**2, flow**2], rel=1e-12)


def test_at_the_beginning_of_an_epoch_it_is_the_sum_of_all_losses() -> None:
    model, optimizer = kit.small(3, "concat")
    batch = kit.some(model)
    output = model(batch.inputs)
    logits = [output.fused, *output.logits.values()]
    torch.stack([F.cross_entropy(z, batch.target) for z in logits]).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    found = kit.gradients(InfoReg(model, optimizer), batch)
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], rtol=1e-12) for name in found)


def held(method: InfoReg, batch: kit.Batch) -> set[str]:
    """The modalities whose gradient depends on where the epoch began."""
    before = [p.detach().clone() for p in method.model.parameters()]
    plain: list[dict[str, Tensor]] = []
    for shift in (0.0, 1.0):
        with torch.no_grad():
            for parameter, value in zip(method.model.parameters(), before, strict=True):
                parameter.copy_(value)
            for anchor in method.anchors.parameters():
                anchor.add_(shift)
        plain.append(kit.gradients(method, batch))
    names = method.model.modalities
    return {m for m in names if not torch.equal(*(g[f"encoders.{m}.weight"] for g in plain))}


def test_windows_belong_to_modalities_or_as_released_to_the_first() -> None:
    # Of the traces, audio's falls and flow's grows; audio is ahead in the batch.
    for as_released in (False, True):
        for falling, open_ in (([True, False], [False, True]), ([False, True], [True, False])):
            method, batch = by_hand(as_released=as_released)
            for epoch in range(13):
                method.begin_epoch(epoch, train())
                down, up = 1 / (1 + epoch), 1.5**epoch
                method.traces.copy_(tensor(*(down if f else up for f in falling)))
            expected = [open_[0], open_[0]] if as_released else open_
            assert list(method.open.values()) == expected
            assert held(method, batch) == ({"audio"} if open_[0] else set())


def test_windows_close_in_training() -> None:
    spec = kit.spec("inforeg", axes={"epochs": 30})
    training, _ = toys.trained(spec)
    assert isinstance(training.method, InfoReg)
    assert not any(training.method.open.values())
    assert (training.method.history > 0).all()


def test_each_modality_can_have_a_beta_of_its_own() -> None:
    method, _ = by_hand(beta=0.5, betas={"flow": 0.1})
    assert method.betas.tolist() == [0.5, 0.1]
    assert "betas" not in method.state_dict()


@pytest.mark.parametrize("modalities", [1, 3, 6])
def test_any_number_of_modalities_in_a_loop_of_ones_own(modalities: int) -> None:
    method = InfoReg(*kit.small(modalities, "concat"))
    batch = kit.some(method.model, 12)
    losses = [method.step(batch)["loss"].item() for _ in range(60)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("bad", [{"beta": -0.1}, {"betas": {"flow": -1.0}}, {"betas": {"x": 1.0}}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"inforeg: .*(must be at least 0|no modality)"):
        InfoReg(*kit.small(), **bad)


def test_several_labels_are_refused() -> None:
    with pytest.raises(ValueError, match='use method "joint"'):
        InfoReg(*kit.small(), F.binary_cross_entropy_with_logits)


def test_one_forward_and_one_backward_a_step() -> None:
    method = InfoReg(*kit.small(2, "concat"))
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 1, "updates": 1}


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize(("optimizer", "steps"), [("adam", 2), ("sgd", 5)])
def test_a_stopped_training_goes_on_bitwise(
    as_released: bool, controller: str, optimizer: str, steps: int
) -> None:
    axes = {"controller": controller, "optimizer": optimizer, "epochs": 3}
    spec = kit.spec("inforeg", 3, as_released=as_released, threshold=0.4, axes=axes)
    assert kit.differences_of_resume(spec, steps) == []


def test_renaming_modalities_renames_the_losses() -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("inforeg", 3), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-9)


def test_it_learns() -> None:
    _, losses = toys.trained(kit.spec("inforeg", axes={"epochs": 40}))
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
