"""Features and logits that nobody passes by hand: heads that are watched, and heads of our own."""

from __future__ import annotations

import copy
import gc
import io
import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vcmm import VCMM, ProbeHeads, modal_groups

MODALITIES = ("audio", "video")
CLASSES, WIDTH = 4, 6
SLICES = {"audio": slice(0, WIDTH), "video": slice(WIDTH, 2 * WIDTH)}

Inputs = dict[str, Tensor]
Observed = dict[str, tuple[Tensor, Tensor]]


class Towers(nn.Module):
    """Late fusion: an encoder and a head per modality, the mean of the logits.

    `reentrant` recomputes encoders and heads in the backward pass, in either of torch's two ways.
    """

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reentrant = reentrant
        self.encoders = nn.ModuleDict(
            {m: nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh()) for m in MODALITIES}
        )
        self.heads = nn.ModuleDict({m: nn.Linear(WIDTH, CLASSES) for m in MODALITIES})

    def branch(self, modality: str, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encoders[modality](x)
        return h, self.heads[modality](h)

    def forward(self, inputs: Inputs) -> tuple[Observed, Tensor]:
        observed: Observed = {}
        for modality, x in inputs.items():
            if self.reentrant is None:
                observed[modality] = self.branch(modality, x)
            else:
                # The reentrant kind gives gradients only where an input asks for one.
                observed[modality] = checkpoint(
                    self.branch, modality, x.requires_grad_(), use_reentrant=self.reentrant
                )
        return observed, torch.stack([z for _, z in observed.values()]).mean(0)


class Concat(nn.Module):
    """One linear head over the concatenated features."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict(
            {m: nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh()) for m in MODALITIES}
        )
        self.head = nn.Linear(2 * WIDTH, CLASSES, bias=bias)

    def forward(self, inputs: Inputs) -> Tensor:
        return self.head(torch.cat([self.encoders[m](x) for m, x in inputs.items()], dim=1))


def draw(step: int, n: int = 12) -> tuple[Inputs, Tensor]:
    generator = torch.Generator().manual_seed(step)
    y = torch.randint(CLASSES, (n,), generator=generator)
    inputs = {m: torch.randn(n, 5, generator=generator) for m in MODALITIES}
    inputs["audio"][:, 0] += y  # audio has something to say, so that the two differ
    return inputs, y


def controlled(model: nn.Module, **options: Any) -> VCMM:
    claims = {m: model.encoders[m] for m in MODALITIES}
    return VCMM(torch.optim.AdamW(modal_groups(model, **claims), lr=1e-2), **options)


Forward = Callable[[Inputs], Any]


def run(
    model: nn.Module,
    vcmm: VCMM,
    steps: int = 6,
    *,
    forward: Forward | None = None,
    observe_first: bool = False,
    disturb: Callable[[], object] = lambda: None,
) -> list[dict[str, float]]:
    """Train with captured heads; `disturb` happens between the forward and the observation."""
    forward = model if forward is None else forward  # a compiled model has no truth value
    history: list[dict[str, float]] = []
    for step in range(steps):
        inputs, y = draw(step)
        output = forward(inputs)
        fused = output if isinstance(output, Tensor) else output[1]
        disturb()
        if observe_first:
            vcmm.observe(y)
        F.cross_entropy(fused, y).backward()
        if not observe_first:
            vcmm.observe(y)
        vcmm.optimizer.step()
        vcmm.optimizer.zero_grad()
        history.append(vcmm.metrics())
    return history


def run_by_hand(model: Towers, vcmm: VCMM, steps: int = 6) -> list[dict[str, float]]:
    history: list[dict[str, float]] = []
    for step in range(steps):
        inputs, y = draw(step)
        observed, fused = model(inputs)
        F.cross_entropy(fused, y).backward()
        vcmm.observe(y, **observed)
        vcmm.optimizer.step()
        vcmm.optimizer.zero_grad()
        history.append(vcmm.metrics())
    return history


def same(
    ours: list[dict[str, float]], model: nn.Module, theirs: list[dict[str, float]], other: nn.Module
) -> None:
    """Bitwise, and about betas that have left the base."""
    assert ours == theirs
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
    assert abs(ours[-1]["audio/beta"] - 0.9) > 1e-3


# A head per modality


@pytest.mark.parametrize("observe_first", [False, True], ids=["after", "before-backward"])
def test_fact_16_captured_heads_equal_features_and_logits_passed_by_hand(
    observe_first: bool,
) -> None:
    captured, by_hand = Towers(), Towers()
    ours = run(captured, controlled(captured, heads=captured.heads), observe_first=observe_first)
    theirs = run_by_hand(by_hand, controlled(by_hand))
    same(ours, captured, theirs, by_hand)


def test_fact_16_a_head_that_was_not_called_leaves_its_modality_absent() -> None:
    captured, by_hand = Towers(), Towers()
    ours, theirs = controlled(captured, heads=captured.heads), controlled(by_hand)
    for step in range(4):
        inputs, y = draw(step)
        if step == 2:
            del inputs["video"]
        for model in (captured, by_hand):
            observed, fused = model(inputs)
            F.cross_entropy(fused, y).backward()
        ours.observe(y)
        theirs.observe(y, **observed)
        for vcmm in (ours, theirs):
            vcmm.optimizer.step()
            vcmm.optimizer.zero_grad()
        assert ours.metrics() == theirs.metrics()
    assert ours.metrics()["video/unmeasured"] == 1


def test_fact_16_a_head_may_be_any_module() -> None:
    captured, by_hand = Towers(), Towers()
    for model in (captured, by_hand):
        model.heads = nn.ModuleDict({m: nn.Sequential(h) for m, h in model.heads.items()})
    ours = run(captured, controlled(captured, heads=dict(captured.heads)))
    same(ours, captured, run_by_hand(by_hand, controlled(by_hand)), by_hand)


def test_fact_16_what_is_captured_is_detached() -> None:
    model = Towers()
    vcmm = controlled(model, heads=model.heads)
    model(draw(0)[0])
    assert vcmm._capture is not None
    for pair in vcmm._capture.take().values():
        for tensor in pair:
            assert tensor.grad_fn is None
            assert not tensor.requires_grad


class Token:
    """Something that a graph can hold, and be seen to let go."""


class Mark(torch.autograd.Function):
    """The identity. Its node in the graph owns a token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Token) -> Tensor:
        ctx.token = token
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def test_fact_16_no_graph_outlives_the_forward_that_made_it() -> None:
    model = Towers()
    vcmm = controlled(model, heads=model.heads)
    inputs, y = draw(0)
    token = Token()
    alive = weakref.ref(token)
    features = {m: Mark.apply(model.encoders[m](x), token) for m, x in inputs.items()}
    logits = [model.heads[m](h) for m, h in features.items()]
    del token
    assert alive() is not None  # the graph holds it
    del features, logits
    gc.collect()
    assert alive() is None
    vcmm.observe(y)  # and yet the values are there


def test_fact_16_observe_drops_what_was_captured() -> None:
    model = Towers()
    vcmm = controlled(model, heads=model.heads)
    inputs, y = draw(0)
    model(inputs)
    vcmm.observe(y)
    with pytest.raises(RuntimeError, match="after each training forward") as error:
        vcmm.observe(y)
    assert "head(x)" in str(error.value)


def test_fact_16_captured_values_are_released_by_observe() -> None:
    model = Towers()
    # More classes and samples, so that the direct form is taken, which keeps no rows.
    vcmm = controlled(model, heads=model.heads)
    seen: list[weakref.ref[Tensor]] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert vcmm._capture is not None
        seen.extend(weakref.ref(t) for pair in vcmm._capture._captured.values() for t in pair)

    model.heads["video"].register_forward_hook(watch)  # called after the capture's own
    inputs, y = draw(0, n=400)
    model(inputs)
    assert len(seen) == 4
    assert all(reference() is not None for reference in seen)
    vcmm.observe(y)
    gc.collect()
    assert all(reference() is None for reference in seen)


def test_fact_16_observe_needs_a_forward_in_training_mode() -> None:
    model = Towers()
    vcmm = controlled(model, heads=model.heads)
    inputs, y = draw(0)
    model.eval()
    model(inputs)
    model.train()
    with pytest.raises(RuntimeError, match="training mode"):
        vcmm.observe(y)


@pytest.mark.parametrize("fusion", ["towers", "concat"])
def test_fact_16_validation_between_forward_and_observe_does_not_disturb(fusion: str) -> None:
    def make() -> tuple[nn.Module, VCMM]:
        if fusion == "towers":
            model = Towers()
            return model, controlled(model, heads=model.heads)
        model = Concat()
        return model, controlled(model, heads=model.head, slices=SLICES)

    quiet, disturbed = make(), make()

    def validate() -> None:
        disturbed[0].eval()
        with torch.no_grad():
            disturbed[0](draw(1000, n=30)[0])
        disturbed[0].train()

    ours = run(*disturbed, disturb=validate)
    same(ours, disturbed[0], run(*quiet), quiet[0])


@pytest.mark.parametrize("observe_first", [False, True], ids=["after", "before-backward"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_fact_16_activation_checkpointing_does_not_disturb(
    reentrant: bool, observe_first: bool
) -> None:
    plain, recomputed = Towers(), Towers(reentrant=reentrant)
    calls: list[str] = []
    recomputed.heads["audio"].register_forward_pre_hook(lambda *_: calls.append("audio"))
    vcmm = controlled(recomputed, heads=recomputed.heads)
    ours = run(recomputed, vcmm, observe_first=observe_first)
    same(ours, recomputed, run(plain, controlled(plain, heads=plain.heads)), plain)
    assert len(calls) == 12  # six forwards, and six in the backward passes
    with pytest.raises(RuntimeError, match="no head was called"):
        vcmm.observe(draw(0)[1])


@pytest.mark.parametrize("fusion", ["towers", "concat"])
def test_fact_16_heads_in_a_compiled_model_are_captured_without_a_graph_break(fusion: str) -> None:
    models: list[nn.Module] = []
    histories: list[list[dict[str, float]]] = []
    for compiled in (True, False):
        torch._dynamo.reset()
        model = Towers() if fusion == "towers" else Concat()
        if isinstance(model, Towers):
            vcmm = controlled(model, heads=model.heads)
        else:
            vcmm = controlled(model, heads=model.head, slices=SLICES)
        forward = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
        histories.append(run(model, vcmm, forward=forward))
        models.append(model)
    same(histories[0], models[0], histories[1], models[1])


def test_detach_takes_the_hooks_off_the_heads_and_attach_puts_them_back() -> None:
    model = Towers()
    vcmm = controlled(model, heads=model.heads)
    assert all(len(head._forward_hooks) == 1 for head in model.heads.values())
    vcmm.attach()
    assert all(len(head._forward_hooks) == 1 for head in model.heads.values())
    inputs, y = draw(0)
    model(inputs)
    vcmm.detach()
    assert all(not head._forward_hooks for head in model.heads.values())
    with pytest.raises(ValueError, match="attach"):
        vcmm.observe(y)
    vcmm.attach()
    with pytest.raises(RuntimeError, match="no head was called"):
        vcmm.observe(y)  # what was captured before went with the hooks
    model(inputs)
    vcmm.observe(y)


# One head over all features


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "bias-free"])
def test_slices_of_one_head_add_up_to_its_output(bias: bool) -> None:
    model = Concat(bias)
    vcmm = controlled(model, heads=model.head, slices=SLICES)
    inputs, _ = draw(0)
    output = model(inputs).detach()
    assert vcmm._capture is not None
    observed = vcmm._capture.take()
    torch.testing.assert_close(sum(z for _, z in observed.values()), output)
    for modality, part in SLICES.items():
        h, z = observed[modality]
        torch.testing.assert_close(h, model.encoders[modality](inputs[modality]).detach())
        share = model.head.bias / 2 if bias else torch.zeros(CLASSES)
        torch.testing.assert_close(z, (h @ model.head.weight[:, part].T + share).detach())


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "bias-free"])
def test_one_head_with_slices_equals_its_parts_passed_by_hand(bias: bool) -> None:
    captured, by_hand = Concat(bias), Concat(bias)
    ours = run(captured, controlled(captured, heads=captured.head, slices=SLICES))
    vcmm = controlled(by_hand)
    theirs: list[dict[str, float]] = []
    for step in range(6):
        inputs, y = draw(step)
        with torch.no_grad():
            observed: Observed = {}
            for modality, part in SLICES.items():
                h = by_hand.encoders[modality](inputs[modality])
                z = h @ by_hand.head.weight[:, part].T
                observed[modality] = (h, z + by_hand.head.bias / 2 if bias else z)
        F.cross_entropy(by_hand(inputs), y).backward()
        vcmm.observe(y, **observed)
        vcmm.optimizer.step()
        vcmm.optimizer.zero_grad()
        theirs.append(vcmm.metrics())
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    assert abs(ours[-1]["audio/beta"] - 0.9) > 1e-3


def test_slices_share_the_bias_among_three() -> None:
    head = nn.Linear(9, CLASSES)
    model = nn.ModuleDict({name: nn.Linear(2, 3) for name in "abc"})
    optimizer = torch.optim.Adam(modal_groups(model, **model))
    vcmm = VCMM(
        optimizer, heads=head, slices={"a": slice(3), "b": slice(3, 6), "c": slice(6, None)}
    )
    h = torch.randn(8, 5, 9)  # tokens
    output = head(h)
    assert vcmm._capture is not None
    observed = vcmm._capture.take()
    assert [tuple(x.shape) for x, _ in observed.values()] == [(8, 5, 3)] * 3
    torch.testing.assert_close(sum(z for _, z in observed.values()), output.detach())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slices": SLICES}, ["slices need their head", "heads=head"]),
        ({"heads": "concat"}, ["needs slices", "slices={"]),
        ({"heads": "concat", "slices": {}}, ["needs slices"]),
        ({"heads": "towers", "slices": SLICES}, ["single nn.Linear head"]),
        (
            {"heads": "concat", "slices": {**SLICES, "video": slice(12, 18)}},
            ["'video'", "slice(12, 18", "12 inputs"],
        ),
        ({"heads": "same"}, ["'audio'", "'video'", "same head", "by hand"]),
        ({"heads": "unknown"}, ["'depth'", "no parameter group", "audio, video"]),
        ({"heads": "concat", "slices": {"depth": slice(0, 3)}}, ["'depth'", "audio, video"]),
    ],
    ids=str,
)
def test_heads_and_slices_that_do_not_fit_are_refused_and_leave_nothing(
    options: dict[str, Any], words: list[str]
) -> None:
    model = Concat()
    heads = nn.ModuleDict({m: nn.Linear(WIDTH, CLASSES) for m in MODALITIES})
    made: dict[str, Any] = {
        "concat": model.head,
        "towers": heads,
        "same": dict.fromkeys(MODALITIES, model.head),
        "unknown": {"depth": model.head},
    }
    if "heads" in options:
        options = {**options, "heads": made[options["heads"]]}
    optimizer = torch.optim.Adam(modal_groups(model, **model.encoders))
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match=r"\w") as error:
        VCMM(optimizer, **options)
    for word in words:
        assert word in str(error.value)
    assert not model.head._forward_hooks
    assert not any(head._forward_hooks for head in heads.values())
    assert not optimizer._optimizer_step_pre_hooks
    assert [dict(group) for group in optimizer.param_groups] == before


def test_slices_that_reach_past_the_features_are_refused() -> None:
    # The last would silently be shorter than it says.
    model = Concat()
    with pytest.raises(ValueError, match="'video'"):
        controlled(model, heads=model.head, slices={**SLICES, "video": slice(6, 13)})


# Probe heads


def separable(step: int, n: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    y = torch.randint(CLASSES, (n,), generator=generator)
    h_a = torch.randn(n, WIDTH, generator=generator) * 0.3 + 2 * F.one_hot(y, WIDTH)
    h_v = torch.randn(n, WIDTH, generator=generator) * 0.3 + F.one_hot(y, WIDTH)
    return y, h_a, h_v


def probe_heads(**options: Any) -> ProbeHeads:
    return ProbeHeads(dict.fromkeys(MODALITIES, WIDTH), CLASSES, **{"lr": 0.05, **options})


def parameters_of(heads: ProbeHeads) -> list[Tensor]:
    return [p.detach().clone() for p in heads.parameters()]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_probe_heads_learn() -> None:
    heads = probe_heads()
    losses: list[float] = []
    for step in range(60):
        y, h_a, h_v = separable(step)
        observed = heads(y, audio=h_a, video=h_v)
        losses.append(sum(F.cross_entropy(z, y).item() for _, z in observed.values()))
    assert losses[0] == pytest.approx(2 * math.log(CLASSES))  # they begin with no opinion
    assert losses[-1] < 0.3 * losses[0]
    assert losses[30] < losses[10] < losses[0]


def test_probe_heads_give_detached_logits_and_touch_no_gradient_of_the_model() -> None:
    heads = probe_heads()
    encoder = nn.Linear(5, WIDTH)
    for _ in range(3):
        h = encoder(torch.randn(8, 5))
        (features, logits) = heads(torch.arange(8) % CLASSES, audio=h)["audio"]
        assert features.grad_fn is None
        assert logits.grad_fn is None
        assert not logits.requires_grad
        assert torch.equal(features, h)
    assert encoder.weight.grad is None
    h.sum().backward()  # its graph is whole
    assert encoder.weight.grad is not None


def test_probe_heads_give_the_logits_of_before_their_step() -> None:
    # They belong to the weights that had not seen this batch.
    heads = probe_heads()
    for step in range(3):
        y, h_a, _ = separable(step)
        before = copy.deepcopy(heads.heads["audio"])
        _, z = heads(y, audio=h_a)["audio"]
        assert torch.equal(z, before(h_a))
        assert not torch.equal(z, heads.heads["audio"](h_a))


def test_probe_heads_in_eval_mode_do_not_learn() -> None:
    heads = probe_heads()
    y, h_a, h_v = separable(0)
    heads(y, audio=h_a, video=h_v)
    heads.eval()
    before, moments = parameters_of(heads), copy.deepcopy(heads._optimizer.state_dict())
    first = heads(y, audio=h_a, video=h_v)
    second = heads(y, audio=h_a, video=h_v)
    assert equal(parameters_of(heads), before)
    assert torch.equal(first["audio"][1], second["audio"][1])
    after = heads._optimizer.state_dict()["state"]
    assert [s["step"] for s in after.values()] == [s["step"] for s in moments["state"].values()]
    heads.train()
    heads(y, audio=h_a, video=h_v)
    assert not equal(parameters_of(heads), before)


@pytest.mark.parametrize("loss", ["cross_entropy", "multi-label", "smoothed"])
def test_probe_heads_step_as_adam_on_the_loss_by_autograd(loss: str) -> None:
    functions: dict[str, Any] = {
        "cross_entropy": partial(F.cross_entropy, reduction="none"),
        "smoothed": partial(F.cross_entropy, reduction="none", label_smoothing=0.2),
        "multi-label": partial(F.binary_cross_entropy_with_logits, reduction="none"),
    }
    given = "cross_entropy" if loss == "cross_entropy" else functions[loss]
    heads = probe_heads(loss=given)
    twin = nn.ModuleDict({m: nn.Linear(WIDTH, CLASSES) for m in MODALITIES})
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.05)
    for step in range(10):
        y, h_a, h_v = separable(step, n=33)
        features = {"audio": h_a, "video": h_v}
        target = F.one_hot(y, CLASSES).float() if loss == "multi-label" else y
        observed = heads(target, **features)
        total = torch.zeros(())
        for modality, h in features.items():
            z = twin[modality](h)
            torch.testing.assert_close(observed[modality][1], z, rtol=1e-5, atol=1e-6)
            total = total + functions[loss](z, target).flatten(1 if target.ndim > 1 else 0).sum()
        optimizer.zero_grad()
        (total / len(y)).backward()
        optimizer.step()
    for ours, theirs in zip(heads.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        assert ours.abs().max() > 0.05


def test_probe_heads_learn_from_the_tokens_that_count() -> None:
    heads, packed = probe_heads(), probe_heads()
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        h = torch.randn(6, 5, WIDTH, generator=generator)
        y = torch.randint(CLASSES, (6, 5), generator=generator)
        y[torch.rand(6, 5, generator=generator) < 0.4] = -100
        counted = y != -100
        heads(y, audio=h)
        packed(y[counted], audio=h[counted])
    for ours, theirs in zip(heads.parameters(), packed.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_probe_heads_of_an_absent_modality_keep_still_bitwise() -> None:
    heads = probe_heads()
    for step in range(3):
        y, h_a, h_v = separable(step)
        heads(y, audio=h_a, video=h_v)
    still = [p.detach().clone() for p in heads.heads["video"].parameters()]
    moving = [p.detach().clone() for p in heads.heads["audio"].parameters()]
    for step in range(3, 6):
        y, h_a, _ = separable(step)
        assert list(heads(y, audio=h_a)) == ["audio"]
    assert equal(list(heads.heads["video"].parameters()), still)
    assert not equal(list(heads.heads["audio"].parameters()), moving)
    # Adam has not aged there either, or its bias correction would be off.
    video = heads._optimizer.state[heads.heads["video"].weight]
    assert float(video["step"]) == 3


def test_probe_heads_survive_a_batch_that_is_not_finite() -> None:
    # One such batch must not cost the estimates of all that follow.
    heads = probe_heads()
    for step in range(4):
        y, h_a, h_v = separable(step)
        if step == 2:
            h_a, h_v = h_a * math.inf, torch.full_like(h_v, math.nan)
        observed = heads(y, audio=h_a, video=h_v)
    assert all(torch.isfinite(p).all() for p in heads.parameters())
    assert all(torch.isfinite(z).all() for _, z in observed.values())


def test_probe_heads_refuse_a_modality_they_have_no_head_for() -> None:
    heads = probe_heads()
    y, h_a, _ = separable(0)
    before = parameters_of(heads)
    with pytest.raises(ValueError, match=r"'depth' has no probe head.*audio, video"):
        heads(y, audio=h_a, depth=h_a)
    assert equal(parameters_of(heads), before)


def test_probe_heads_round_trip_bitwise_with_their_optimizer() -> None:
    heads = probe_heads()
    for step in range(5):
        y, h_a, h_v = separable(step)
        heads(y, audio=h_a, video=h_v)
    file = io.BytesIO()
    torch.save(heads.state_dict(), file)
    file.seek(0)
    loaded = probe_heads(lr=1.0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert equal(parameters_of(loaded), parameters_of(heads))
    for step in range(5, 9):
        y, h_a, h_v = separable(step)
        for each in (heads, loaded):
            each(y, audio=h_a, video=h_v)
        assert equal(parameters_of(loaded), parameters_of(heads))


@pytest.mark.parametrize("way", ["load_state_dict", "deepcopy"])
def test_probe_heads_and_their_copy_share_nothing(way: str) -> None:
    heads = probe_heads()
    for step in range(3):
        y, h_a, h_v = separable(step)
        heads(y, audio=h_a, video=h_v)
    if way == "deepcopy":
        copied = copy.deepcopy(heads)
    else:
        copied = probe_heads()
        copied.load_state_dict(heads.state_dict())
    alone = copy.deepcopy(heads)
    for step in range(3, 7):
        y, h_a, h_v = separable(step)
        heads(y, audio=-h_v, video=h_a)  # learns something else meanwhile
        copied(y, audio=h_a, video=h_v)
        alone(y, audio=h_a, video=h_v)
        assert equal(parameters_of(copied), parameters_of(alone))


def test_probe_heads_are_no_part_of_the_model_that_they_probe() -> None:
    # Training goes as it would with logits from elsewhere, and the betas move.
    model, vcmm, heads = Towers(), None, probe_heads()
    vcmm = controlled(model)
    for step in range(6):
        inputs, y = draw(step)
        observed, fused = model(inputs)
        F.cross_entropy(fused, y).backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        audio, video = (h for h, _ in observed.values())
        vcmm.observe(y, **heads(y, audio=audio, video=video))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            assert gradient is not None
            assert torch.equal(parameter.grad, gradient)
        vcmm.optimizer.step()
        vcmm.optimizer.zero_grad()
    assert vcmm.betas["audio"] != vcmm.betas["video"]
    assert abs(vcmm.betas["audio"] - 0.9) > 1e-3
    owned = {p for group in vcmm.optimizer.param_groups for p in group["params"]}
    assert owned.isdisjoint(heads.parameters())
