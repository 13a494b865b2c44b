"""Facts 6 and 13: resuming is bit-exact, and what does not fit is refused before anything moves."""

import copy
import io
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam

from vcmm import (
    VCMM,
    Fixed,
    Frozen,
    Kalman,
    MomentumController,
    Policy,
    Probe,
    modal_groups,
    reference,
)
from vcmm.record import pack, unpack

STEPS = 20
DIRECT, GRAM = 16, 8  # batch sizes at which the probe of a [3, 4 + 1] head takes either form


class Model(nn.Module):
    """Two modalities of equal make, so that swapping their groups changes no size."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = nn.ModuleDict({"encoder": nn.Linear(5, 4), "head": nn.Linear(4, 3)})
        self.video = nn.ModuleDict({"encoder": nn.Linear(5, 4), "head": nn.Linear(4, 3)})
        self.shared = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Any], Tensor]:
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        for name, part in (("audio", self.audio), ("video", self.video)):
            features = torch.tanh(part["encoder"](inputs[name]))
            seen[name] = (features, part["head"](features))
        return seen, seen["audio"][1] + seen["video"][1] + self.shared


class Remembering(Policy):
    """A user's own: its momentum follows a memory of every kind that a state may hold."""

    def __init__(self) -> None:
        self.count = 0
        self.trace = torch.zeros(2)
        self.notes: dict[str, Any] = {"last": "none", "energies": []}

    def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Mapping[str, float]:
        self.count += 1
        energies = [float(probes[m].energy) for m in sorted(probes)]
        self.trace = 0.7 * self.trace + torch.tensor(energies)
        self.notes = {"last": max(probes), "energies": energies}
        audio, video = torch.sigmoid(torch.log(self.trace)).tolist()
        return {"audio": 0.99 - 0.1 * audio, "video": 0.7 + 0.2 * video / self.count}

    def metrics(self) -> dict[str, float]:
        return {f"energy/{i}": energy for i, energy in enumerate(self.notes["energies"])}

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "trace": self.trace, "notes": self.notes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count, self.trace, self.notes = state["count"], state["trace"], dict(state["notes"])


Trio = tuple[Model, Optimizer, MomentumController]
MakeOptimizer = Callable[[Any], Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "Adam": lambda groups: Adam(groups, lr=0.02),
    "AdamW": lambda groups: AdamW(groups, lr=0.02, weight_decay=0.1),
    "SGD": lambda groups: SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01),
    "NAdam": lambda groups: NAdam(groups, lr=0.02),
}
CONTROLLERS: dict[str, Callable[[Optimizer], MomentumController]] = {
    "vcmm": VCMM,
    "frozen": lambda o: MomentumController(o, Frozen(Kalman(), after=9, average=4)),
    "fixed": lambda o: MomentumController(o, Fixed(audio=0.95, video=0.8)),
    "unbiased": lambda o: MomentumController(o, Kalman(floor_after_smoothing=True)),
    "user": lambda o: MomentumController(o, Remembering()),
}


def groups_of(model: Model, *, tags: bool = True) -> list[dict[str, Any]]:
    groups = modal_groups(model, audio=model.audio, video=model.video)
    return groups if tags else [{"params": group["params"]} for group in groups]


def make(
    optimizer: MakeOptimizer = OPTIMIZERS["Adam"],
    controller: Callable[[Optimizer], MomentumController] = VCMM,
    seed: int = 0,
) -> Trio:
    torch.manual_seed(seed)
    model = Model()
    made = optimizer(groups_of(model))
    return model, made, controller(made)


def train(trio: Trio, steps: Iterable[int], n: int = GRAM) -> None:
    """Some parameters sit out some steps, so that groups hold cohorts of several ages."""
    model, optimizer, controller = trio
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        inputs = {m: torch.randn(n, 5, generator=generator) for m in ("audio", "video")}
        target = torch.randint(3, (n,), generator=generator)
        seen, fused = model(inputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(fused, target).backward()
        if step < 4:
            model.audio["encoder"].bias.grad = None
        if 2 <= step < 9:
            model.video["head"].weight.grad = None
        controller.observe(target, **seen)
        optimizer.step()


def plainly(state: Any) -> Any:
    """Tensors as their bits, so that == compares them."""
    if isinstance(state, Tensor):
        data = state.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        return "tensor", str(state.dtype), tuple(state.shape), bytes(data)
    if isinstance(state, Mapping):
        return {key: plainly(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [plainly(value) for value in state]
    return state


def snapshot(trio: Trio) -> Any:
    """Everything that a run goes on from; vcmm_beta is for loggers, and made anew each step."""
    model, optimizer, controller = trio
    return plainly(
        [
            model.state_dict(),
            optimizer.state_dict()["state"],
            controller.state_dict(),
            controller.betas,
            controller.metrics(),
            [
                {k: v for k, v in group.items() if k not in ("params", "vcmm_beta")}
                for group in optimizer.param_groups
            ],
        ]
    )


def on_disk(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def save(trio: Trio) -> Any:
    model, optimizer, controller = trio
    return on_disk(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "controller": controller.state_dict(),
        }
    )


def without_record(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != "vcmm"}


def load_optimizer_alone(trio: Trio, saved: Any) -> None:
    trio[1].load_state_dict(saved["optimizer"])


def load_controller_last(trio: Trio, saved: Any) -> None:
    trio[1].load_state_dict(without_record(saved["optimizer"]))
    trio[2].load_state_dict(saved["controller"])


def load_controller_first(trio: Trio, saved: Any) -> None:
    trio[2].load_state_dict(saved["controller"])
    trio[1].load_state_dict(without_record(saved["optimizer"]))


def load_both(trio: Trio, saved: Any) -> None:
    trio[1].load_state_dict(saved["optimizer"])
    trio[2].load_state_dict(saved["controller"])


ROUTES = (load_optimizer_alone, load_controller_last, load_controller_first, load_both)


def resume(saved: Any, route: Callable[[Trio, Any], None], *what: Any) -> Trio:
    """New objects, of another seed, so that nothing is right by chance."""
    trio = make(*what, seed=1)
    trio[0].load_state_dict(saved["model"])
    route(trio, saved)
    return trio


# Fact 13: resuming


@pytest.mark.parametrize("n", [DIRECT, GRAM], ids=["direct", "gram"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_fact_13_resume_is_bitwise(controller: str, optimizer: str, n: int) -> None:
    what = OPTIMIZERS[optimizer], CONTROLLERS[controller]
    through = make(*what)
    saved: dict[int, Any] = {}
    for step in range(STEPS):
        if step in (0, 1, 6, 13):
            saved[step] = save(through)
        train(through, [step], n)
    expected = snapshot(through)
    assert len(set(through[2].betas.values())) > 1  # or nothing would have been at stake
    for route, (step, state) in zip(ROUTES, saved.items(), strict=True):
        resumed = resume(state, route, *what)
        train(resumed, range(step, STEPS), n)
        assert snapshot(resumed) == expected, (route.__name__, step)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_fact_13_resume_is_bitwise_at_any_step_and_by_any_route(
    optimizer: str, route: Callable[[Trio, Any], None]
) -> None:
    what = OPTIMIZERS[optimizer], VCMM
    through = make(*what)
    saved: list[Any] = []
    after: list[Any] = []
    for step in range(STEPS):
        saved.append(save(through))
        train(through, [step])
        after.append(snapshot(through))
    for step, state in enumerate(saved):
        resumed = resume(state, route, *what)
        until = min(step + 3, STEPS)  # far enough to use every part of what was loaded
        train(resumed, range(step, until))
        assert snapshot(resumed) == after[until - 1], step


def test_fact_13_the_forms_are_the_two_that_are_meant() -> None:
    for n, form in ((DIRECT, "direct"), (GRAM, "gram")):
        trio = make()
        train(trio, range(2), n)
        record = unpack(trio[2].state_dict()["record"])
        assert {stream["form"] for stream in record["pool"].values()} == {form}


def test_fact_13_the_ages_are_the_several_that_are_meant() -> None:
    trio = make()
    train(trio, range(STEPS))
    audio, video, shared = unpack(trio[2].state_dict()["record"])["ages"]
    assert sorted(cohort[0] for cohort in audio) == [STEPS - 4, STEPS]
    assert sorted(cohort[0] for cohort in video) == [STEPS - 7, STEPS]
    assert shared == []


def test_fact_13_what_is_loaded_is_what_was_saved() -> None:
    through = make()
    train(through, range(7))
    for route in ROUTES:
        assert snapshot(resume(save(through), route)) == snapshot(through), route.__name__


def test_fact_13_saving_changes_nothing() -> None:
    undisturbed, saving = make(), make()
    for step in range(8):
        train(undisturbed, [step])
        train(saving, [step])
        save(saving)
    assert snapshot(saving) == snapshot(undisturbed)


def test_fact_13_a_saved_state_is_not_touched_by_later_steps() -> None:
    trio = make()
    train(trio, range(5))
    controller, optimizer = trio[2].state_dict(), trio[1].state_dict()["vcmm"]
    before = copy.deepcopy((controller, optimizer))
    train(trio, range(5, 8))
    assert (controller, optimizer) == before


def test_fact_13_counters_are_resumed() -> None:
    trio = make()
    train(trio, range(3))
    train(trio, [3], n=1)  # cannot be measured
    trio[2].observe(torch.tensor([0, 1]), audio=(torch.ones(2, 4), torch.ones(2, 3)))
    trio[2].discard()
    resumed = resume(save(trio), load_optimizer_alone)
    metrics = resumed[2].metrics()
    assert metrics["audio/unmeasured"] == metrics["video/unmeasured"] == 1
    assert metrics["discarded"] == 1


def test_fact_13_a_gram_memory_of_strided_features_resumes_bitwise() -> None:
    # Features that are slices of a wider tensor are remembered as they lie, and saved otherwise.
    def observe(controller: MomentumController, steps: Iterable[int]) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            wide = torch.randn(11, 100, generator=generator)
            logits = torch.randn(11, 30, generator=generator)
            target = torch.randint(30, (11,), generator=generator)
            audio, video = wide[:, 1:50], wide[:, 50:]
            controller.observe(target, audio=(audio, logits), video=(video, logits.roll(1)))
            for parameter in (p for g in controller.optimizer.param_groups for p in g["params"]):
                parameter.grad = torch.ones_like(parameter)
            controller.optimizer.step()

    through = make()
    observe(through[2], range(6))
    resumed = resume(save(through), load_optimizer_alone)
    observe(through[2], range(6, 9))
    observe(resumed[2], range(6, 9))
    assert snapshot(resumed) == snapshot(through)


# Fact 13: what a state holds


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_13_no_foreign_keys_in_the_optimizers_state(optimizer: str) -> None:
    trio = make(OPTIMIZERS[optimizer])
    train(trio, range(6))
    torch.manual_seed(0)
    model = Model()
    plain = OPTIMIZERS[optimizer](groups_of(model))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.video["head"].weight.grad = None
    plain.step()
    keys = {name: set(plain.state.get(p, {})) for name, p in model.named_parameters()}
    found = {name: set(trio[1].state.get(p, {})) for name, p in trio[0].named_parameters()}
    assert found == {**keys, "video.head.weight": keys["audio.head.weight"]}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_13_a_parameter_without_gradients_gets_no_state(optimizer: str) -> None:
    # SGD's zero seed is the one touch there is, and it is for parameters that take the step.
    trio = make(OPTIMIZERS[optimizer], CONTROLLERS["fixed"])
    train(trio, range(4))
    assert trio[0].audio["encoder"].bias not in trio[1].state
    assert trio[0].audio["encoder"].weight in trio[1].state


def test_fact_13_the_seed_of_sgd_is_zero_and_only_where_momentum_moved() -> None:
    trio = make(OPTIMIZERS["SGD"], CONTROLLERS["fixed"])
    seeds: list[dict[str, Any]] = []
    model, optimizer, _ = trio

    def look(*_: Any) -> None:
        state = optimizer.state
        seeds.append({n: dict(state.get(p, {})) for n, p in model.named_parameters()})

    optimizer.register_step_pre_hook(look)
    train(trio, [0])
    seeded = {name for name, state in seeds[0].items() if state}
    assert seeded == {n for n, _ in model.named_parameters()} - {"shared", "audio.encoder.bias"}
    for name in seeded:
        assert set(seeds[0][name]) == {"momentum_buffer"}


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_fact_13_states_hold_tensors_numbers_and_strings_alone(controller: str) -> None:
    trio = make(controller=CONTROLLERS[controller])
    train(trio, range(12))

    def check(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                assert type(key) in (str, int), key
                check(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                check(inner)
        else:
            assert value is None or type(value) in (Tensor, int, float, bool, str), value

    state = trio[2].state_dict()
    check(state)
    assert all(isinstance(value, int | str) for value in state.values())
    check(trio[1].state_dict())
    assert plainly(on_disk(state)) == plainly(state)
    assert plainly(on_disk(trio[1].state_dict())) == plainly(trio[1].state_dict())


def test_fact_13_a_controller_that_has_done_nothing_has_the_same_structure() -> None:
    # What loads into the structure of a fresh object (DistributedCheckpoint) finds all of it there.
    fresh, trained = make(), make()
    train(trained, range(3))
    before, after = fresh[2].state_dict(), trained[2].state_dict()
    assert {key: type(value) for key, value in before.items()} == {
        key: type(value) for key, value in after.items()
    }
    assert before != after


def test_fact_13_state_dict_of_the_optimizer_carries_the_controllers() -> None:
    trio = make()
    train(trio, range(3))
    assert trio[1].state_dict()["vcmm"] == trio[2].state_dict()


def test_fact_10_what_was_observed_for_the_coming_step_is_not_saved() -> None:
    # Documented: save between steps. A half observed step does not make it into the record.
    trio = make()
    train(trio, range(3))
    before = trio[2].state_dict()
    trio[2].observe(torch.tensor([0, 1]), audio=(torch.randn(2, 4), torch.randn(2, 3)))
    assert trio[2].state_dict() == before


@pytest.mark.parametrize("route", ROUTES)
def test_fact_10_loading_empties_the_pool(route: Callable[[Trio, Any], None]) -> None:
    through = make()
    train(through, range(5))
    saved = save(through)
    loaded = make(seed=1)
    train(loaded, range(2))
    # 1000 samples of another kind, which would be seen in any R that they entered
    features, logits = 9 * torch.randn(1000, 4), 9 * torch.randn(1000, 3)
    loaded[2].observe(torch.randint(3, (1000,)), audio=(features, logits))
    loaded[0].load_state_dict(saved["model"])
    route(loaded, saved)
    train(through, range(5, 8))
    train(loaded, range(5, 8))
    assert snapshot(loaded) == snapshot(through)


# Fact 6: load_state_dict replaces the group dicts


def test_fact_06_the_controller_holds_no_group() -> None:
    through, reloaded = make(), make()
    train(through, range(4))
    train(reloaded, range(4))
    old = list(reloaded[1].param_groups)
    reloaded[1].load_state_dict(reloaded[1].state_dict())
    assert not any(a is b for a in old for b in reloaded[1].param_groups)
    for trio in (through, reloaded):
        for group in trio[1].param_groups:
            group["lr"] *= 0.5
        train(trio, range(4, 9))
    assert snapshot(reloaded) == snapshot(through)
    shown = {g["modality"]: g.get("vcmm_beta") for g in reloaded[1].param_groups}
    assert shown == {**reloaded[2].betas, None: None}


def test_fact_06_loading_what_was_just_saved_changes_nothing() -> None:
    # accelerate and the HF Trainer do so while they prepare.
    trio = make()
    for state in (trio[1].state_dict(), without_record(trio[1].state_dict())):
        trio[1].load_state_dict(state)
        assert trio[2].state_dict() == make()[2].state_dict()
    train(trio, range(5))
    for state in (trio[1].state_dict(), without_record(trio[1].state_dict())):
        before = snapshot(trio)
        trio[1].load_state_dict(state)
        assert snapshot(trio) == before
    untouched = make()
    train(untouched, range(7))
    train(trio, range(5, 7))
    assert snapshot(trio) == snapshot(untouched)


def plain_history(make_optimizer: MakeOptimizer, steps: int, *, tags: bool) -> tuple[Model, Any]:
    """A run without a controller, and what its optimizer saves."""
    torch.manual_seed(0)
    model = Model()
    optimizer = make_optimizer(groups_of(model, tags=tags))
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return model, on_disk(optimizer.state_dict())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_06_tags_that_loading_dropped_are_restored(optimizer: str) -> None:
    model, saved = plain_history(OPTIMIZERS[optimizer], 3, tags=False)
    assert not any("modality" in group for group in saved["param_groups"])
    trio = make(OPTIMIZERS[optimizer], CONTROLLERS["fixed"], seed=1)
    trio[0].load_state_dict(model.state_dict())
    trio[1].load_state_dict(saved)
    tags = [(group["name"], group["modality"]) for group in trio[1].param_groups]
    assert tags == [("audio", "audio"), ("video", "video"), ("shared", None)]
    train(trio, range(3))
    assert trio[2].betas == {"audio": 0.95, "video": 0.8}
    assert [g.get("vcmm_beta") for g in trio[1].param_groups] == [0.95, 0.8, None]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_06_a_plain_optimizer_loads_what_was_saved_with_a_controller(optimizer: str) -> None:
    trio = make(OPTIMIZERS[optimizer])
    train(trio, range(5))
    saved = save(trio)
    torch.manual_seed(1)
    model = Model()
    plain = OPTIMIZERS[optimizer](groups_of(model, tags=False))
    model.load_state_dict(saved["model"])
    plain.load_state_dict(saved["optimizer"])
    again = plain.state_dict()
    assert plainly(again["state"]) == plainly(trio[1].state_dict()["state"])
    assert "vcmm" not in again
    trio[2].detach()
    for network, used in ((model, plain), (trio[0], trio[1])):
        generator = torch.Generator().manual_seed(0)
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        used.step()
    assert plainly(model.state_dict()) == plainly(trio[0].state_dict())


# Fact 6: what does not fit is refused, and nothing has moved

Groups = Callable[[Model], list[dict[str, Any]]]


def reordered(*order: int) -> Groups:
    return lambda model: [groups_of(model)[i] for i in order]


def renamed(model: Model) -> list[dict[str, Any]]:
    audio, video, shared = groups_of(model)
    return [audio, {**video, "name": "text", "modality": "text"}, shared]


def split(model: Model) -> list[dict[str, Any]]:
    return modal_groups(model, audio=model.audio, video=model.video, decay_filter=True)


def moved(model: Model) -> list[dict[str, Any]]:
    return modal_groups(model, audio=[model.audio, model.shared], video=model.video["encoder"])


MISFITS: dict[str, tuple[Groups, str]] = {
    "swapped": (reordered(1, 0, 2), "video.*audio"),
    "shared first": (reordered(2, 0, 1), "shared.*audio"),
    "other modalities": (renamed, "text.*video"),
    "more groups": (split, "audio/decay.*audio"),
    "other sizes": (moved, "audio"),
}


def assert_refused(
    trio: Trio, load: Callable[[], None], match: str = r"\S", until: Iterable[int] = range(3, 5)
) -> None:
    """A ValueError, after which the run stands and goes on as if nobody had tried."""
    twin = make()
    train(twin, range(3))
    before = snapshot(trio)
    assert before == snapshot(twin)
    with pytest.raises(ValueError, match=match):
        load()
    assert snapshot(trio) == before
    train(trio, until)
    train(twin, until)
    assert snapshot(trio) == snapshot(twin)


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("by", ["optimizer", "optimizer without record", "controller"])
def test_fact_06_other_groups_are_refused_by_name(misfit: str, by: str) -> None:
    groups, match = MISFITS[misfit]
    torch.manual_seed(1)
    other_model = Model()
    other_optimizer = Adam(groups(other_model), lr=0.02)
    other = MomentumController(other_optimizer, Fixed())
    for parameter in other_model.parameters():
        parameter.grad = torch.ones_like(parameter)
    other_optimizer.step()
    saved = on_disk({"optimizer": other_optimizer.state_dict(), "controller": other.state_dict()})

    trio = make()
    train(trio, range(3))
    if by == "controller":
        assert_refused(trio, lambda: trio[2].load_state_dict(saved["controller"]), match)
    elif by == "optimizer":
        assert_refused(trio, lambda: trio[1].load_state_dict(saved["optimizer"]), match)
    else:
        state = without_record(saved["optimizer"])
        assert_refused(trio, lambda: trio[1].load_state_dict(state), match)


def test_fact_06_other_shapes_are_refused() -> None:
    class Wider(Model):
        def __init__(self) -> None:
            super().__init__()
            self.video["head"] = nn.Linear(7, 3)

    wider = Wider()
    optimizer = Adam(groups_of(wider))
    saved = MomentumController(optimizer, Kalman()).state_dict()
    trio = make()
    train(trio, range(3))
    assert_refused(trio, lambda: trio[2].load_state_dict(saved), "video")
    trio = make()
    train(trio, range(3))
    assert_refused(trio, lambda: trio[1].load_state_dict(optimizer.state_dict()), "video")


@pytest.mark.parametrize("record", [True, False], ids=["with record", "without record"])
def test_fact_06_a_group_without_tags_is_not_taken_for_a_tagged_one(record: bool) -> None:
    # The rest may be a group of the user's own making, {"params": ...}, without a name.
    def trained(*order: int) -> Optimizer:
        torch.manual_seed(0)
        model = Model()
        audio = {"params": [*model.audio.parameters()], "modality": "audio"}
        rest = {"params": [*model.video.parameters()]}
        assert len(audio["params"]) == len(rest["params"])
        optimizer = Adam([(audio, rest)[i] for i in order])
        optimizers.append((optimizer, VCMM(optimizer)))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return optimizer

    optimizers: list[Any] = []
    saved, optimizer = trained(1, 0).state_dict(), trained(0, 1)
    before = plainly(optimizer.state_dict())
    with pytest.raises(ValueError, match="audio"):
        optimizer.load_state_dict(saved if record else without_record(saved))
    assert plainly(optimizer.state_dict()) == before


# Damage


def without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.pop(key)


def instead(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.update({key: value})


def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def damage(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value

    return damage


def dropped(*path: Any) -> Callable[[dict[str, Any]], None]:
    def damage(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        del record[path[-1]]

    return damage


# Betas and counts of some modalities alone are no damage: others start at their base, and at zero.
ENTRIES = ("groups", "ages", "betas", "unmeasured", "discarded", "pool", "policy")
DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"no {key}": without(key) for key in ENTRIES},
    **{f"{key} is None": instead(key, None) for key in ENTRIES},
    **{f"{key} is 'x'": instead(key, "x") for key in ENTRIES},
    **{f"{key} is 3": instead(key, 3) for key in ENTRIES if key != "discarded"},
    **{f"{key} is {{}}": instead(key, {}) for key in ("groups", "discarded", "pool", "policy")},
    "ages of too few groups": dropped("ages", 2),
    "ages of too many groups": lambda record: record["ages"].append([]),
    "a cohort of four entries": dropped("ages", 0, 0, 3),
    "a cohort with a position that is not there": at("ages", 0, 0, 4, value=[17]),
    "a cohort with a position that is no number": at("ages", 0, 0, 4, value=["x"]),
    "an age of no number": at("ages", 0, 0, 0, value="x"),
    "a product of no number": at("ages", 0, 0, 1, value=None),
    "a momentum that is no number": at("betas", "video", value="x"),
    "a count that is no number": at("unmeasured", "video", value="x"),
    "a modality without stream": dropped("pool", "video"),
    "a stream without form": dropped("pool", "video", "form"),
    "a stream of an unknown form": at("pool", "video", "form", value="x"),
    "a stream without memory": dropped("pool", "video", "memory"),
    "a memory without noise": dropped("pool", "video", "memory", "noise"),
    "a memory without rows": dropped("pool", "video", "memory", "residuals"),
    "a memory of no tensor": at("pool", "video", "memory", "noise", value=3.0),
    "a policy without steps": dropped("policy", "steps"),
    "a policy of unknown steps": at("policy", "steps", value="x"),
    "a policy without modalities": dropped("policy", "modalities"),
    "a policy without dynamics": dropped("policy", "dynamics"),
    "dynamics without drift": dropped("policy", "dynamics", "drift"),
    "dynamics of no numbers": at("policy", "dynamics", "drift", value=["x", "y"]),
    "dynamics of too few modalities": at("policy", "dynamics", "drift", value=[1.0]),
}


def damaged(state: Mapping[str, Any], damage: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    record = unpack(state["record"])
    damage(record)
    return {**state, "record": pack(record)}


@pytest.fixture(scope="module")
def longer_run() -> Any:
    """Saved by another run than the one that it is loaded into: every part of it differs."""
    trio = make(seed=2)
    train(trio, range(6))
    return save(trio)


@pytest.mark.parametrize("by", ["controller", "optimizer"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_fact_13_a_damaged_record_is_refused_whole(damage: str, by: str, longer_run: Any) -> None:
    bad = damaged(longer_run["controller"], DAMAGES[damage])
    trio = make()
    train(trio, range(3))
    if by == "controller":
        assert_refused(trio, lambda: trio[2].load_state_dict(bad))
    else:
        state = {**copy.deepcopy(longer_run["optimizer"]), "vcmm": bad}
        assert_refused(trio, lambda: trio[1].load_state_dict(state))


STATES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "other version": lambda state: {**state, "version": 2},
    "no version": lambda state: {"record": state["record"]},
    "no record": lambda state: {"version": state["version"]},
    "record is None": lambda state: {**state, "record": None},
    "record is a tensor": lambda state: {**state, "record": torch.ones(3)},
    "record is a dict": lambda state: {**state, "record": {}},
    "record is empty": lambda state: {**state, "record": ""},
    "record is cut": lambda state: {**state, "record": state["record"][:-9]},
    "record is a list": lambda state: {**state, "record": "[]"},
    "empty": lambda state: {},
    "a record of nothing": lambda state: {**state, "record": "{}"},
}


@pytest.mark.parametrize("by", ["controller", "optimizer"])
@pytest.mark.parametrize("change", STATES)
def test_fact_13_another_kind_of_state_is_refused_whole(
    change: str, by: str, longer_run: Any
) -> None:
    bad = STATES[change](longer_run["controller"])
    trio = make()
    train(trio, range(3))
    if by == "controller":
        assert_refused(trio, lambda: trio[2].load_state_dict(bad))
    else:
        state = {**copy.deepcopy(longer_run["optimizer"]), "vcmm": bad}
        assert_refused(trio, lambda: trio[1].load_state_dict(state))


def test_fact_13_another_version_is_named(longer_run: Any) -> None:
    with pytest.raises(ValueError, match=r"version 1.*found 7"):
        make()[2].load_state_dict({**longer_run["controller"], "version": 7})


def test_fact_13_a_policy_that_refuses_its_state_leaves_everything_as_it_was() -> None:
    class Picky(Remembering):
        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            super().load_state_dict(state)
            if self.count == 4:
                raise ValueError("four is not for me")

    def picky(optimizer: Optimizer) -> MomentumController:
        return MomentumController(optimizer, Picky())

    other = make(controller=picky, seed=1)
    train(other, range(4))
    saved = save(other)
    for by in ("controller", "optimizer"):
        trio = make(controller=picky)
        train(trio, range(3))
        before = snapshot(trio)
        with pytest.raises(ValueError, match="four is not for me"):
            trio[1 if by == "optimizer" else 2].load_state_dict(saved[by])
        assert snapshot(trio) == before, by


def test_fact_13_a_policy_that_loads_in_place_is_put_back_too() -> None:
    class InPlace(Remembering):
        """Its state_dict shows its memory itself, and loading writes into that memory."""

        def update(self, probes: Mapping[str, Probe], base: Mapping[str, Any]) -> Any:
            trace = self.trace
            betas = super().update(probes, base)
            self.trace = trace.copy_(self.trace)
            return betas

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.trace.copy_(state["trace"])
            self.notes.update(state["notes"])
            self.count = int(state["count"])

    def in_place(optimizer: Optimizer) -> MomentumController:
        return MomentumController(optimizer, InPlace())

    other = make(controller=in_place, seed=1)
    train(other, range(4))
    saved = save(other)
    bad = damaged(saved["controller"], at("policy", "count", value="x"))
    for by in ("controller", "optimizer"):
        trio = make(controller=in_place)
        train(trio, range(3))
        before = snapshot(trio)
        state = {**copy.deepcopy(saved["optimizer"]), "vcmm": bad} if by == "optimizer" else bad
        with pytest.raises(ValueError, match="x"):
            trio[1 if by == "optimizer" else 2].load_state_dict(state)
        assert snapshot(trio) == before, by
    other[2].load_state_dict(saved["controller"])
    assert snapshot(other)[2] == plainly(saved["controller"])


def test_fact_13_a_load_that_torch_refuses_leaves_no_record_behind(longer_run: Any) -> None:
    # torch checks groups after the controller has: a state without "state" fails half way through.
    trio = make()
    train(trio, range(3))
    before = snapshot(trio)
    broken = {key: value for key, value in longer_run["optimizer"].items() if key != "state"}
    with pytest.raises(KeyError):
        trio[1].load_state_dict(broken)
    assert snapshot(trio) == before


# Fact 13: history without a record

History = tuple[MakeOptimizer, Callable[[Tensor], reference.Optimizer]]
HISTORIES: dict[str, History] = {
    "Adam": (lambda g: Adam(g, lr=0.02), lambda p: reference.Adam(p, 0.02)),
    "AdamW": (
        lambda g: AdamW(g, lr=0.02, weight_decay=0.1),
        lambda p: reference.Adam(p, 0.02, weight_decay=0.1, decoupled=True),
    ),
    "Adamax": (lambda g: Adamax(g, lr=0.02), lambda p: reference.Adamax(p, 0.02)),
    "RAdam": (lambda g: RAdam(g, lr=0.02), lambda p: reference.RAdam(p, 0.02)),
    # SGD has corrected nothing so far, so its buffer goes on as it is: there is no c_t.
    "SGD": (
        lambda g: SGD(g, lr=0.02, momentum=0.9),
        lambda p: reference.SGD(p, 0.02, 0.9, exact=False),
    ),
}
BETAS = {"audio": 0.95, "video": 0.8}


def walk(
    model: nn.Module,
    optimizer: Optimizer,
    steps: Iterable[int],
    peers: Mapping[str, reference.Optimizer],
    betas: Mapping[str, float] | None = None,
) -> None:
    """Steps along random gradients, the references with the given momenta, or with their base."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            peers[name].step(parameter.grad, (betas or {}).get(name.split(".")[0], 0.9))
        optimizer.step()


def assert_exact(model: nn.Module, peers: Mapping[str, reference.Optimizer]) -> None:
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.detach(), peers[name].parameter, rtol=1e-12, atol=1e-12, msg=name
        )


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize(
    ("kind", "way"),
    # SGD counts no steps, so a state without a record cannot contradict its ages.
    [(k, w) for k in HISTORIES for w in ("attached", "loaded", "over other ages")][:-1],
)
def test_fact_13_history_without_a_record_starts_at_the_base_product(
    kind: str, way: str, steps: int
) -> None:
    make_optimizer, make_peer = HISTORIES[kind]
    torch.manual_seed(0)
    model = Model().double()
    peers = {name: make_peer(p.detach()) for name, p in model.named_parameters()}
    optimizer = make_optimizer(groups_of(model))
    walk(model, optimizer, range(steps), peers)
    if way == "attached":
        MomentumController(optimizer, Fixed(**BETAS))
    else:
        saved = on_disk(optimizer.state_dict())
        optimizer = make_optimizer(groups_of(model))
        MomentumController(optimizer, Fixed(**BETAS))
        if way == "over other ages":
            parameters = copy.deepcopy(model.state_dict())
            unused = {name: make_peer(p.detach()) for name, p in model.named_parameters()}
            walk(model, optimizer, range(9), unused)
            model.load_state_dict(parameters)
        optimizer.load_state_dict(saved)
    walk(model, optimizer, range(steps, steps + 8), peers, BETAS)
    assert_exact(model, peers)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_13_loading_over_other_ages_takes_those_of_the_record(optimizer: str) -> None:
    what = OPTIMIZERS[optimizer], VCMM
    through = make(*what)
    train(through, range(5))
    saved = save(through)
    train(through, range(5, 9))
    for route in ROUTES:
        other = make(*what, seed=1)
        train(other, range(11))  # older than what it is going to load
        other[0].load_state_dict(saved["model"])
        route(other, copy.deepcopy(saved))  # torch's optimizers take loaded tensors for their own
        train(other, range(5, 9))
        assert snapshot(other) == snapshot(through), route.__name__


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_13_going_back_to_before_the_first_step_is_starting_anew(optimizer: str) -> None:
    what = OPTIMIZERS[optimizer], VCMM
    trio = make(*what)
    saved, first = save(trio), snapshot(trio)
    train(trio, range(6))
    expected = snapshot(trio)
    trio[0].load_state_dict(saved["model"])
    trio[1].load_state_dict(saved["optimizer"])
    assert snapshot(trio)[0] == first[0]
    train(trio, range(6))
    assert snapshot(trio) == expected


# Fact 2: saving in the middle


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_02_a_state_saved_inside_a_step_shows_the_optimizers_own_numbers(
    optimizer: str,
) -> None:
    trio = make(OPTIMIZERS[optimizer], CONTROLLERS["fixed"])
    train(trio, range(6))
    own = save(trio)["optimizer"]["param_groups"]
    written: list[bool] = []
    states: list[Any] = []

    def look(*_: Any) -> None:
        groups = trio[1].param_groups
        momenta = [g["betas"][0] if "betas" in g else g["momentum"] for g in groups]
        written.append(0.95 in momenta and 0.8 in momenta and len(groups) > 3)
        states.append(trio[1].state_dict())

    handle = trio[1].register_step_pre_hook(look)
    train(trio, [6])
    handle.remove()
    assert written == [True]
    assert plainly(states[0]["param_groups"]) == plainly(own)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_02_a_step_that_was_saved_from_inside_counts(optimizer: str) -> None:
    # Saving restores the groups, so this one step runs at the base momentum. It is a step still:
    # the optimizer counts it, and ages that did not would spoil every correction from then on.
    trio = make(OPTIMIZERS[optimizer], CONTROLLERS["fixed"])
    train(trio, range(9))
    handle = trio[1].register_step_pre_hook(lambda *_: trio[1].state_dict() and None)
    train(trio, [9])
    handle.remove()
    audio, video, _ = unpack(trio[2].state_dict()["record"])["ages"]
    assert sorted(cohort[0] for cohort in audio) == [6, 10]
    assert sorted(cohort[0] for cohort in video) == [3, 10]
    at_base = math.log(0.9)
    assert sorted(cohort[1] for cohort in audio) == pytest.approx(
        [9 * math.log(0.95) + at_base, 5 * math.log(0.95) + at_base]
    )


def test_fact_02_saving_inside_a_closure_does_not_change_the_step() -> None:
    def closed(trio: Trio, steps: Iterable[int], *, save: bool) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)

            def closure(generator: torch.Generator = generator) -> None:
                for parameter in trio[0].parameters():
                    parameter.grad = torch.randn(parameter.shape, generator=generator)
                if save:
                    states.append(trio[1].state_dict())

            trio[1].step(closure)

    states: list[Any] = []
    undisturbed, saving = (make(controller=CONTROLLERS["fixed"]) for _ in range(2))
    closed(undisturbed, range(5), save=False)
    closed(saving, range(5), save=True)
    assert len(states) == 5
    assert {g["lr"] for state in states for g in state["param_groups"]} == {0.02}
    assert {g["betas"] for state in states for g in state["param_groups"]} == {(0.9, 0.999)}
    assert snapshot(saving) == snapshot(undisturbed)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_02_a_state_saved_after_a_failing_step_shows_the_optimizers_own_numbers(
    optimizer: str,
) -> None:
    trio = make(OPTIMIZERS[optimizer], CONTROLLERS["fixed"])
    train(trio, range(6))
    before = save(trio)
    written: list[bool] = []

    def fail(*_: Any) -> None:
        written.append(len(trio[1].param_groups) > 3)
        raise RuntimeError("out of memory, say")

    handle = trio[1].register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(trio, [6])
    handle.remove()
    assert written == [True]
    after = save(trio)
    assert plainly(after["optimizer"]["param_groups"]) == plainly(
        before["optimizer"]["param_groups"]
    )
    # The step was not taken, so nobody is older.
    ages, younger = (unpack(s["controller"]["record"])["ages"] for s in (after, before))
    assert ages == younger
    resumed = resume(after, load_optimizer_alone, OPTIMIZERS[optimizer], CONTROLLERS["fixed"])
    for run in (trio, resumed):
        train(run, range(6, 9))
    assert snapshot(resumed) == snapshot(trio)


def test_fact_13_a_records_numbers_are_exact_however_small() -> None:
    # log P of a long run with momenta near 1 and near 0, and ages beyond any that a test walks.
    trio = make(controller=CONTROLLERS["fixed"])
    train(trio, range(2))
    cohort = [123456789.0, -1.234567890123456789e-300, -math.inf, True, [0, 1]]
    state = damaged(trio[2].state_dict(), at("ages", 0, value=[cohort]))
    trio[2].load_state_dict(on_disk(state))
    assert unpack(trio[2].state_dict()["record"])["ages"][0] == [cohort]
