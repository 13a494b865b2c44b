"""How each optimizer family spells its first moment, and how one step is given another momentum.

The method asks for m_t / (1 - P_t) with P_t the product of all betas so far; Adam's kernel divides
by 1 - beta_t^t. So for the duration of a step the group holds beta_t, and lr * c_t with
c_t = (1 - beta_t^t) / (1 - P_t), and the unmodified kernel computes what the method asks for.

| optimizer                    | correction    | written for a step                                |
|------------------------------|---------------|---------------------------------------------------|
| Adam, AdamW, Adamax, RAdam   | "bias"        | beta_t; lr * c_t; decoupled weight decay / c_t    |
| SGD                          | "anchored"    | beta_t; dampening; lr (1 - prod beta0) / (1-P_t) |
| SGD, literal=True            | "anchored"    | beta_t; dampening; lr / (1 - P_t)                 |
| NAdam, Muon                  | "inherent"    | beta_t                                            |
| AdamP, AdaBelief, Adam8bit.. | "bias"        | as Adam; these libraries are known by name        |

1 - P = -expm1(log P), so neither a short nor a long history loses digits.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import others
from .ages import Age
from .groups import RESERVED
from .number import Number, expm1, log

Group = dict[str, Any]


def _decoupled_flag(group: Group) -> bool:
    return bool(group.get("decoupled_weight_decay", False))


def _always(group: Group) -> bool:
    return True


def _never(group: Group) -> bool:
    return False


def _no_objection(group: Group) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Binding:
    """How an optimizer class spells momentum. Give one to `register` for a class of your own.

    Args:
        momentum: the group entry that holds it: "betas" (its first value), or a plain number.
        correction: "bias" if the optimizer divides its first moment by 1 - beta^t; "anchored" if it
            corrects nothing and its buffer is beta * buffer + (1 - dampening) * gradient;
            "inherent" if nothing needs correcting, because the optimizer keeps the product of its
            betas itself or because its update does not depend on the scale of the moment.
        decoupled: whether a group's weight decay multiplies lr and is not part of the gradient.
        objection: why a group's settings cannot be served, or None.
        literal: for "anchored": m_t / (1 - P_t) in place of the buffer, to the letter. By default
            the correction is relative to the base momentum, so that the base is plain SGD bitwise.
        tensor_momentum: whether the optimizer's capturable kernels take betas as device tensors.
        counter: the group entry that counts the steps of all its parameters together, if there is
            no count of each. It goes on where a parameter has no gradient.
    """

    momentum: str = "betas"
    correction: Literal["bias", "anchored", "inherent"] = "bias"
    decoupled: Callable[[Group], bool] = _decoupled_flag
    objection: Callable[[Group], str | None] = _no_objection
    literal: bool = False
    tensor_momentum: bool = False
    counter: str | None = None

    def counted(self, group: Group) -> int | None:
        """How many steps the group has counted, or None if every parameter counts its own."""
        return None if self.counter is None else group.get(self.counter, 0)

    def read(self, group: Group) -> Number:
        """The group's own momentum, beta0; a tensor only where reading it must not wait."""
        value = group[self.momentum]
        if self.momentum == "betas":
            value = value[0]
        if isinstance(value, Tensor) and not self.on_device(group):
            value = value.item()
        return value

    def on_device(self, group: Group) -> bool:
        """Whether the step must not copy anything to the host: a capturable, unfused kernel."""
        capturable = bool(group.get("capturable", False)) and not group.get("fused", False)
        return capturable and self.tensor_momentum


def _sgd_objection(group: Group) -> str | None:
    if group["momentum"] == 0:
        return "momentum is 0, so there is no memory to adapt. Use SGD(..., momentum=0.9)"
    if group["nesterov"]:
        return (
            "nesterov=True applies the momentum twice, once to the newest gradient, which no "
            "single correction undoes. Use nesterov=False"
        )
    if group["dampening"] != 0:
        return "dampening must be 0: the controller needs it to scale the newest gradient itself"
    return None


SGD = Binding(
    momentum="momentum", correction="anchored", decoupled=_never, objection=_sgd_objection
)

# Older kernels do not convert a tensor's dtype to the parameter's.
_TENSOR_BETAS = "decoupled_weight_decay" in torch.optim.Adam.__init__.__annotations__

_BINDINGS: dict[type[Optimizer], Binding] = {
    torch.optim.Adam: Binding(tensor_momentum=_TENSOR_BETAS),
    torch.optim.AdamW: Binding(decoupled=_always, tensor_momentum=_TENSOR_BETAS),
    torch.optim.Adamax: Binding(decoupled=_never),
    torch.optim.RAdam: Binding(),
    torch.optim.NAdam: Binding(correction="inherent"),
    torch.optim.SGD: SGD,
}

_REFUSED: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: "it keeps a history of whole steps, and no moment that a beta could weigh",
    torch.optim.SparseAdam: "it ages the rows of a parameter one by one, while its bias correction "
    "counts the steps of the whole parameter. Use Adam with dense gradients",
    torch.optim.RMSprop: "its momentum averages preconditioned steps, not gradients. Use Adam",
    torch.optim.ASGD: "it averages parameters, not gradients. Use SGD with momentum",
    torch.optim.Adadelta: "it has no first moment. Use Adam",
    torch.optim.Adagrad: "it has no first moment. Use Adam",
    torch.optim.Rprop: "it has no first moment. Use Adam",
}
# Younger than the oldest torch that is supported.
if hasattr(torch.optim, "Muon"):
    _BINDINGS[torch.optim.Muon] = Binding(momentum="momentum", correction="inherent")
if hasattr(torch.optim, "Adafactor"):
    _REFUSED[torch.optim.Adafactor] = "torch's version has no first moment. Use Adam"


# Other libraries, which are not imported: a class is known by its package and its name.


def _decoupled_by_lr(group: Group) -> bool:
    return bool(group["weight_decouple"]) and not group["fixed_decay"]


def _debias_objection(group: Group) -> str | None:
    if group.get("adam_debias"):
        return "adam_debias=True leaves the bias in the first moment. Use adam_debias=False"
    return None


def _adamp_objection(group: Group) -> str | None:
    if group["nesterov"]:
        return (
            "nesterov=True applies the momentum twice, once to the newest gradient, which no "
            "single correction undoes. Use nesterov=False"
        )
    if isinstance(group["lr"], Tensor) and group["weight_decay"] and _decoupled_by_lr(group):
        return "with a tensor lr its weight decay cannot be kept apart from it. Use a float"
    return _debias_objection(group)


_NAMED: dict[str, Binding] = {
    "pytorch_optimizer.AdamP": Binding(
        decoupled=_decoupled_by_lr, objection=_adamp_objection, counter="step"
    ),
    "pytorch_optimizer.AdaBelief": Binding(
        decoupled=_decoupled_by_lr, objection=_debias_objection, counter="step"
    ),
    **dict.fromkeys(
        others.named("bitsandbytes", "Adam AdamW", prefix="Paged", suffixes=others.BITS),
        Binding(decoupled=_always),
    ),
}


def _name_of(kind: type) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def register(optimizer: type[Optimizer], binding: Binding) -> None:
    """Teach the controller an optimizer class, or replace what it knows of one.

    Example:
        register(MyAdam, Binding(momentum="betas", correction="bias"))
        register(torch.optim.SGD, dataclasses.replace(vcmm.momentum.SGD, literal=True))
    """
    _BINDINGS[optimizer] = binding


def binding_of(optimizer: Optimizer) -> Binding:
    """The binding of an optimizer's class, or of a parent whose step it inherits unchanged."""
    kind = type(optimizer)
    for parent in kind.__mro__:
        name = _name_of(parent)
        binding = _BINDINGS.get(parent) or _NAMED.get(name)
        # torch wraps `step` of a class when its first object is made, so compare what is wrapped.
        if binding is not None and _plain_step(kind) is _plain_step(parent):
            return binding
        reason = _REFUSED.get(parent) or others.REFUSED.get(name)
        if reason is not None:
            raise TypeError(f"{kind.__name__} cannot be controlled: {reason}")
    raise TypeError(
        f"{kind.__name__} is not known. If it divides its first moment by 1 - beta1^t, as Adam "
        f"does, write: vcmm.register({kind.__name__}, vcmm.Binding()). See the docstring of "
        "vcmm.Binding for other kinds"
    )


def require_served(optimizer: Optimizer, groups: Iterable[Group]) -> None:
    """An error if the settings of any of these groups cannot be served."""
    for group in groups:
        modality: Any = group["modality"]
        if not isinstance(modality, str) or modality in RESERVED:
            raise ValueError(
                f"a group is tagged with modality {modality!r}; a modality is a name, and none of "
                f"{', '.join(map(repr, RESERVED))}, which have a meaning of their own"
            )
        if objection := binding_of(optimizer).objection(group):
            raise ValueError(
                f"{type(optimizer).__name__} group of modality {group['modality']!r}: {objection}"
            )


def base_momenta(binding: Binding, groups: Iterable[Group]) -> dict[str, Number]:
    """Every modality's own momentum, as the optimizer's groups hold it now."""
    base: dict[str, Number] = {}
    for group in groups:
        beta = binding.read(group)
        first = base.setdefault(group["modality"], beta)
        if isinstance(beta, float) and beta != first:
            raise ValueError(
                f"groups of modality {group['modality']!r} have momenta {first} and {beta}; the "
                "policy moves one momentum per modality, so give all its groups the same"
            )
    return base


def _plain_step(kind: type[Optimizer]) -> Callable[..., Any]:
    return inspect.unwrap(cast(Callable[..., Any], kind.step))


def advanced(binding: Binding, age: Age, beta: Number, base: Number) -> Age:
    """The age after a step with `beta`, where the optimizer's own coefficient is `base`."""
    at_base = not binding.literal and (beta is base or (isinstance(beta, float) and beta == base))
    return Age(
        steps=age.steps + 1,
        log_product=age.log_product + log(beta),
        log_base=age.log_base + log(base),
        moved=age.moved or not at_base,
    )


def correction(binding: Binding, after: Age, beta: Number, counted: int | None = None) -> Number:
    """c_t, by how much the step that leads to the age `after` must be scaled: see the module.

    `counted` is how many steps the group had counted before, if the optimizer counts by groups.
    """
    if binding.correction == "inherent":
        return 1.0
    if binding.correction == "bias":
        steps = after.steps if counted is None else counted + 1
        return expm1(steps * log(beta)) / expm1(after.log_product)
    if binding.literal:
        return -1 / expm1(after.log_product)
    return expm1(after.log_base) / expm1(after.log_product)


def _untouched(found: Any, after: Any, version: int) -> bool:
    if found is after:
        return not isinstance(found, Tensor) or found._version == version
    # A copied group holds equal numbers, but other objects.
    numbers = cast(tuple[Any, ...], found if isinstance(found, tuple) else (found,))
    return all(isinstance(number, float) for number in numbers) and found == after


class Written:
    """What one group holds for the duration of one step, and what it held before."""

    def __init__(
        self, group: Group, values: Mapping[str, Any], scales: Mapping[str, Number] | None = None
    ) -> None:
        """Put `values` into the group. Those with a scale are the old ones times that scale."""
        self.group = group
        self._entries: list[tuple[str, Any, Any, int]] = []  # key, before, after, its version
        self._scales = scales or {}
        self._decayed: tuple[list[Tensor], Tensor] | None = None
        for key, value in values.items():
            version = value._version if isinstance(value, Tensor) else 0
            self._entries.append((key, group[key], value, version))
            group[key] = value

    def redo(self) -> None:
        """Write it again, into a group that holds what it held before."""
        group = self.group
        for key, _, after, _ in self._entries:
            group[key] = after

    def undo(self) -> None:
        """Put back what was there, or what somebody wrote since, without our factor."""
        for key, before, after, version in self._entries:
            found = self.group[key]
            if _untouched(found, after, version):
                self.group[key] = before
            elif key in self._scales:
                found = found / self._scales[key]
                if isinstance(before, Tensor):
                    found = before.copy_(torch.as_tensor(found))
                self.group[key] = found

    @torch.no_grad()
    def decay(self, parameters: list[Tensor], lr: Number, decay: float) -> None:
        """Decay the weights in the kernel's place, in no lower precision than it does."""
        precision = torch.promote_types(parameters[0].dtype, torch.float32)
        factor = 1 - torch.as_tensor(lr).to(precision) * decay
        for parameter in parameters:
            parameter.mul_(factor)
        self._decayed = parameters, factor

    @torch.no_grad()
    def undo_decay(self, taken: set[int]) -> None:
        """Of the parameters that did not take the step after all."""
        parameters, factor = self._decayed or ([], None)
        for parameter in parameters:
            if id(parameter) not in taken and factor is not None:
                parameter.div_(factor)
        self._decayed = None


class Writer:
    """Writes momenta into groups. Tensors that a compiled step reads are filled in place."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self._scratch: dict[tuple[str, str], Tensor] = {}

    def write(
        self,
        group: Group,
        parameters: list[Tensor],
        slot: str,
        *,
        beta: Number,
        base: Number,
        scale: Number,
    ) -> Written:
        """Give `group` the momentum `beta` and the learning rate lr * `scale`."""
        binding = self.binding
        values: dict[str, Any] = {}
        if binding.momentum == "betas":
            first, second = group["betas"]
            values["betas"] = self._like(first, beta, slot, "beta"), second
        else:
            # Without any momentum torch's SGD would leave its buffer alone.
            values[binding.momentum] = beta if isinstance(beta, Tensor) else beta or _LEAST
        if binding.correction == "anchored":
            ratio = 1 - beta if binding.literal else (1 - beta) / (1 - base)
            values["dampening"] = 1 - ratio
        if binding.correction == "inherent":
            return Written(group, values)
        lr = group["lr"]
        values["lr"] = self._like(lr, lr * scale, slot, "lr")
        decay = group.get("weight_decay")
        if not decay or not binding.decoupled(group):
            return Written(group, values, {"lr": scale})
        if not isinstance(lr, Tensor) and not isinstance(scale, Tensor):
            values["weight_decay"] = decay / scale
            return Written(group, values, {"lr": scale, "weight_decay": 1 / scale})
        # A kernel takes weight decay as a number alone, and a changing number would be compiled
        # anew each step.
        written = Written(group, {**values, "weight_decay": 0.0}, {"lr": scale})
        written.decay(parameters, lr, decay)
        return written

    def _like(self, template: Any, value: Number, slot: str, name: str) -> Any:
        """`value` as a float, or in a tensor that stays the same one from step to step."""
        if not isinstance(template, Tensor) and not isinstance(value, Tensor):
            return value
        if (slot, name) not in self._scratch:
            source = template if isinstance(template, Tensor) else value
            self._scratch[slot, name] = torch.empty_like(torch.as_tensor(source))
        return self._scratch[slot, name].copy_(torch.as_tensor(value))


_LEAST = sys.float_info.min
