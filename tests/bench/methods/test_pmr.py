"""PMR: prototypes, who is slow, and how much it is helped."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.method import confidence, total
from vcmm.bench.methods.pmr import (
    PMR,
    class_means,
    class_sums,
    demands,
    entropy,
    leads,
    rows_for_prototypes,
    similarities,
)
from vcmm.bench.types import Output

ZERO = torch.tensor([0])


def scores(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def distances() -> dict[str, torch.Tensor]:
    """(1, 2) and (2, 1), with the first class the right one: audio is ahead."""
    return {"audio": -scores(1, 2)[None], "video": -scores(2, 1)[None]}


@pytest.mark.parametrize("as_released", [False, True])
def test_the_example_of_two_distances(
    distances: dict[str, torch.Tensor], as_released: bool
) -> None:
    s = torch.stack([confidence(u, ZERO) for u in distances.values()])
    assert s.tolist() == pytest.approx([0.73105858, 0.26894142], abs=1e-8)
    assert (s[0] / s[1]).item() == pytest.approx(2.718, abs=1e-3)
    method = PMR(*kit.small(), alpha=3.0, as_released=as_released)
    terms = method.rebalance(distances, ZERO)
    assert terms["prototypes"].item() == pytest.approx(3.0 * 1.31326169, abs=1e-7)


def test_a_small_lead_asks_for_a_small_weight_and_as_released_for_all_of_it() -> None:
    assert demands(scores(1.2, 1.0)).tolist() == pytest.approx([0.0, 0.2])
    assert demands(scores(1.2, 1.0), binary=True).tolist() == [0.0, 1.0]
    assert demands(scores(5.0, 5.0)).tolist() == demands(scores(5, 5), binary=True).tolist()


@pytest.mark.parametrize(("audio", "video"), [(3.0, 2.5), (2.5, 3.0), (9.0, 1.0), (2.0, 2.0)])
def test_with_two_modalities_the_weights_are_the_published_ones(audio: float, video: float) -> None:
    rho = audio / video
    beta, gamma = (min(max(x - 1, 0.0), 1.0) for x in (1 / rho, rho))
    assert demands(scores(audio, video)).tolist() == pytest.approx([beta, gamma])
    assert leads(scores(audio, video)).tolist() == pytest.approx([gamma, beta])


def test_with_more_modalities_the_leader_leads_by_the_mean_of_what_the_others_lack() -> None:
    assert demands(scores(4.0, 8.0, 6.4)).tolist() == pytest.approx([1.0, 0.0, 0.25])
    assert leads(scores(4.0, 8.0, 6.4)).tolist() == pytest.approx([0.0, 0.625, 0.0])
    assert demands(scores(3.0)).tolist() == leads(scores(3.0)).tolist() == [0.0]
    assert demands(scores(0.0, 0.0)).isfinite().all()


def test_the_leaders_entropy_is_raised_by_the_published_term() -> None:
    near = {"audio": -scores(1.0, 1.3)[None], "video": -scores(1.1, 1.3)[None]}
    method = PMR(*kit.small(), entropy=0.5)
    p = [math.exp(-1.0), math.exp(-1.3)]
    p = [x / sum(p) for x in p]
    q = math.exp(-1.1) / (math.exp(-1.1) + math.exp(-1.3))
    expected = -0.5 * (p[0] / q - 1) * -sum(x * math.log(x) for x in p)
    terms = method.rebalance(near, ZERO)
    assert terms["entropy"].item() == pytest.approx(expected, rel=1e-12)
    assert entropy(near["audio"]).item() == pytest.approx(-sum(x * math.log(x) for x in p))
    method.epoch = 10
    assert terms.keys() - method.rebalance(near, ZERO).keys() == {"entropy"}


def test_similarity_is_minus_the_distance_and_differentiable_at_a_prototype() -> None:
    features = scores(3, 4, 0, 0).reshape(2, 2).requires_grad_()
    u = similarities(features, scores(0, 0, 3, 0).reshape(2, 2))
    assert u.tolist() == [[-5.0, -4.0], [0.0, -3.0]]
    u.sum().backward()
    assert features.grad is not None
    # The prototype that the second sample lies on does not pull at it.
    assert features.grad.flatten().tolist() == pytest.approx([-0.6, -1.8, 1.0, 0.0])


def test_prototypes_are_class_means() -> None:
    chance = np.random.default_rng(0)
    features, target = chance.standard_normal((30, 4)), chance.integers(0, 3, 30)
    rows, ids = torch.from_numpy(features), torch.from_numpy(target)
    found = class_means(class_sums(rows, ids, 4), torch.bincount(ids, minlength=4))
    for c in range(3):
        assert np.allclose(found[c], features[target == c].mean(axis=0))
    assert found[3].tolist() == [0, 0, 0, 0]


def test_a_rare_class_is_among_the_rows_of_the_prototypes() -> None:
    target = torch.zeros(200, dtype=torch.int64)
    target[7], target[90] = 1, 3
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        rows = rows_for_prototypes(target, 4, 0.1, generator)
        assert {7, 90} <= set(rows.tolist())
        assert len(set(rows.tolist())) == len(rows) <= 22
    assert len(rows_for_prototypes(target, 4, 1.0, generator)) == 200


def test_the_gradient_by_hand() -> None:
    """Features are the inputs times one weight each; only the slow one is pulled to prototypes."""
    model, optimizer = kit.small(2, "concat", inputs=1, width=1)
    with torch.no_grad():
        for weight in model.encoders.parameters():
            weight.fill_(1.0)
        model.fusion.head.weight.zero_()  # the fused loss leaves the encoders alone
    method = PMR(model, optimizer, alpha=2.0, entropy=0.0)
    method.prototypes = {
        "audio": scores(1, 3, 5).reshape(3, 1),
        "flow": scores(4.0, 1.5, 6).reshape(3, 1),
    }
    batch = kit.some(model, 1, inputs=1)
    batch.inputs["audio"].fill_(1.5)
    batch.inputs["flow"].fill_(2.0)
    found = kit.gradients(method, batch)

    near = [math.exp(-d) for d in (0.5, 1.5, 3.5)]
    far = [math.exp(-d) for d in (2.0, 0.5, 4.0)]
    s_audio, s_flow = near[0] / sum(near), far[0] / sum(far)
    gamma = min(s_audio / s_flow - 1, 1.0)
    p = [x / sum(far) for x in far]
    # dCE/dw = sum_k (p_k - [k = y]) du_k/dw, where u_k = -|2 w - c_k| rises by 2 sign(c_k - 2).
    pull = 2 * ((p[0] - 1) * 1 + p[1] * -1 + p[2] * 1)
    assert found["encoders.flow.weight"].item() == pytest.approx(2.0 * gamma * pull, rel=1e-12)
    assert found["encoders.audio.weight"].item() == 0.0


def test_prototypes_of_three_epochs() -> None:
    """Untrained, then replaced, and only then remembered; all in eval mode."""
    spec = kit.spec("pmr", keep=0.25, share=1.0)
    training = toys.built(spec)
    method, train = training.method, training.data.only("train")
    assert isinstance(method, PMR)

    def means() -> torch.Tensor:
        batch = train.batch("train", torch.arange(toys.SAMPLES))
        h = method.model(batch.inputs).features["m1"].detach()
        return torch.stack([h[batch.target == c].mean(dim=0) for c in range(3)])

    expected: list[torch.Tensor] = []
    for epoch in range(4):
        method.begin_epoch(epoch, train)
        new = means()
        expected.append(new if epoch < 2 else 0.75 * new + 0.25 * expected[-1])
        assert torch.allclose(method.prototypes["m1"], expected[-1], atol=1e-5)
        for part in torch.arange(48).split(16):
            method.step(train.batch("train", part))
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)
    assert not method.prototypes["m1"].requires_grad


def test_the_window_is_inclusive_and_outside_it_is_joint_training() -> None:
    model, optimizer = kit.small()
    method = PMR(model, optimizer, starts=2, ends=3)
    batch = kit.some(model)
    assert method.loss(model(batch.inputs), batch).keys() == {"fused"}  # no prototypes yet
    method.prototypes = {m: torch.randn(3, 2, dtype=torch.float64) for m in model.modalities}
    for epoch, terms in ((1, 1), (2, 3), (3, 3), (4, 1)):
        method.epoch = epoch
        assert len(method.loss(model(batch.inputs), batch)) == terms


def test_as_released_has_no_entropy_and_a_switch() -> None:
    model, optimizer = kit.small(3)
    batch = kit.some(model)
    output: Output = model(batch.inputs)
    method = PMR(model, optimizer, alpha=2.0, as_released=True)
    method.prototypes = {m: h[:3].detach() + 0.1 for m, h in output.features.items()}
    near = {m: -torch.cdist(h, method.prototypes[m]) for m, h in output.features.items()}
    ahead = {m: u.softmax(1)[range(4), batch.target].sum().item() for m, u in near.items()}
    slow = [m for m in ahead if ahead[m] < max(ahead.values())]
    expected = 2.0 * total({m: F.cross_entropy(near[m], batch.target) for m in slow})
    terms = method.loss(output, batch)
    assert terms.keys() == {"fused", "prototypes"}
    assert terms["prototypes"].item() == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize(
    "bad",
    [
        {"alpha": -1.0},
        {"keep": 1.0},
        {"share": 0.0},
        {"entropy_epochs": -1},
        {"starts": -1},
        {"starts": 3, "ends": 2},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(reversed(bad))):
        PMR(*kit.small(), **bad)


def test_several_labels_are_refused_with_another_method_to_use() -> None:
    with pytest.raises(ValueError, match="multi_loss"):
        PMR(*kit.small(), F.binary_cross_entropy_with_logits)


@pytest.mark.parametrize("modalities", [1, 2, 6])
def test_the_cost_is_a_step_and_a_tenth_of_the_rows_per_epoch(modalities: int) -> None:
    training = toys.built(kit.spec("pmr", modalities, axes={"epochs": 1}))
    list(toys.events(training, kit.spec("pmr", modalities, axes={"epochs": 1})))
    assert dict(training.method.counts) == {"forwards": 5, "backwards": 4, "updates": 4}


def test_behind_the_window_no_prototypes_are_made() -> None:
    training, _ = toys.trained(kit.spec("pmr", ends=0))
    assert dict(training.method.counts) == {"forwards": 9, "backwards": 8, "updates": 8}
    assert isinstance(training.method, PMR)
    assert training.method.prototypes == {}


@pytest.mark.parametrize("steps", [0, 2, 4, 6])
def test_a_stopped_training_goes_on_bitwise(steps: int) -> None:
    axes = {"controller": "vcmm", "optimizer": "sgd", "epochs": 3}
    assert kit.differences_of_resume(kit.spec("pmr", 3, kind="sequence", axes=axes), steps) == []


@pytest.mark.parametrize("as_released", [False, True])
def test_renaming_modalities_renames_nothing_else(as_released: bool) -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("pmr", 3, as_released=as_released), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-6)
