"""Fact 7: copies carry live hooks of their own, and a controller without hooks says so."""

import copy
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam

from vcmm import VCMM, Fixed, Frozen, Kalman, MomentumController, modal_groups


class Model(nn.Module):
    """Two modalities, whose head is either one each or one over both."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = nn.Linear(5, 4)
        self.video = nn.Linear(3, 4)
        self.audio_head = nn.Linear(4, 3)
        self.video_head = nn.Linear(4, 3)
        self.shared = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Any], Tensor]:
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        for name in ("audio", "video"):
            features = torch.tanh(getattr(self, name)(inputs[name]))
            seen[name] = (features, getattr(self, f"{name}_head")(features))
        return seen, seen["audio"][1] + seen["video"][1] + self.shared


Trio = tuple[Model, Optimizer, MomentumController]
Copier = Callable[[Any], Any]

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "Adam": lambda groups: Adam(groups, lr=0.02),
    "AdamW": lambda groups: AdamW(groups, lr=0.02, weight_decay=0.1),
    "Adamax": lambda groups: Adamax(groups, lr=0.02),
    "RAdam": lambda groups: RAdam(groups, lr=0.02),
    "NAdam": lambda groups: NAdam(groups, lr=0.02),
    "SGD": lambda groups: SGD(groups, lr=0.05, momentum=0.9),
}
CONTROLLERS: dict[str, Callable[[Optimizer], MomentumController]] = {
    "vcmm": VCMM,
    "frozen": lambda o: MomentumController(o, Frozen(Kalman(), after=8, average=4)),
    "fixed": lambda o: MomentumController(o, Fixed(audio=0.95, video=0.8)),
}


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


COPIERS: list[Copier] = [copy.deepcopy, pickled]


def make(
    optimizer: str = "Adam", controller: Callable[[Optimizer], MomentumController] = VCMM
) -> Trio:
    torch.manual_seed(0)
    model = Model()
    made = OPTIMIZERS[optimizer](
        modal_groups(
            model, audio=[model.audio, model.audio_head], video=[model.video, model.video_head]
        )
    )
    return model, made, controller(made)


def forward(trio: Trio, step: int, *, observe: bool = True, captured: bool = False) -> None:
    model, optimizer, controller = trio
    generator = torch.Generator().manual_seed(step)
    inputs = {
        "audio": torch.randn(8, 5, generator=generator),
        "video": torch.randn(8, 3, generator=generator),
    }
    target = torch.randint(3, (8,), generator=generator)
    optimizer.zero_grad()
    seen, fused = model(inputs)
    nn.functional.cross_entropy(fused, target).backward()
    if step < 3:  # so that there are cohorts
        model.audio.bias.grad = None
    if observe:
        controller.observe(target, **({} if captured else seen))


def train(
    trio: Trio, steps: Iterable[int], *, observe: bool = True, captured: bool = False
) -> None:
    for step in steps:
        forward(trio, step, observe=observe, captured=captured)
        trio[1].step()


def bits(value: Any) -> Any:
    """Tensors as their bits, so that == compares them."""
    if isinstance(value, Tensor):
        return value.detach().numpy().tobytes(), str(value.dtype), tuple(value.shape)
    if isinstance(value, Mapping):
        return {key: bits(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [bits(inner) for inner in value]
    return value


def snapshot(trio: Trio) -> Any:
    model, optimizer, controller = trio
    return bits([model.state_dict(), optimizer.state_dict(), controller.metrics()])


# deepcopy and pickle of everything together


@pytest.mark.parametrize("copier", COPIERS)
@pytest.mark.parametrize(
    ("optimizer", "controller"),
    [(optimizer, "vcmm") for optimizer in OPTIMIZERS]
    + [(optimizer, policy) for optimizer in ("Adam", "SGD") for policy in ("frozen", "fixed")],
)
def test_fact_07_a_copy_continues_like_the_original(
    optimizer: str, controller: str, copier: Copier
) -> None:
    original = make(optimizer, CONTROLLERS[controller])
    train(original, range(6))
    copied = copier(original)
    assert copied[2].state_dict() == original[2].state_dict()
    assert copied[2].metrics() == original[2].metrics()
    train(original, range(6, 12))
    train(copied, range(6, 12))
    assert snapshot(copied) == snapshot(original)
    assert len(set(copied[2].betas.values())) > 1  # so the hooks of the copy are at work


@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_a_copy_before_the_first_step_starts_like_the_original(copier: Copier) -> None:
    original = make()
    copied = copier(original)
    train(original, range(5))
    train(copied, range(5))
    assert snapshot(copied) == snapshot(original)


@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_a_copy_is_independent(copier: Copier) -> None:
    original, untouched = make(), make()
    train(original, range(4))
    train(untouched, range(4))
    copied = copier(original)
    train(copied, range(20, 27))  # along other batches
    assert snapshot(copied) != snapshot(original)
    assert snapshot(original) == snapshot(untouched)
    train(original, range(4, 8))
    train(untouched, range(4, 8))
    assert snapshot(original) == snapshot(untouched)


@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_parts_of_a_copy_belong_together(copier: Copier) -> None:
    original = make()
    train(original, range(3))
    model, optimizer, controller = copier(original)
    assert controller.optimizer is optimizer
    parameters = {id(p) for p in model.parameters()}
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == parameters
    assert parameters.isdisjoint(id(p) for p in original[0].parameters())


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_the_order_in_which_things_are_copied_does_not_matter(
    copier: Copier, order: tuple[int, ...]
) -> None:
    original = make()
    train(original, range(4))
    copied = copier({i: original[i] for i in order})
    copied = (copied[0], copied[1], copied[2])
    train(original, range(4, 8))
    train(copied, range(4, 8))
    assert snapshot(copied) == snapshot(original)


@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_a_copy_of_a_copy(copier: Copier) -> None:
    original = make()
    train(original, range(4))
    copied = copier(copier(original))
    train(original, range(4, 8))
    train(copied, range(4, 8))
    assert snapshot(copied) == snapshot(original)


@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_a_copy_between_observe_and_step_has_observed_too(copier: Copier) -> None:
    # A checkpoint is documented to hold whole steps; a copy is everything that the object is.
    original = make()
    train(original, range(4))
    forward(original, 4)
    copied = copier(original)
    for parameter, twin in zip(original[0].parameters(), copied[0].parameters(), strict=True):
        twin.grad = None if parameter.grad is None else parameter.grad.clone()
    original[1].step()
    copied[1].step()
    assert snapshot(copied) == snapshot(original)
    train(original, range(5, 8))
    train(copied, range(5, 8))
    assert snapshot(copied) == snapshot(original)


@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_copying_does_not_disturb_the_original(copier: Copier) -> None:
    copied_often, untouched = make(), make()
    for step in range(6):
        train(untouched, [step])
        forward(copied_often, step)
        copier(copied_often)
        copied_often[1].step()
        copier(copied_often)
    assert snapshot(copied_often) == snapshot(untouched)


def test_fact_07_a_copy_after_a_failing_step_holds_the_optimizers_own_numbers() -> None:
    original = make("AdamW", CONTROLLERS["fixed"])
    train(original, range(5))

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory, say")

    handle = original[1].register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(original, [5])
    handle.remove()
    copied = copy.deepcopy(original)
    assert [g["lr"] for g in copied[1].param_groups] == [0.02] * 3
    assert [g["betas"] for g in copied[1].param_groups] == [(0.9, 0.999)] * 3
    train(original, range(5, 8))
    train(copied, range(5, 8))
    assert snapshot(copied) == snapshot(original)


# Copies of the optimizer alone


@pytest.mark.parametrize("copier", COPIERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_07_a_copy_of_the_optimizer_alone_is_plain(optimizer: str, copier: Copier) -> None:
    original = make(optimizer, CONTROLLERS["fixed"])
    train(original, range(4))
    # The parameters of the copy are reached through it alone: they come along with its groups.
    alone = copier(original[1])
    assert "vcmm" not in alone.state_dict()
    before = bits(original[1].state_dict())

    original[2].detach()
    for used in (alone, original[1]):
        generator = torch.Generator().manual_seed(0)
        for group in used.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
    alone.step()
    assert bits(original[1].state_dict()["state"]) == before["state"]  # not moved by the copy
    original[1].step()
    assert bits(alone.state_dict()["state"]) == bits(original[1].state_dict()["state"])
    for mine, theirs in zip(alone.param_groups, original[1].param_groups, strict=True):
        assert bits(mine["params"]) == bits(theirs["params"])


def test_fact_07_a_controller_can_be_given_to_a_copied_optimizer() -> None:
    original = make(controller=CONTROLLERS["fixed"])
    train(original, range(4))
    model, optimizer = copy.deepcopy(original[:2])
    copied = (model, optimizer, CONTROLLERS["fixed"](optimizer))
    copied[2].load_state_dict(original[2].state_dict())
    train(original, range(4, 8))
    train(copied, range(4, 8))
    assert snapshot(copied) == snapshot(original)


# Hooks that are gone


def detach(trio: Trio) -> None:
    trio[2].detach()


def clear_step_hooks(trio: Trio) -> None:
    trio[1]._optimizer_step_pre_hooks.clear()


def remake_the_optimizer(trio: Trio) -> None:
    # What Optimizer.__setstate__ leaves of a pickled one: dicts of hooks that are new and empty.
    for name in [name for name in vars(trio[1]) if name.endswith("_hooks")]:
        setattr(trio[1], name, type(getattr(trio[1], name))())


def remove_the_handle(trio: Trio) -> None:
    for handle in list(trio[1]._optimizer_step_pre_hooks):
        del trio[1]._optimizer_step_pre_hooks[handle]


LOSSES = (detach, clear_step_hooks, remake_the_optimizer, remove_the_handle)


@pytest.mark.parametrize("lose", LOSSES)
def test_fact_07_observe_without_a_live_hook_is_loud(lose: Callable[[Trio], None]) -> None:
    trio = make()
    train(trio, range(2))
    lose(trio)
    with pytest.raises(ValueError, match=r"attach\(\)"):
        forward(trio, 2)
    with pytest.raises(ValueError, match=r"attach\(\)"), trio[2].applied():
        pass


@pytest.mark.parametrize("lose", LOSSES)
def test_fact_07_observe_without_a_live_hook_is_loud_with_heads_too(
    lose: Callable[[Trio], None],
) -> None:
    trio = with_heads()
    train(trio, range(2), captured=True)
    lose(trio)
    with pytest.raises(ValueError, match=r"attach\(\)"):
        forward(trio, 2, captured=True)


@pytest.mark.parametrize("lose", LOSSES)
def test_fact_07_attach_brings_the_hooks_back(lose: Callable[[Trio], None]) -> None:
    trio, untouched = make(), make()
    train(trio, range(3))
    train(untouched, range(6))
    lose(trio)
    trio[2].attach()
    train(trio, range(3, 6))
    assert snapshot(trio) == snapshot(untouched)


def test_fact_07_another_hook_in_its_place_is_no_hook() -> None:
    trio = make()
    clear_step_hooks(trio)
    trio[1].register_step_pre_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"attach\(\)"):
        forward(trio, 0)


# Attaching is repeatable


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_07_attaching_twice_does_not_apply_twice(optimizer: str) -> None:
    once, often = (make(optimizer, CONTROLLERS["fixed"]) for _ in range(2))
    counts = {n: len(h) for n, h in vars(often[1]).items() if n.endswith("_hooks")}
    for step in range(6):
        often[2].attach()
        often[2].attach()
        train(once, [step])
        train(often, [step])
    assert {n: len(h) for n, h in vars(often[1]).items() if n.endswith("_hooks")} == counts
    assert snapshot(often) == snapshot(once)


def test_fact_07_attaching_twice_captures_once() -> None:
    once, often = with_heads(), with_heads()
    for step in range(5):
        often[2].attach()
        train(once, [step], captured=True)
        train(often, [step], captured=True)
    assert len(often[0].audio_head._forward_hooks) == 1
    assert snapshot(often) == snapshot(once)


def test_fact_07_attaching_anew_shows_the_momenta_that_are_in_force() -> None:
    # Loggers read group["vcmm_beta"]; hooks that were renewed are no reason for it to go away.
    trio = make(controller=CONTROLLERS["fixed"])
    train(trio, range(2))
    shown = [group.get("vcmm_beta") for group in trio[1].param_groups]
    trio[2].attach()
    assert [group.get("vcmm_beta") for group in trio[1].param_groups] == shown == [0.95, 0.8, None]


def test_fact_07_detach_and_attach_keep_the_ages() -> None:
    trio, untouched = make(), make()
    train(trio, range(3))
    train(untouched, range(6))
    trio[2].detach()
    trio[2].attach()
    train(trio, range(3, 6))
    assert snapshot(trio) == snapshot(untouched)


def test_fact_07_attach_moves_to_another_optimizer() -> None:
    # As one does whose optimizer was replaced: rebuilt over the same groups, with its state.
    trio, untouched = make(), make()
    train(trio, range(4))
    train(untouched, range(8))
    model, old, controller = trio
    groups = [{k: v for k, v in g.items() if k != "vcmm_beta"} for g in old.param_groups]
    new = Adam(groups)
    new.load_state_dict({k: v for k, v in old.state_dict().items() if k != "vcmm"})
    controller.attach(new)
    assert controller.optimizer is new
    assert "vcmm" in new.state_dict()
    assert "vcmm" not in old.state_dict()
    assert not any(hooks for name, hooks in vars(old).items() if name.endswith("_hooks"))
    train((model, new, controller), range(4, 8))
    assert snapshot((model, new, controller)) == snapshot(untouched)


def test_fact_07_attach_to_a_new_optimizer_without_history_starts_anew() -> None:
    # The parameters are older than their moments now; only the moments count.
    trio = make(controller=CONTROLLERS["fixed"])
    train(trio, range(4))
    model, old, controller = trio
    fresh = copy.deepcopy(model)
    new = Adam([{k: v for k, v in g.items() if k != "vcmm_beta"} for g in old.param_groups])
    controller.attach(new)
    twin = Adam(
        modal_groups(
            fresh, audio=[fresh.audio, fresh.audio_head], video=[fresh.video, fresh.video_head]
        )
    )
    for group in twin.param_groups:
        group["lr"] = 0.02
    anew = (fresh, twin, CONTROLLERS["fixed"](twin))
    train((model, new, controller), range(4, 8))
    train(anew, range(4, 8))
    assert bits(model.state_dict()) == bits(fresh.state_dict())


# Captured heads


def with_heads(*, concat: bool = False) -> Trio:
    model, optimizer, _ = make(controller=CONTROLLERS["fixed"])
    _.detach()
    if concat:
        head = nn.Linear(8, 3)
        model.add_module("head", head)
        slices = {"audio": slice(0, 4), "video": slice(4, 8)}
        return model, optimizer, VCMM(optimizer, heads=head, slices=slices)
    heads = {"audio": model.audio_head, "video": model.video_head}
    return model, optimizer, VCMM(optimizer, heads=heads)


@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_captures_of_a_copy_continue_like_those_of_the_original(copier: Copier) -> None:
    original = with_heads()
    train(original, range(4), captured=True)
    copied = copier(original)
    train(original, range(4, 8), captured=True)
    train(copied, range(4, 8), captured=True)
    assert snapshot(copied) == snapshot(original)


@pytest.mark.parametrize("copier", COPIERS)
@pytest.mark.parametrize("concat", [False, True], ids=["heads", "concat"])
def test_fact_07_captures_of_a_copy_belong_to_the_copied_heads(
    concat: bool, copier: Copier
) -> None:
    original = with_heads(concat=concat)
    copied = copier(original)
    target = torch.tensor([0, 1, 2, 0])

    def call(model: Model) -> None:
        generator = torch.Generator().manual_seed(0)
        if concat:
            model.get_submodule("head")(torch.randn(4, 8, generator=generator))
        else:
            model.audio_head(torch.randn(4, 4, generator=generator))
            model.video_head(torch.randn(4, 4, generator=generator))

    # Neither hears a word of what the other's heads say, in either direction.
    for mine, other in ((original, copied), (copied, original)):
        call(other[0])
        with pytest.raises(RuntimeError, match="no head was called"):
            mine[2].observe(target)
        other[2].observe(target)
        call(mine[0])
        mine[2].observe(target)
        for trio in (mine, other):
            trio[2].discard()


@pytest.mark.parametrize("copier", COPIERS)
def test_fact_07_the_heads_of_a_copy_have_one_hook_each(copier: Copier) -> None:
    original = with_heads()
    model, _, controller = copier(copier(original))
    assert len(model.audio_head._forward_hooks) == 1
    controller.detach()
    assert not model.audio_head._forward_hooks
    assert len(original[0].audio_head._forward_hooks) == 1


def test_fact_07_a_copy_of_the_model_alone_does_not_speak_to_the_controller() -> None:
    # An averaged or a frozen copy of the model (EMA, teacher) is a common guest.
    original = with_heads()
    teacher = copy.deepcopy(original[0])
    teacher.audio_head(torch.randn(4, 4))
    teacher.video_head(torch.randn(4, 4))
    with pytest.raises(RuntimeError, match="no head was called"):
        original[2].observe(torch.tensor([0, 1, 2, 0]))


def test_fact_07_a_model_with_captured_heads_can_be_pickled() -> None:
    # torch.save(model) is a pickle of it, hooks and all.
    original = with_heads()
    assert bits(pickled(original[0]).state_dict()) == bits(original[0].state_dict())
