"""BSS: which samples are easy, in which order they come, and how many of them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.methods.bss import (
    BSS,
    agreement,
    biased_order,
    difficulty,
    losses,
    minmax,
    pace,
    preference,
)
from vcmm.bench.types import Batch


@pytest.mark.parametrize(
    ("epoch", "share"),
    [(0, 0.1864135188), (1, 0.2439262184), (9, 0.5074445783), (19, 0.7106335202), (39, 1.0)],
)
def test_the_pace_of_the_curriculum(epoch: int, share: float) -> None:
    assert pace(epoch) == pytest.approx(share, abs=1e-10)
    assert pace(epoch + 40) == 1.0


def test_difficulty_and_preference_by_hand() -> None:
    loss, cosine = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.9, 0.1, 0.5])
    assert difficulty(loss, cosine).tolist() == pytest.approx([0.0, 2.0, 1.0])
    assert preference(loss, cosine).tolist() == pytest.approx([2.01, 0.01, 1.01])
    assert minmax(torch.full((4,), 2.5)).tolist() == [0.0] * 4


def test_agreement_is_the_mean_cosine_of_all_pairs() -> None:
    p, q, r = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    assert agreement([p, q]).item() == pytest.approx(0.0)
    assert agreement([p, q, r]).item() == pytest.approx((0 + 2 * math.sqrt(0.5)) / 3)
    assert agreement([p]).tolist() == [1.0]


def test_losses_of_single_samples_have_the_criterion_as_their_mean() -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(7) % 3
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2)
    assert torch.allclose(losses(F.cross_entropy, logits, ids).mean(), F.cross_entropy(logits, ids))
    assert torch.allclose(losses(smooth, logits, ids).mean(), smooth(logits, ids))
    labels = (logits > 0.3).float()
    each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)
    assert torch.allclose(losses(F.binary_cross_entropy_with_logits, logits, labels), each)


def test_the_biased_order_has_the_distribution_of_draws_without_replacement() -> None:
    weights, draws = torch.tensor([2.01, 1.0, 0.25, 0.01]), 6000
    generator = torch.Generator().manual_seed(3)
    orders = [tuple(biased_order(weights, generator).tolist()) for _ in range(draws)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    seen = Counter(order[:2] for order in orders)
    w = weights.tolist()
    for i, j in permutations(range(4), 2):
        chance = w[i] / sum(w) * w[j] / (sum(w) - w[i])
        deviation = math.sqrt(chance * (1 - chance) / draws)
        assert seen[i, j] / draws == pytest.approx(chance, abs=5 * deviation)


def test_the_loss_and_the_prediction() -> None:
    model, optimizer = kit.small(3, "branches")
    batch = kit.some(model)
    output = model(batch.inputs)
    method = BSS(model, optimizer)
    fused = F.cross_entropy(output.fused, batch.target)
    own = {m: F.cross_entropy(z, batch.target) for m, z in output.logits.items()}
    terms = method.loss(output, batch)
    assert terms["fused"].item() == pytest.approx(0.1 * fused.item())
    assert {m: terms[m].item() for m in own} == pytest.approx(
        {m: 0.9 * loss.item() for m, loss in own.items()}
    )
    summed = sum(output.logits.values())
    assert torch.allclose(method.predict(output), summed)
    both = BSS(model, optimizer, with_joint=True)
    assert torch.allclose(both.predict(output), summed + output.fused)


def test_the_gradient_by_hand() -> None:
    """One sample of class 0, features 2 and -1, heads that give (h, 0, 0): own = .9 dCE/dz."""
    model, optimizer = kit.small(2, "branches", inputs=1, width=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for modality, weight in (("audio", 2.0), ("flow", -1.0)):
            model.encoders[modality].weight.fill_(weight)
            model.fusion.heads[modality].weight[0] = 1.0
        model.fusion.joint.weight[0] = torch.tensor([0.5, 1.0])
    batch = kit.some(model, 1, inputs=1)
    batch.inputs["audio"].fill_(1.0)
    batch.inputs["flow"].fill_(1.0)
    found = kit.gradients(BSS(model, optimizer), batch)

    def pull(score: float) -> float:
        return math.exp(score) / (math.exp(score) + 2) - 1

    together = pull(0.5 * 2.0 - 1.0)
    expected = [0.1 * together * 0.5 + 0.9 * pull(2.0), 0.1 * together + 0.9 * pull(-1.0)]
    seen = [found[f"encoders.{m}.weight"].item() for m in ("audio", "flow")]
    assert seen == pytest.approx(expected, rel=1e-12)


def slow_scores(training: object, weights: tuple[float, float]) -> tuple[torch.Tensor, ...]:
    """Loss and agreement of every row, one after the other."""
    method, data = training.method, training.data  # type: ignore[attr-defined]
    method.eval()
    loss, cosine = [], []
    for i in range(len(data.splits["train"])):
        batch = data.batch("train", torch.tensor([i]))
        out = method.model(batch.inputs)
        own = sum(F.cross_entropy(z, batch.target) for z in out.logits.values())
        loss.append(weights[0] * F.cross_entropy(out.fused, batch.target) + weights[1] * own)
        p, q = (z.softmax(1)[0] for z in out.logits.values())
        cosine.append(p @ q / (p.norm() * q.norm()))
    return torch.stack(loss).detach(), torch.stack(cosine).detach()


@pytest.mark.parametrize("kind", ["vector", "sequence"])
def test_the_curriculum_takes_the_easiest_samples_and_ranks_them_once(kind: str) -> None:
    spec = kit.spec("bss", kind=kind, schedule="curriculum", joint=0.5, own=0.25, growth=4)
    training = toys.built(spec)
    method, train = training.method, training.data.only("train")
    assert isinstance(method, BSS)
    expected = difficulty(*slow_scores(training, (0.5, 0.25)))
    method.begin_epoch(0, train)
    first, again = method.sampler(0), method.sampler(0)
    assert first is not None
    assert again is not None
    count = int(pace(0, epochs=4) * toys.SAMPLES)
    assert len(first) == count == len(again)
    assert set(first.tolist()) == set(again.tolist()) == set(expected.argsort()[:count].tolist())
    assert first.tolist() != again.tolist()  # shuffled
    for parameter in method.parameters():
        nn.init.normal_(parameter)
    method.begin_epoch(1, train)
    later = method.sampler(1)
    assert later is not None
    assert set(first.tolist()) < set(later.tolist())
    last = method.sampler(3)
    assert last is not None
    assert sorted(last.tolist()) == list(range(toys.SAMPLES))


def test_self_paced_weights_are_made_anew_and_all_samples_come() -> None:
    training = toys.built(kit.spec("bss"))
    method, train = training.method, training.data.only("train")
    assert isinstance(method, BSS)
    for epoch in range(2):
        expected = preference(*slow_scores(training, (0.1, 0.9)))
        method.begin_epoch(epoch, train)
        assert method.weights is not None
        assert torch.allclose(method.weights, expected, atol=1e-5)
        order = method.sampler(epoch)
        assert order is not None
        assert sorted(order.tolist()) == list(range(toys.SAMPLES))
        for parameter in method.parameters():
            nn.init.normal_(parameter)


def test_as_released_scores_in_training_mode_and_the_default_leaves_no_trace() -> None:
    seen = {}
    for as_released in (False, True):
        spec = kit.spec("bss", kind="sequence", as_released=as_released)
        training = toys.built(spec)
        before = {k: v.clone() for k, v in training.method.model.state_dict().items()}
        training.method.begin_epoch(0, training.data.only("train"))
        after = training.method.model.state_dict()
        seen[as_released] = {k for k, v in after.items() if not torch.equal(v, before[k])}
    assert not seen[False]
    assert seen[True]
    assert all("running" in name or "tracked" in name for name in seen[True])


def test_before_any_epoch_the_order_is_left_to_the_loop() -> None:
    for schedule in ("self_paced", "curriculum"):
        assert BSS(*kit.small(), schedule=schedule).sampler(0) is None


def test_several_labels() -> None:
    model, optimizer = kit.small(2, "branches")
    method = BSS(model, optimizer, F.binary_cross_entropy_with_logits)
    batch = kit.some(model)
    labels = F.one_hot(batch.target, kit.CLASSES).double()
    assert method.step(Batch(batch.inputs, labels, batch.index))["loss"].isfinite()


@pytest.mark.parametrize(
    "bad",
    [{"schedule": "random"}, {"own": 0.0}, {"joint": -0.1}, {"start": 0.0}, {"growth": 0}],
)
def test_bad_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        BSS(*kit.small(), **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("schedule", "forwards"), [("self_paced", 2), ("curriculum", 1)])
def test_the_cost_is_a_step_and_a_pass_over_train(schedule: str, forwards: int) -> None:
    """One pass of train is a single batch here. The curriculum scores once; early steps are few."""
    spec = kit.spec("bss", schedule=schedule, start=1.0)
    training, _ = toys.trained(spec)
    expected = {"forwards": 2 * toys.STEPS + forwards, "backwards": 2 * toys.STEPS}
    assert dict(training.method.counts) == {**expected, "updates": 2 * toys.STEPS}


@pytest.mark.parametrize("schedule", ["self_paced", "curriculum"])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_stopped_training_goes_on_bitwise(schedule: str, steps: int) -> None:
    axes = {"controller": "vcmm", "optimizer": "sgd", "epochs": 3}
    spec = kit.spec("bss", 3, schedule=schedule, growth=3, axes=axes)
    assert kit.differences_of_resume(spec, steps) == []


@pytest.mark.parametrize("schedule", ["self_paced", "curriculum"])
def test_renaming_modalities_renames_the_losses(schedule: str) -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("bss", 3, schedule=schedule), names)
    assert plain
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-6)


def test_one_modality() -> None:
    _, losses = toys.trained(kit.spec("bss", 1))
    assert all(math.isfinite(row["loss"]) for row in losses)
