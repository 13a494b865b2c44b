"""`--protocol NAME` stands for flags: all that the protocol says of the data set that is named.

The flags are put before those that were given, so that what is said explicitly counts. An axis that
was given takes the place of the protocol's, with its options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from ..signature import parameters, written
from ..spec import Choice, Spec
from .axes import value_of
from .errors import mistakes

COMMANDS = ("run", "sweep", "compare")
AXES = ("data", "encoder", "optimizer", "schedule")

Protocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="ogm22 | lfm24 | vcmm26: data, encoders, optimizer, schedule, epochs and batch size "
        "as those papers have them. Other flags count before it.",
    ),
]


def expanded(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the flags that their protocol stands for."""
    name = protocol_of(arguments)
    if name is None:
        return list(arguments)
    from ..protocols import PROTOCOLS

    with mistakes():
        if name not in PROTOCOLS:
            raise ValueError(f"there is no protocol {name!r}; there are {', '.join(PROTOCOLS)}")
        data = value_of(arguments, "--data")
        if data is None:
            raise ValueError(f"--protocol {name} needs the data that it is for: --data cremad")
        spec = PROTOCOLS[name](data)
    return [arguments[0], "--protocol", name, *flags(spec, arguments), *arguments[1:]]


def protocol_of(arguments: Sequence[str]) -> str | None:
    """The protocol that is named; for a suite of the paper on a benchmark of it, the paper's."""
    if not arguments or arguments[0] not in COMMANDS:
        return None
    named = value_of(arguments, "--protocol")
    if named is None and arguments[0] == "sweep":
        from ..suites import PAPER

        if not PAPER.keys() & set(arguments):
            return None
        from ..data import COLLECTIONS
        from ..protocols import PUBLISHED

        return PUBLISHED if value_of(arguments, "--data") in COLLECTIONS else None
    return named


def titled(title: str, protocol: str | None) -> str:
    """A title that says which protocol was followed, and from which it borrows."""
    if protocol is None:
        return title
    borrowed = ", which takes from lfm24 what its paper leaves open" * (protocol == "vcmm26")
    return f"{title}, by protocol {protocol}{borrowed}"


def flags(spec: Spec, arguments: Sequence[str]) -> Iterator[str]:
    """What of the spec the arguments leave open, as flags."""
    for axis in AXES:
        if axis == "data" or value_of(arguments, f"--{axis}") is None:
            choice: Choice = getattr(spec, axis)
            yield from (f"--{axis}", choice.name)
            yield from options(axis, axis, choice)
    if value_of(arguments, "--encoders") is None and value_of(arguments, "--encoder") is None:
        named = ",".join(f"{modality}={choice.name}" for modality, choice in spec.encoders.items())
        yield from ("--encoders", named)
        for modality, choice in spec.encoders.items():
            yield from options(f"encoders.{modality}", "encoder", choice)
    yield from ("--epochs", str(spec.epochs), "--batch-size", str(spec.batch_size))


def options(owner: str, axis: str, choice: Choice) -> Iterator[str]:
    """The options that differ from their defaults."""
    from ..registry import registry

    known = parameters(registry(axis)[choice.name])
    given: Mapping[str, object] = choice.options
    for name, value in given.items():
        if value != known[name].default:
            yield from (f"--{owner}.{name.replace('_', '-')}", written(value))
