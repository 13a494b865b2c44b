"""What is trained, in full: a run is a pure function of its `Spec`.

Every axis is a `Choice`: a name of its registry, and options, which are the keyword-only arguments
of what the name stands for. A spec is checked and completed with all defaults when it is created,
so an old record says what was run even after a default has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from .execution import Execution
from .signature import Value, completed

RESULT_VERSION = 1  # raised whenever the same spec would give other numbers

AXES = ("data", "encoder", "method", "fusion", "controller", "optimizer", "schedule")

# Options that came after the first records, with a value that leaves everything as it was. That
# value goes without saying, so that the older records are still those of their specs.
LATER: dict[tuple[str, str], dict[str, Value]] = {("controller", "vcmm"): {"encoder_every": 0}}


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A name of a registry and its options: `Choice("ogm", alpha=0.3)`."""

    name: str
    options: Mapping[str, Value]

    def __init__(self, name: str, /, **options: Value) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "options", options)

    @classmethod
    def of(cls, what: str, value: Choice | str | Mapping[str, Value]) -> Choice:
        """From a bare name, or from what `to_json` gave."""
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            return cls(value)
        given = dict(value) if isinstance(cast(object, value), Mapping) else {}
        name = given.pop("name", None)
        if not isinstance(name, str):
            raise TypeError(
                f'{what} is {value!r}; it must be a name, Choice("name", option=...) or '
                '{"name": "name", "option": ...}'
            )
        return cls(name, **given)

    def to_json(self) -> dict[str, Value]:
        return {"name": self.name, **self.options}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and canonical(self.to_json()) == canonical(other.to_json())

    def __hash__(self) -> int:
        return hash(canonical(self.to_json()))


@dataclass(frozen=True, slots=True)
class Spec:
    """One training, from data to seed.

    Args:
        data: a name of `vcmm list data`, or a path of one's own.
        modalities: those that are used; None is all of them.
        encoder: of every modality; "auto" chooses by the kind of its arrays.
        encoders: other choices for some modalities.
        fusion: "auto" is the one that the method asks for, "mean" for most.
        epochs: over train.
        seed: of the weights, the order of samples, and all that a method draws.
    """

    data: Choice = Choice("watch")
    modalities: tuple[str, ...] | None = None
    encoder: Choice = Choice("auto")
    encoders: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    method: Choice = Choice("joint")
    fusion: Choice = Choice("auto")
    controller: Choice = Choice("none")
    optimizer: Choice = Choice("adam")
    schedule: Choice = Choice("cosine")
    epochs: int = 15
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        from .methods import METHODS
        from .registry import registry
        from .trial import attempt

        for axis in AXES:
            choice = Choice.of(axis, getattr(self, axis))
            if axis == "fusion" and choice == Choice("auto"):
                choice = Choice(METHODS[self.method.name].fusion)
            object.__setattr__(self, axis, checked(axis, choice, registry(axis)))
        if not isinstance(cast(object, self.encoders), Mapping):
            raise TypeError(f"encoders is {self.encoders!r}; it must map modalities to encoders")
        encoders: dict[str, Choice] = {}
        for modality, value in sorted(self.encoders.items()):
            what = f"encoder of {modality!r}"
            encoders[modality] = checked(what, Choice.of(what, value), registry("encoder"))
        object.__setattr__(self, "encoders", encoders)
        if self.modalities is not None:
            object.__setattr__(self, "modalities", names(self.modalities))
        for name, least in (("epochs", 1), ("batch_size", 2), ("seed", 0)):
            value: Any = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}; it must be a whole number from {least} on")
        attempt(self)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; `from_json` gives an equal spec."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for axis in AXES:
            choice: Choice = values[axis]
            silent = LATER.get((axis, choice.name), {})
            written = choice.to_json().items()
            values[axis] = {k: v for k, v in written if k not in silent or v != silent[k]}
        values["encoders"] = {m: choice.to_json() for m, choice in self.encoders.items()}
        return json.loads(canonical(values))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Spec:
        """From what `to_json` gave; what is left out has its default."""
        names = {f.name for f in fields(cls)}
        for name in values.keys() - names:
            near = get_close_matches(name, names, 1) or sorted(names)
            raise ValueError(f"a spec has no {name!r}; it has {', '.join(near)}")
        return cls(**values)

    def __hash__(self) -> int:
        return hash(canonical(self.to_json()))


def canonical(value: Any) -> str:
    """The one way to write a value as JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def names(modalities: Sequence[str]) -> tuple[str, ...]:
    """The modalities, sorted, or an error."""
    each = () if isinstance(modalities, str) else tuple(modalities)
    if not each or any(type(name) is not str for name in each) or len(set(each)) < len(each):
        raise ValueError(
            f"modalities is {modalities!r}; it must be a list of different names, or None for all"
        )
    return tuple(sorted(each))


def checked(axis: str, choice: Choice, registry: Mapping[str, Callable[..., Any]]) -> Choice:
    """The choice with all its options, or an error that says which names there are."""
    if choice.name in registry:
        entry = registry[choice.name]
        return Choice(choice.name, **completed(f"{axis} {choice.name!r}", entry, choice.options))
    if axis == "data" and is_path(choice.name):
        from .data import own

        return Choice(choice.name, **completed("data of one's own", own.load, choice.options))
    hint = f"there are {', '.join(sorted(registry))}"
    if axis == "data":
        hint += ", and paths of files or folders of your own"
    if near := get_close_matches(choice.name, registry, 1):
        hint = f"did you mean {near[0]!r}?"
    raise ValueError(f"there is no {axis} {choice.name!r}; {hint}")


def is_path(name: str) -> bool:
    """Whether data is named by where it lies."""
    return "/" in name or name.endswith(".npz") or Path(name).is_dir()


def run_hash(
    spec: Spec,
    data_hash: str,
    execution: Execution | None = None,
    weights: Mapping[str, str] | None = None,
) -> str:
    """What a run is known by: all that its numbers depend on.

    Where one's own data lies does not enter, what it contains does; so with the files of weights,
    of which `weights` has the sha256.
    """
    values = spec.to_json()
    if is_path(values["data"]["name"]):
        values["data"]["name"] = Path(values["data"]["name"]).name
    for choice in (values["encoder"], *values["encoders"].values()):
        if choice.get("weights") is not None:
            choice["weights"] = (weights or {})[choice["weights"]]
    where = (execution or Execution()).identity()
    identity = {"spec": values, "data": data_hash, **where, "version": RESULT_VERSION}
    return hashlib.sha256(canonical(identity).encode()).hexdigest()[:16]
