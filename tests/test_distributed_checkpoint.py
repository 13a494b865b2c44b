"""Fact 13 with DistributedCheckpoint, in one process: the controller is a Stateful of its own.

It drops keys of the optimizer's state_dict that it does not know, and steps an optimizer without
state once, with zero gradients and learning rates, to learn what its state looks like.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam

from vcmm import VCMM, Fixed, Frozen, Kalman, MomentumController, modal_groups, reference

BETAS = {"audio": 0.95, "video": 0.8}


class Model(nn.Module):
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


Trio = tuple[Model, Optimizer, MomentumController]
MakeOptimizer = Callable[[Any], Optimizer]
MakeController = Callable[[Optimizer], MomentumController]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "Adam": lambda groups: Adam(groups, lr=0.02),
    "AdamW": lambda groups: AdamW(groups, lr=0.02, weight_decay=0.1),
    "NAdam": lambda groups: NAdam(groups, lr=0.02),
    "SGD": lambda groups: SGD(groups, lr=0.05, momentum=0.9),
}


def fixed(optimizer: Optimizer) -> MomentumController:
    return MomentumController(optimizer, Fixed(**BETAS))


CONTROLLERS: dict[str, MakeController] = {
    "vcmm": VCMM,
    "fixed": fixed,
    "frozen": lambda o: MomentumController(o, Frozen(Kalman(), after=6, average=3)),
}


def make(
    optimizer: MakeOptimizer = OPTIMIZERS["Adam"],
    controller: MakeController = VCMM,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Trio:
    torch.manual_seed(seed)
    model = Model().to(dtype)
    made = optimizer(modal_groups(model, audio=model.audio, video=model.video))
    return model, made, controller(made)


def train(trio: Trio, steps: Iterable[int]) -> None:
    model, optimizer, controller = trio
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        dtype = model.shared.dtype
        inputs = {
            name: torch.randn(8, 5, generator=generator, dtype=dtype) for name in ("audio", "video")
        }
        target = torch.randint(3, (8,), generator=generator)
        seen, fused = model(inputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(fused, target).backward()
        if step < 3:  # so that there are cohorts
            model.audio["encoder"].bias.grad = None
        controller.observe(target, **seen)
        optimizer.step()


def plainly(state: Any) -> Any:
    """Tensors as their bits, so that == compares them."""
    if isinstance(state, Tensor):
        return state.detach().numpy().tobytes(), str(state.dtype), tuple(state.shape)
    if isinstance(state, Mapping):
        return {key: plainly(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [plainly(value) for value in state]
    return state


def snapshot(trio: Trio) -> Any:
    model, optimizer, controller = trio
    record = controller.state_dict()
    return plainly(
        [model.state_dict(), optimizer.state_dict()["state"], controller.metrics(), record]
    )


# What DistributedCheckpoint does to an optimizer's state


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_13_the_record_is_dropped_from_the_optimizers_state(optimizer: str) -> None:
    trio = make(OPTIMIZERS[optimizer])
    train(trio, range(3))
    assert set(get_optimizer_state_dict(trio[0], trio[1])) == {"state", "param_groups"}
    assert "vcmm" in trio[1].state_dict()


def test_fact_13_the_controller_is_a_stateful() -> None:
    assert isinstance(make()[2], Stateful)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_13_getting_and_setting_a_state_changes_nothing(optimizer: str) -> None:
    trio, untouched = make(OPTIMIZERS[optimizer]), make(OPTIMIZERS[optimizer])
    for step in range(8):
        train(untouched, [step])
        train(trio, [step])
        if step > 3:  # before, a parameter has no state, and setting insists on some for each
            state = get_optimizer_state_dict(trio[0], trio[1])
            assert snapshot(trio) == snapshot(untouched)
            set_optimizer_state_dict(trio[0], trio[1], state)
            assert snapshot(trio) == snapshot(untouched)


# The step with which it primes an optimizer that has no state


def prime_by_getting(trio: Trio, twin: Trio) -> None:
    get_optimizer_state_dict(trio[0], trio[1])


def prime_by_setting(trio: Trio, twin: Trio) -> None:
    # The state of one that has taken no step either, and its record.
    set_optimizer_state_dict(trio[0], trio[1], get_optimizer_state_dict(twin[0], twin[1]))
    trio[2].load_state_dict(twin[2].state_dict())


PRIMERS = (prime_by_getting, prime_by_setting)
Primer = Callable[[Trio, Trio], None]


@pytest.mark.parametrize("prime", PRIMERS)
@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_13_priming_moves_neither_policy_nor_momenta(
    optimizer: str, controller: str, prime: Primer
) -> None:
    what = OPTIMIZERS[optimizer], CONTROLLERS[controller]
    trio = make(*what)
    weights, metrics = plainly(trio[0].state_dict()), trio[2].metrics()
    policy = plainly(trio[2].policy.state_dict())
    prime(trio, make(*what))
    assert trio[1].state  # or nothing was primed
    assert plainly(trio[0].state_dict()) == weights
    assert plainly(trio[2].policy.state_dict()) == policy
    assert trio[2].metrics() == metrics
    assert trio[2].betas == {"audio": 0.9, "video": 0.9}
    assert {group.get("vcmm_beta") for group in trio[1].param_groups} <= {None, 0.9}
    assert [group["lr"] for group in trio[1].param_groups] == [trio[1].defaults["lr"]] * 3


@pytest.mark.parametrize("prime", PRIMERS)
@pytest.mark.parametrize("decay", [0.0, 0.1], ids=["plain", "decay"])
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_fact_13_priming_sgd_is_as_if_it_had_not_happened(
    controller: str, decay: float, prime: Primer
) -> None:
    # Coupled weight decay is a gradient too, and must not enter the buffers by that step. What
    # belongs to no modality is torch's own business.
    def sgd(groups: Any) -> Optimizer:
        for group in groups:
            group["weight_decay"] = decay if group["modality"] else 0.0
        return SGD(groups, lr=0.05, momentum=0.9)

    primed, untouched, twin = (make(sgd, CONTROLLERS[controller]) for _ in range(3))
    prime(primed, twin)
    train(primed, range(8))
    train(untouched, range(8))
    assert plainly(primed[0].state_dict()) == plainly(untouched[0].state_dict())
    assert primed[2].metrics() == untouched[2].metrics()


PRIMED: dict[str, tuple[MakeOptimizer, Callable[[Tensor], reference.Optimizer]]] = {
    "Adam": (lambda g: Adam(g, lr=0.02), lambda p: reference.Adam(p, 0.02)),
    "Adam, amsgrad": (
        lambda g: Adam(g, lr=0.02, amsgrad=True),
        lambda p: reference.Adam(p, 0.02, amsgrad=True),
    ),
    "Adam, decay": (
        lambda g: Adam(g, lr=0.02, weight_decay=0.1),
        lambda p: reference.Adam(p, 0.02, weight_decay=0.1),
    ),
    "Adam, tensor lr": (
        lambda g: Adam(g, lr=torch.tensor(0.02, dtype=torch.float64)),
        lambda p: reference.Adam(p, 0.02),
    ),
    "AdamW": (
        lambda g: AdamW(g, lr=0.02, weight_decay=0.1),
        lambda p: reference.Adam(p, 0.02, weight_decay=0.1, decoupled=True),
    ),
    "Adamax": (lambda g: Adamax(g, lr=0.02), lambda p: reference.Adamax(p, 0.02)),
    "RAdam": (lambda g: RAdam(g, lr=0.02), lambda p: reference.RAdam(p, 0.02)),
    "SGD": (lambda g: SGD(g, lr=0.02, momentum=0.9), lambda p: reference.SGD(p, 0.02)),
    "SGD, decay": (
        lambda g: SGD(g, lr=0.02, momentum=0.9, weight_decay=0.1),
        lambda p: reference.SGD(p, 0.02, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("kind", PRIMED)
def test_fact_13_priming_leaves_the_correction_exact(kind: str) -> None:
    # torch's Adam counts the step, so its second moment is one step older: t is one ahead. No
    # gradient has entered the first moment, so no momentum has entered P.
    make_optimizer, make_peer = PRIMED[kind]
    trio = make(make_optimizer, fixed, dtype=torch.float64)
    model, optimizer, _ = trio
    get_optimizer_state_dict(model, optimizer)
    names = [n for n, _ in model.named_parameters() if n != "shared"]
    parameters = dict(model.named_parameters())
    peers = {name: make_peer(parameters[name].detach()) for name in names}
    for peer in peers.values():
        if not isinstance(peer, reference.SGD):
            peer.age = 1
    for step in range(12):
        generator = torch.Generator().manual_seed(step)
        for name in names:
            shape = parameters[name].shape
            parameters[name].grad = torch.randn(shape, generator=generator, dtype=torch.float64)
            beta = BETAS[name.split(".")[0]]
            if step >= 2 or name != "audio.head.weight":  # one that starts later
                peers[name].step(parameters[name].grad, beta)
            else:
                parameters[name].grad = None
        optimizer.step()
    for name in names:
        torch.testing.assert_close(
            parameters[name].detach(), peers[name].parameter, rtol=1e-12, atol=1e-12, msg=name
        )


def test_fact_13_priming_nadam_is_the_step_that_torch_counts() -> None:
    # NAdam keeps its own product, into which torch's count of that step has gone.
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of mu_product
    try:
        trio = make(OPTIMIZERS["NAdam"], fixed, dtype=torch.float64)
        get_optimizer_state_dict(trio[0], trio[1])
        weight = trio[0].audio["head"].weight
        peer = reference.NAdam(weight.detach(), 0.02)
        peer.lr = 0.0
        peer.step(torch.zeros_like(weight), 0.9)
        peer.lr = 0.02
        for step in range(8):
            weight.grad = torch.randn(
                weight.shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64
            )
            peer.step(weight.grad, 0.95)
            trio[1].step()
        torch.testing.assert_close(weight.detach(), peer.parameter, rtol=1e-12, atol=1e-12)
    finally:
        torch.set_default_dtype(default)


def test_fact_12_a_primed_optimizer_at_its_base_momentum_is_the_plain_primed_one() -> None:
    for make_optimizer in OPTIMIZERS.values():
        controlled = make(make_optimizer, lambda o: VCMM(o, strength=0.0))
        plain = make(make_optimizer)
        plain[2].detach()
        for model, optimizer, _ in (controlled, plain):
            get_optimizer_state_dict(model, optimizer)
            generator = torch.Generator().manual_seed(0)
            for _ in range(5):
                for parameter in model.parameters():
                    parameter.grad = torch.randn(parameter.shape, generator=generator)
                optimizer.step()
        assert plainly(controlled[0].state_dict()) == plainly(plain[0].state_dict())


def test_fact_13_a_real_step_is_not_taken_for_priming() -> None:
    # Warm-up may start at lr = 0. Such a step has gradients, so the momenta enter P.
    def warm_up(trio: Trio) -> None:
        for step in range(6):
            for group in trio[1].param_groups:
                group["lr"] = 0.01 * step
            train(trio, [step])

    trio = make(controller=fixed)
    warm_up(trio)
    assert trio[2].betas == BETAS
    unobserved = make(controller=fixed)
    for group in unobserved[1].param_groups:
        group["lr"] = 0.0
    for parameter in unobserved[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    unobserved[1].step()
    assert unobserved[2].betas == BETAS


def test_fact_13_frozen_parameters_are_primed_when_they_are_thawed() -> None:
    primed, untouched = (make(OPTIMIZERS["SGD"], fixed) for _ in range(2))
    for trio in (primed, untouched):
        trio[0].audio["encoder"].requires_grad_(False)
    get_optimizer_state_dict(primed[0], primed[1])
    for trio in (primed, untouched):
        trio[0].audio["encoder"].requires_grad_(True)
        train(trio, range(6))
    assert snapshot(primed)[0] == snapshot(untouched)[0]


# Saving and loading


def save(trio: Trio, path: Path) -> None:
    model, optimizer, controller = trio
    state = {
        "model": get_model_state_dict(model),
        "optim": get_optimizer_state_dict(model, optimizer),
        "vcmm": controller,
    }
    dcp.save(state, checkpoint_id=str(path))


def load_controller_first(trio: Trio, path: Path) -> None:
    """As one does with a single call: `dcp.load` loads what is Stateful, the rest is set later."""
    model, optimizer, controller = trio
    state = {
        "model": get_model_state_dict(model),
        "optim": get_optimizer_state_dict(model, optimizer),
        "vcmm": controller,
    }
    dcp.load(state, checkpoint_id=str(path))
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optim"])


def load_optimizer_first(trio: Trio, path: Path) -> None:
    model, optimizer, controller = trio
    state = {
        "model": get_model_state_dict(model),
        "optim": get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(state, checkpoint_id=str(path))
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optim"])
    dcp.load({"vcmm": controller}, checkpoint_id=str(path))


def load_controller_before_the_optimizer_is_primed(trio: Trio, path: Path) -> None:
    dcp.load({"vcmm": trio[2]}, checkpoint_id=str(path))
    model, optimizer, _ = trio
    state = {
        "model": get_model_state_dict(model),
        "optim": get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(state, checkpoint_id=str(path))
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optim"])


ORDERS = (
    load_controller_first,
    load_optimizer_first,
    load_controller_before_the_optimizer_is_primed,
)


@pytest.mark.parametrize("load", ORDERS)
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fact_13_resume_through_a_distributed_checkpoint_is_bitwise(
    optimizer: str, steps: int, load: Callable[[Trio, Path], None], tmp_path: Path
) -> None:
    what = OPTIMIZERS[optimizer], VCMM
    through = make(*what)
    if steps == 1:
        train(through, [3])  # all parameters have gradients in this one
    else:
        train(through, range(steps))
    save(through, tmp_path)
    resumed = make(*what, seed=1)
    load(resumed, tmp_path)
    assert resumed[2].state_dict() == through[2].state_dict()
    train(through, range(6, 12))
    train(resumed, range(6, 12))
    assert snapshot(resumed) == snapshot(through)


@pytest.mark.parametrize("load", ORDERS)
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_fact_13_every_policy_resumes_through_a_distributed_checkpoint(
    controller: str, load: Callable[[Trio, Path], None], tmp_path: Path
) -> None:
    what = OPTIMIZERS["AdamW"], CONTROLLERS[controller]
    through = make(*what)
    train(through, range(7))
    save(through, tmp_path)
    resumed = make(*what, seed=1)
    load(resumed, tmp_path)
    train(through, range(7, 11))
    train(resumed, range(7, 11))
    assert snapshot(resumed) == snapshot(through)
    assert len(set(resumed[2].betas.values())) > 1


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("load", ORDERS)
def test_fact_13_going_back_to_a_distributed_checkpoint_is_bitwise(
    load: Callable[[Trio, Path], None], steps: int, tmp_path: Path
) -> None:
    # Into the very objects that went on, which are older than the checkpoint.
    trio = make()
    train(trio, range(steps))
    save(trio, tmp_path)
    train(trio, range(steps, 9))
    expected = snapshot(trio)
    load(trio, tmp_path)
    train(trio, range(steps, 9))
    assert snapshot(trio) == expected


def test_fact_13_a_flattened_optimizer_state_resumes_bitwise(tmp_path: Path) -> None:
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    through, resumed = make(), make(seed=1)
    train(through, range(5))
    optim = get_optimizer_state_dict(through[0], through[1], options=flat)
    dcp.save(
        {"model": get_model_state_dict(through[0]), "optim": optim, "vcmm": through[2]},
        checkpoint_id=str(tmp_path),
    )
    state = {
        "model": get_model_state_dict(resumed[0]),
        "optim": get_optimizer_state_dict(resumed[0], resumed[1], options=flat),
        "vcmm": resumed[2],
    }
    dcp.load(state, checkpoint_id=str(tmp_path))
    set_model_state_dict(resumed[0], state["model"])
    set_optimizer_state_dict(resumed[0], resumed[1], state["optim"], options=flat)
    train(through, range(5, 9))
    train(resumed, range(5, 9))
    assert snapshot(resumed) == snapshot(through)


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_fact_13_history_from_a_distributed_checkpoint_without_a_controller(
    kind: str, steps: int, tmp_path: Path
) -> None:
    # A run that did without goes on with one: P starts at beta0^t, although the fresh optimizer
    # was primed before. SGD has corrected nothing so far, so nothing is left to correct.
    make_optimizer = {**OPTIMIZERS, "SGD": lambda g: SGD(g, lr=0.02, momentum=0.9)}[kind]
    plain = make(make_optimizer, dtype=torch.float64)
    plain[2].detach()

    def make_peer(parameter: Tensor) -> reference.Optimizer:
        if kind == "SGD":
            return reference.SGD(parameter, 0.02, exact=False)
        decay = 0.1 if kind == "AdamW" else 0.0
        return reference.Adam(parameter, 0.02, weight_decay=decay, decoupled=kind == "AdamW")

    peers = {name: make_peer(p.detach()) for name, p in plain[0].named_parameters()}

    def walk(trio: Trio, steps: Iterable[int], betas: Mapping[str, float]) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for name, p in trio[0].named_parameters():
                p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
                peers[name].step(p.grad, betas.get(name.split(".")[0], 0.9))
            trio[1].step()

    walk(plain, range(steps), {})
    state = {
        "model": get_model_state_dict(plain[0]),
        "optim": get_optimizer_state_dict(plain[0], plain[1]),
    }
    dcp.save(state, checkpoint_id=str(tmp_path))

    resumed = make(make_optimizer, fixed, seed=1, dtype=torch.float64)
    state = {
        "model": get_model_state_dict(resumed[0]),
        "optim": get_optimizer_state_dict(resumed[0], resumed[1]),
    }
    dcp.load(state, checkpoint_id=str(tmp_path))
    set_model_state_dict(resumed[0], state["model"])
    set_optimizer_state_dict(resumed[0], resumed[1], state["optim"])
    walk(resumed, range(steps, steps + 8), BETAS)
    for name, parameter in resumed[0].named_parameters():
        torch.testing.assert_close(
            parameter.detach(), peers[name].parameter, rtol=1e-12, atol=1e-12, msg=name
        )


def test_fact_13_a_record_that_does_not_fit_is_refused_through_dcp_too(tmp_path: Path) -> None:
    trio = make()
    train(trio, range(3))
    dcp.save({"vcmm": trio[2]}, checkpoint_id=str(tmp_path))
    torch.manual_seed(0)
    model = Model()
    optimizer = Adam(modal_groups(model, audio=model.video, video=model.audio["encoder"]))
    controller = VCMM(optimizer)
    before = controller.state_dict()
    with pytest.raises(Exception, match="saved groups"):
        dcp.load({"vcmm": controller}, checkpoint_id=str(tmp_path))
    assert controller.state_dict() == before
