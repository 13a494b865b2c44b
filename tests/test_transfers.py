"""Fact 14: one copy from device to host per step for all modalities, none in capturable mode.

There are two stand-ins for a device here. The meta device is torch's own, and nothing can be read
from it: an `item()` raises. It shows that a capturable step waits for nothing, but holds no
numbers. `Accelerator` holds numbers: it lets CPU tensors pass for tensors of a device, follows them
through every call of torch, and counts what leaves them for Python or for the host.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from vcmm import VCMM, Fixed, Frozen, Kalman, MomentumController, Policy, modal_groups

# (features, classes) at 16 samples: many classes are cheaper by rows.
DIRECT, GRAM = (4, 3), (64, 80)
SAMPLES = 16

KERNELS = [importlib.import_module(f"torch.optim.{name}") for name in ("adam", "adamw")]
needs_tensor_betas = pytest.mark.skipif(
    not hasattr(KERNELS[0], "_to_scalar"),
    reason="the capturable kernels of this torch take betas as numbers alone",
)

DEVICE = torch.device("cuda")
HOST = torch.device("cpu")
READS = {
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
    Tensor.__bool__,
    Tensor.__float__,
    Tensor.__int__,
    Tensor.__index__,
    Tensor.__contains__,
    Tensor.nonzero,
    Tensor.masked_select,
    Tensor.equal,
    torch.nonzero,
    torch.masked_select,
    torch.equal,
    torch.allclose,
    torch.unique,
}
MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda}
FACTORIES = {torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.full, torch.empty}


class Accelerator(TorchFunctionMode):
    """CPU tensors that pass for tensors of a device, and a list of what was copied off it.

    A tensor is on the device if it was put there, or was computed from one that is. A tensor of the
    host with more than one number cannot be mixed with those, as on a real device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[str] = []

    def put(self, tensor: Tensor) -> Tensor:
        tensor.on_accelerator = True
        return tensor

    def holds(self, value: Any) -> bool:
        return isinstance(value, Tensor) and "on_accelerator" in value.__dict__

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [value for value in leaves((args, kwargs)) if isinstance(value, Tensor)]
        if func == Tensor.device.__get__:
            return DEVICE if self.holds(args[0]) else HOST
        if not any(self.holds(tensor) for tensor in tensors):
            wanted = self._destination(args, kwargs)
            args, kwargs = self._on_cpu(args), self._on_cpu(kwargs)
            result = func(*args, **kwargs)
            if wanted == DEVICE:
                # A view would be of the host's memory; what was moved has memory of its own.
                result = result.clone() if func in MOVES | {torch.as_tensor} else result
                return self.put(result)
            return result
        if func in READS:
            self.copies.append(func.__name__)
        if func in MOVES or func is torch.as_tensor:
            return self._move(func, args, kwargs)
        if func is Tensor.copy_ and not self.holds(args[0]):
            self.copies.append("copy_")
            return func(*args, **kwargs)
        strangers = [t for t in tensors if not self.holds(t) and t.dim() > 0]
        if strangers and func is not Tensor.copy_ and func is not Tensor.__getitem__:
            raise RuntimeError(f"{func}: tensors of the device and of the host")
        result = func(*self._on_cpu(args), **self._on_cpu(kwargs))
        for value in leaves(result):
            if isinstance(value, Tensor):
                self.put(value)
        return result

    def _destination(self, args: Any, kwargs: Any) -> torch.device | None:
        named = [v for v in leaves((args, kwargs)) if isinstance(v, torch.device)]
        return named[0] if named else None

    def _on_cpu(self, value: Any) -> Any:
        """The same arguments, with the host's memory where the device's is asked for."""
        if isinstance(value, torch.device):
            return HOST
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self._on_cpu(v) for v in value)
        if isinstance(value, dict):
            return {key: self._on_cpu(v) for key, v in value.items()}
        return value

    def _move(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        destination = HOST if func is Tensor.cpu else self._destination(args, kwargs)
        result = func(*self._on_cpu(args), **self._on_cpu(kwargs))
        if destination == HOST:
            self.copies.append(func.__name__)
            return result.detach().clone()
        return self.put(result)

    @contextmanager
    def count(self) -> Iterator[list[str]]:
        """What is copied while the block runs."""
        start, counted = len(self.copies), list[str]()
        yield counted
        counted += self.copies[start:]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    else:
        yield value


def under(policy: Policy) -> Callable[[Optimizer], MomentumController]:
    return partial(MomentumController, policy=policy)


class Setting:
    """Two or more modalities, their gradients and their observations, on the device or not."""

    def __init__(
        self,
        accelerator: Accelerator | None,
        sizes: Mapping[str, tuple[int, int]],
        control: Callable[[Optimizer], MomentumController],
        cls: str = "AdamW",
        **settings: Any,
    ) -> None:
        self.put = accelerator.put if accelerator else lambda tensor: tensor
        self.sizes = sizes
        generator = torch.Generator().manual_seed(0)
        self.parameters: dict[str, list[nn.Parameter]] = {}
        for name in (*sizes, "shared"):
            self.parameters[name] = [
                nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 2), (3,))
            ]
            for parameter in self.parameters[name]:
                self.put(parameter)
        groups = [
            {"params": ps, "name": name, "modality": None if name == "shared" else name}
            for name, ps in self.parameters.items()
        ]
        kernel = {} if "fused" in settings else {"foreach": False}
        self.optimizer: Optimizer = getattr(torch.optim, cls)(groups, **kernel, **settings)
        self.controller: MomentumController = control(self.optimizer)

    def set_gradients(self, t: int) -> None:
        generator = torch.Generator().manual_seed(t)
        for parameters in self.parameters.values():
            for parameter in parameters:
                parameter.grad = self.put(torch.randn(parameter.shape, generator=generator))

    def observe(self, t: int, **options: Any) -> None:
        generator = torch.Generator().manual_seed(t + 1000)
        pairs: dict[str, tuple[Tensor, Tensor]] = {}
        target = self.put(torch.randint(3, (SAMPLES,), generator=generator))
        for i, (name, (features, classes)) in enumerate(self.sizes.items()):
            h = torch.randn(SAMPLES, features, generator=generator) * (i + 1)
            z = torch.randn(SAMPLES, classes, generator=generator)
            pairs[name] = self.put(h), self.put(z)
        self.controller.observe(target, **options, **pairs)

    def step(self, t: int) -> None:
        self.set_gradients(t)
        self.observe(t)
        self.optimizer.step()

    def values(self) -> list[Tensor]:
        return [p.detach().clone() for ps in self.parameters.values() for p in ps]


@pytest.fixture
def float64() -> Iterator[None]:
    """A capturable kernel keeps its step count in this dtype, and 1 - beta^t with it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


MODALITIES = {
    "one": {"a": DIRECT},
    "two direct": {"a": DIRECT, "b": DIRECT},
    "two by rows": {"a": GRAM, "b": GRAM},
    "one of each": {"a": DIRECT, "b": GRAM},
    "five": {"a": DIRECT, "b": GRAM, "c": DIRECT, "d": GRAM, "e": DIRECT},
}


# One copy per step


@pytest.mark.parametrize("sizes", MODALITIES)
@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        ("AdamW", {"weight_decay": 0.1}),
        ("RAdam", {}),
        ("NAdam", {}),
        ("SGD", {"momentum": 0.9, "lr": 0.01}),
    ],
)
def test_fact_14_one_copy_per_step_for_all_modalities_together(
    cls: str, settings: dict[str, Any], sizes: str
) -> None:
    accelerator = Accelerator()
    with accelerator:
        setting = Setting(accelerator, MODALITIES[sizes], VCMM, cls, **settings)
        for t in range(4):
            setting.set_gradients(t)
            with accelerator.count() as observing:
                setting.observe(t)
            with accelerator.count() as stepping:
                setting.optimizer.step()
            assert observing == []
            assert stepping == ["tolist"]


def test_fact_14_the_forms_are_those_that_are_meant_here() -> None:
    setting = Setting(None, MODALITIES["one of each"], VCMM)
    setting.step(0)
    streams = setting.controller._pool.streams
    assert (streams["a"].form, streams["b"].form) == ("direct", "gram")


def test_fact_14_micro_batches_cost_no_copies_of_their_own() -> None:
    accelerator = Accelerator()
    with accelerator:
        setting = Setting(accelerator, MODALITIES["one of each"], VCMM)
        for t in range(3):
            with accelerator.count() as copies:
                setting.set_gradients(t)
                for part in range(4):
                    setting.observe(4 * t + part)
                setting.optimizer.step()
            assert copies == ["tolist"]


def test_fact_14_a_mask_and_another_loss_cost_no_copies() -> None:
    loss = partial(nn.functional.cross_entropy, reduction="none", label_smoothing=0.1)
    accelerator = Accelerator()
    with accelerator:
        setting = Setting(accelerator, MODALITIES["one of each"], partial(VCMM, loss=loss))
        mask = accelerator.put(torch.arange(SAMPLES) < 13)
        for t in range(3):
            setting.set_gradients(t)
            with accelerator.count() as copies:
                setting.observe(t, mask=mask)
                setting.optimizer.step()
            assert copies == ["tolist"]


def test_fact_14_without_an_observation_nothing_is_copied() -> None:
    accelerator = Accelerator()
    with accelerator:
        setting = Setting(accelerator, MODALITIES["two direct"], under(Fixed(a=0.95, b=0.8)))
        for t in range(3):
            setting.set_gradients(t)
            with accelerator.count() as copies:
                setting.optimizer.step()
            assert copies == []


@pytest.mark.parametrize("overflow", [0.0, 1.0])
def test_fact_14_an_overflow_is_learnt_from_the_same_copy(overflow: float) -> None:
    """`found_inf` is a tensor of the device as well. The kernel is left out: it reads it too."""
    accelerator = Accelerator()
    with accelerator:
        setting = Setting(accelerator, MODALITIES["one of each"], VCMM, fused=True)
        setting.observe(0)
        setting.optimizer.found_inf = accelerator.put(torch.tensor(overflow))
        with accelerator.count() as copies, setting.controller.applied():
            pass
        assert copies == ["tolist"]
        assert setting.controller.metrics()["discarded"] == overflow


def test_fact_14_what_is_read_off_the_controller_costs_no_copies_of_the_device() -> None:
    accelerator = Accelerator()
    with accelerator:
        setting = Setting(accelerator, MODALITIES["one of each"], VCMM)
        setting.step(0)
        with accelerator.count() as copies:
            assert setting.controller.betas
            assert setting.controller.metrics()
        assert copies == []


def test_fact_14_the_count_counts() -> None:
    """Were the accelerator blind, all of the above would hold of anything."""
    accelerator = Accelerator()
    with accelerator:
        x = accelerator.put(torch.arange(3.0))
        reads: list[Callable[[], Any]] = [
            lambda: x.sum().item(),
            lambda: float(x[0]),
            lambda: int((x + 1)[1]),
            lambda: bool(x.max() > 1),
            x.tolist,
            x.cpu,
            lambda: x.to(torch.device("cpu")),
            lambda: x.double().to(HOST),
            lambda: torch.zeros(3).copy_(x),
            lambda: 1 if x.sum() > 0 else 0,
            x.nonzero,
            torch.stack([x, x]).unbind()[0].tolist,
        ]
        for read in reads:
            with accelerator.count() as copies:
                read()
            assert len(copies) == 1
        y = torch.arange(3.0)
        with accelerator.count() as copies:
            assert y.sum().item() == 3
            assert y.to(x.device).device == DEVICE
            assert torch.zeros(3, device=x.device).device == DEVICE
            assert (x * 2 + y.sum()).device == DEVICE
            assert y.device == HOST
        assert copies == []
        with pytest.raises(RuntimeError, match="of the host"):
            x + y


# No copy in capturable mode


def wave(t: int) -> dict[str, float]:
    return {"a": 0.85 + 0.1 * math.sin(t), "b": 0.8 + 0.1 * math.cos(t)}


class Wave(Policy):
    def __init__(self) -> None:
        self.t = 0

    def update(self, probes: Any, base: Any) -> dict[str, float]:
        self.t += 1
        return wave(self.t)


POLICIES: dict[str, Callable[[], Policy]] = {
    "Kalman": Kalman,
    "Kalman, warm-up": lambda: Kalman(warmup=2),
    "Kalman, raw": lambda: Kalman(center=False, subtract_noise=False),
    "Kalman, floor after": lambda: Kalman(floor_after_smoothing=True),
    "Kalman, off": lambda: Kalman(strength=0.0),
    "Frozen": lambda: Frozen(Kalman(), after=3, average=2),
    "Fixed": lambda: Fixed(a=0.95, b=0.8),
    "Wave": Wave,
}


@pytest.fixture
def _capturable_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks which devices can capture, and knows of no stand-in."""
    devices = ["cuda", "meta"]
    for module in KERNELS:
        if hasattr(module, "_get_capturable_supported_devices"):
            monkeypatch.setattr(
                module, "_get_capturable_supported_devices", lambda *_, **__: devices
            )


@needs_tensor_betas
@pytest.mark.usefixtures("_capturable_anywhere")
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sizes", ["two direct", "two by rows", "one of each"])
def test_fact_14_a_capturable_step_copies_nothing(sizes: str, policy: str, tensor_lr: bool) -> None:
    accelerator = Accelerator()
    with accelerator:
        lr = accelerator.put(torch.tensor(0.01)) if tensor_lr else 0.01
        setting = Setting(
            accelerator,
            MODALITIES[sizes],
            under(POLICIES[policy]()),
            lr=lr,
            weight_decay=0.1,
            capturable=True,
        )
        for t in range(5):
            setting.set_gradients(t)
            with accelerator.count() as copies:
                setting.observe(t)
                setting.optimizer.step()
            assert copies == []


@needs_tensor_betas
@pytest.mark.usefixtures("_capturable_anywhere")
@pytest.mark.parametrize("policy", ["Fixed", "Wave"])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_fact_14_a_capturable_step_without_observations_copies_nothing(
    tensor_lr: bool, policy: str
) -> None:
    accelerator = Accelerator()
    with accelerator:
        lr = accelerator.put(torch.tensor(0.01)) if tensor_lr else 0.01
        sizes = MODALITIES["two direct"]
        setting = Setting(accelerator, sizes, under(POLICIES[policy]()), lr=lr, capturable=True)
        for t in range(3):
            setting.set_gradients(t)
            with accelerator.count() as copies:
                setting.optimizer.step()
            assert copies == []


@needs_tensor_betas
@pytest.mark.usefixtures("_capturable_anywhere")
def test_fact_14_a_capturable_step_of_parameters_of_several_ages_copies_nothing() -> None:
    accelerator = Accelerator()
    with accelerator:
        setting = Setting(accelerator, MODALITIES["one of each"], under(Kalman()), capturable=True)
        for t in range(5):
            setting.set_gradients(t)
            if t < 2:
                setting.parameters["a"][1].grad = None
            with accelerator.count() as copies:
                setting.observe(t)
                setting.optimizer.step()
            assert copies == []


@needs_tensor_betas
@pytest.mark.usefixtures("_capturable_anywhere")
@pytest.mark.parametrize("sizes", [DIRECT, GRAM])
@pytest.mark.parametrize("cls", ["Adam", "AdamW"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fact_14_a_capturable_step_works_where_nothing_can_be_read(
    cls: str, weight_decay: float, sizes: tuple[int, int]
) -> None:
    """On the meta device item(), tolist() and bool() raise, in torch's own words."""
    features, classes = sizes
    with torch.device("meta"):
        model = nn.ModuleDict(
            {"a": nn.Linear(8, 4), "b": nn.Linear(8, 4), "shared": nn.Linear(2, 2)}
        )
        groups = modal_groups(model, a=model["a"], b=model["b"])
        optimizer = getattr(torch.optim, cls)(
            groups, weight_decay=weight_decay, capturable=True, foreach=False
        )
        before = [dict(g) for g in optimizer.param_groups]
        vcmm = VCMM(optimizer)
        for _ in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            target = torch.zeros(SAMPLES, dtype=torch.int64)
            pair = torch.randn(SAMPLES, features), torch.randn(SAMPLES, classes)
            vcmm.observe(target, a=pair, b=pair)
            optimizer.step()
            for old, group in zip(before, optimizer.param_groups, strict=True):
                assert all(group[key] is old[key] for key in old)
        beta = optimizer.param_groups[0]["vcmm_beta"]
        assert isinstance(beta, Tensor)
        assert beta.device.type == "meta"
        with pytest.raises((RuntimeError, NotImplementedError)):
            beta.item()


# The numbers of the device path


@pytest.mark.usefixtures("_capturable_anywhere")
@pytest.mark.parametrize("cls", ["Adam", "AdamW"])
def test_fact_14_a_capturable_step_in_float32_is_right_in_every_torch(cls: str) -> None:
    """Also in one whose kernels take betas as numbers alone, where a copy cannot be helped."""
    settings = {"lr": 0.01, "weight_decay": 0.1}
    accelerator = Accelerator()
    host = Setting(None, MODALITIES["one of each"], under(Kalman()), cls, **settings)
    with accelerator:
        device = Setting(
            accelerator,
            MODALITIES["one of each"],
            under(Kalman()),
            cls,
            capturable=True,
            **settings,
        )
    for t in range(4):
        host.step(t)
        with accelerator, accelerator.count() as copies:
            device.step(t)
        assert len(copies) <= 1
    # Its kernel makes 1 - beta^t from a float32 step count.
    torch.testing.assert_close(device.values(), host.values(), rtol=1e-4, atol=1e-5)


@needs_tensor_betas
@pytest.mark.usefixtures("_capturable_anywhere", "float64")
@pytest.mark.parametrize("cls", ["Adam", "AdamW"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sizes", ["one", "two direct", "one of each"])
def test_fact_14_the_device_decides_and_steps_as_the_host_does(
    sizes: str, policy: str, cls: str
) -> None:
    """Betas that stay tensors of the device, against betas that are Python floats."""
    if sizes == "one" and policy in {"Fixed", "Wave"}:
        pytest.skip("these policies name two modalities")
    accelerator = Accelerator()
    settings = {"lr": 0.01, "weight_decay": 0.1}
    host = Setting(None, MODALITIES[sizes], under(POLICIES[policy]()), cls, **settings)
    with accelerator:
        device = Setting(
            accelerator,
            MODALITIES[sizes],
            under(POLICIES[policy]()),
            cls,
            capturable=True,
            **settings,
        )
    for t in range(8):
        host.step(t)
        with accelerator:
            device.step(t)
            betas, metrics = device.controller.betas, device.controller.metrics()
        assert betas == pytest.approx(host.controller.betas, rel=1e-13)
        assert metrics == pytest.approx(host.controller.metrics(), rel=1e-12)
        torch.testing.assert_close(device.values(), host.values(), rtol=1e-12, atol=1e-14)


@needs_tensor_betas
@pytest.mark.usefixtures("_capturable_anywhere", "float64")
def test_fact_14_the_device_steps_parameters_of_several_ages_as_the_host_does() -> None:
    accelerator = Accelerator()
    host = Setting(None, MODALITIES["two direct"], under(Kalman()), weight_decay=0.1)
    with accelerator:
        device = Setting(
            accelerator,
            MODALITIES["two direct"],
            under(Kalman()),
            weight_decay=0.1,
            capturable=True,
        )

    def step(setting: Setting, t: int) -> None:
        setting.set_gradients(t)
        if t in {0, 1, 4}:
            setting.parameters["a"][1].grad = None
        setting.observe(t)
        setting.optimizer.step()

    for t in range(8):
        step(host, t)
        with accelerator:
            step(device, t)
        torch.testing.assert_close(device.values(), host.values(), rtol=1e-12, atol=1e-14)


@needs_tensor_betas
@pytest.mark.usefixtures("_capturable_anywhere", "float64")
def test_fact_14_a_modality_that_cannot_be_measured_keeps_its_beta_on_the_device_too() -> None:
    """A nan in the logits of one step. Only the host can count it without waiting."""
    accelerator = Accelerator()
    host = Setting(None, MODALITIES["two direct"], under(Kalman()), weight_decay=0.1)
    with accelerator:
        device = Setting(
            accelerator,
            MODALITIES["two direct"],
            under(Kalman()),
            weight_decay=0.1,
            capturable=True,
        )

    def step(setting: Setting, t: int) -> None:
        setting.set_gradients(t)
        generator = torch.Generator().manual_seed(t)
        target = setting.put(torch.randint(3, (SAMPLES,), generator=generator))
        pairs = {
            name: (
                setting.put(torch.randn(SAMPLES, 4, generator=generator)),
                setting.put(torch.randn(SAMPLES, 3, generator=generator)),
            )
            for name in ("a", "b")
        }
        if t == 3:
            pairs["a"][1][0, 0] = torch.nan
        setting.controller.observe(target, **pairs)
        setting.optimizer.step()

    for t in range(8):
        step(host, t)
        with accelerator:
            step(device, t)
            betas = device.controller.betas
        assert betas == pytest.approx(host.controller.betas, rel=1e-13)
        torch.testing.assert_close(device.values(), host.values(), rtol=1e-12, atol=1e-14)
