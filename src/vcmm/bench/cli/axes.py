"""Flags of the axes of a spec, and of the options of whatever they name.

`vcmm run --method ogm` has `--method.alpha` because the class that "ogm" names has a keyword-only
argument `alpha`, and `vcmm run --method ogm --help` shows it with its type and default. So the
arguments are looked at before Typer reads them, and a command's signature is completed by what was
named there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import typer

from ..signature import Parameter, Value, completed, parameters, read, written
from ..signature import spelled as spelled_type
from ..spec import AXES as SPEC_AXES
from ..spec import Choice, Spec, checked, is_path
from .errors import mistakes

__all__ = ["SPEC_AXES", "Given", "with_axes"]


AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Given:
    """What the axes were set to."""

    choices: Mapping[str, Choice]
    encoders: Mapping[str, Choice]
    options: Mapping[str, Value]  # of a suite

    @property
    def base(self) -> dict[str, Any]:
        """As arguments of `Spec`."""
        return {**self.choices, "encoders": self.encoders}

    def spec(self, **rest: Any) -> Spec:
        """The spec that this says, with what is no axis; a wrong one is the user's mistake."""
        with mistakes():
            return Spec(**self.base, **rest)


@dataclass(slots=True)
class Flags:
    """The flags that a command line has, as Typer's parameters and as what they mean."""

    parameters: list[inspect.Parameter] = field(default_factory=list[inspect.Parameter])
    axes: dict[str, str] = field(default_factory=dict[str, str])  # argument -> axis
    options: dict[str, tuple[str, Parameter]] = field(  # argument -> owner, hyperparameter
        default_factory=dict[str, tuple[str, Parameter]]
    )

    def axis(self, axis: str, names: Sequence[str], panel: str) -> None:
        """--method NAME"""
        default = DEFAULTS[axis].name
        more = {"data": ["a path"], "fusion": [AUTO]}.get(axis, [])
        help_ = f"{' | '.join([*names, *more])}  (default: {default})"
        self.axes[axis] = axis
        option = typer.Option(f"--{axis}", metavar="NAME", help=help_, rich_help_panel=panel)
        self.add(axis, option)

    def option(self, owner: str, flag: str, parameter: Parameter, panel: str) -> None:
        """--method.alpha VALUE"""
        argument = f"option{len(self.options)}"
        self.options[argument] = (owner, parameter)
        kind = spelled_type(parameter.annotation)
        default = "required" if parameter.required else f"default: {written(parameter.default)}"
        option = typer.Option(
            flag, metavar="VALUE", help=f"{kind}  ({default})", rich_help_panel=panel
        )
        self.add(argument, option)

    def add(self, argument: str, option: Any) -> None:
        """Any flag with a text."""
        annotation = Annotated[str | None, option]
        kind = inspect.Parameter.KEYWORD_ONLY
        self.parameters.append(
            inspect.Parameter(argument, kind, default=None, annotation=annotation)
        )


DEFAULTS: dict[str, Choice] = {f.name: f.default for f in fields(Spec) if f.name in SPEC_AXES}  # pyright: ignore[reportAssignmentType]


def with_axes(
    command: Callable[..., Any],
    axes: Sequence[str],
    arguments: Sequence[str],
    *,
    suite: bool = False,
) -> Callable[..., Any]:
    """The command, which takes a `Given`, as one that has a flag for all that it consists of."""
    called = bool(arguments) and arguments[0] == command.__name__
    flags = Flags()
    with mistakes():
        owners = _declare_axes(flags, axes, arguments, called)
        if suite and called:
            _declare_suite(flags, arguments)

    def completed_command(**values: Any) -> Any:
        with mistakes():
            given = _given(flags, owners, values)
        return command(given=given, **values)

    return signed(completed_command, command, flags, "given")


def signed(made: Any, command: Callable[..., Any], flags: Flags, internal: str) -> Any:
    """`made` as Typer sees it: the command without its internal argument, and with the flags."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for name, one in signature.parameters.items() if name != internal]
    positional = [one for one in own if one.kind is not one.KEYWORD_ONLY]
    keywords = [one for one in own if one.kind is one.KEYWORD_ONLY]
    whole = inspect.Signature([*positional, *flags.parameters, *keywords])
    made.__signature__ = whole
    made.__annotations__ = {}
    made.__name__, made.__doc__ = command.__name__, command.__doc__
    return made


def _declare_axes(
    flags: Flags, axes: Sequence[str], arguments: Sequence[str], called: bool
) -> dict[str, tuple[str, str]]:
    """Flags of all axes and of the options of what they name: owner -> axis and name.

    Registries import torch, so they are looked up only for the command that is called.
    """
    owners: dict[str, tuple[str, str]] = {}
    for axis in axes:
        if not called:
            flags.axis(axis, (), "What is trained")
            continue
        from ..registry import registry

        flags.axis(axis, sorted(registry(axis)), "What is trained")
        owners[axis] = (axis, value_of(arguments, f"--{axis}") or DEFAULTS[axis].name)
    if "encoder" in axes:
        option = typer.Option(
            "--encoders",
            metavar="PAIRS",
            rich_help_panel="What is trained",
            help="Other encoders for some modalities: audio=conv1d,video=mlp",
        )
        flags.add("encoders", option)
        for modality, name in pairs(value_of(arguments, "--encoders") or "").items():
            owners[f"encoders.{modality}"] = ("encoder", name)
    if called:
        _resolve_fusion(owners)
        for owner, (axis, name) in owners.items():
            _declare_options(flags, owner, axis, name, arguments)
    return owners


def _resolve_fusion(owners: dict[str, tuple[str, str]]) -> None:
    """A fusion that is left out is the method's own, where the method is known."""
    from ..methods import METHODS

    method = owners.get("method", ("", ""))[1]
    if owners.get("fusion") == ("fusion", AUTO) and method in METHODS:
        owners["fusion"] = ("fusion", METHODS[method].fusion)


def _declare_options(
    flags: Flags, owner: str, axis: str, name: str, arguments: Sequence[str]
) -> None:
    """Flags of the options of what an axis names; those that it does not have are an error."""
    entry = _entry(axis, name)
    known = parameters(entry)
    for argument in arguments:
        option = argument.partition("=")[0].removeprefix(f"--{owner}.").replace("-", "_")
        if argument.startswith(f"--{owner}.") and option not in known:
            completed(f"{axis} {name!r}", entry, {option: None})  # says so, and what there is
    for option, parameter in known.items():
        flag = f"--{owner}.{option.replace('_', '-')}"
        flags.option(owner, flag, parameter, f"Options of {axis} {name}")


def _declare_suite(flags: Flags, arguments: Sequence[str]) -> None:
    """Flags of the suite that is named."""
    from ..suites import SUITES

    name = next((argument for argument in arguments[1:] if argument in SUITES), None)
    if name is None:
        return
    for option, parameter in parameters(SUITES[name]).items():
        flags.option("", f"--{option.replace('_', '-')}", parameter, f"Options of suite {name}")


def _entry(axis: str, name: str) -> Callable[..., Any]:
    """What a name of an axis stands for."""
    from ..registry import registry

    known = registry(axis)
    if name in known:
        return known[name]
    if axis == "fusion" and name == AUTO:
        return _own_fusion
    if axis == "data" and is_path(name):
        from ..data import own

        return own.load
    checked(axis, Choice(name), known)  # says which names there are
    raise AssertionError(name)


def _own_fusion() -> None:
    """Each method's own fusion; name one to set its options."""


def _given(flags: Flags, owners: Mapping[str, tuple[str, str]], values: dict[str, Any]) -> Given:
    """Take what belongs to the axes out of what Typer read."""
    for axis in flags.axes:
        values.pop(axis)
    values.pop("encoders", None)
    options = taken(flags, values)
    made = {owner: Choice(name, **options.get(owner, {})) for owner, (_, name) in owners.items()}
    encoders = {
        owner.removeprefix("encoders."): choice
        for owner, choice in made.items()
        if owner.startswith("encoders.")
    }
    axes = {owner: choice for owner, choice in made.items() if owner in SPEC_AXES}
    return Given(axes, encoders, options.get("", {}))


def taken(flags: Flags, values: dict[str, Any]) -> dict[str, dict[str, Value]]:
    """Take the options out of what Typer read: by owner, those that were given."""
    options: dict[str, dict[str, Value]] = {}
    for argument, (owner, parameter) in flags.options.items():
        text: str | None = values.pop(argument)
        if text is not None:
            what = f"--{owner}.{parameter.name}" if owner else f"--{parameter.name}"
            value = read(what.replace("_", "-"), parameter.annotation, text)
            options.setdefault(owner, {})[parameter.name] = value
    return options


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    """What a flag is set to, where it is; the last time counts."""
    found = None
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            found = arguments[place + 1]
        elif argument.startswith(f"{flag}="):
            found = argument.partition("=")[2]
    return found


def pairs(text: str) -> dict[str, str]:
    """audio=conv1d,video=mlp"""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        modality, equals, name = part.partition("=")
        if not (modality and equals and name):
            raise ValueError(f"--encoders has {part!r}; write modality=encoder pairs: audio=conv1d")
        found[modality.strip()] = name.strip()
    return found
