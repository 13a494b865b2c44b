"""`vcmm list`: what every axis can be, in a line each, with options and their defaults."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from ..signature import parameters, spelled, written
from .flags import Json

What = Literal[
    "methods", "controllers", "optimizers", "schedules", "data", "encoders", "fusions", "suites"
]


def list_(
    what: Annotated[What, typer.Argument(help="Which axis.")], *, as_json: Json = False
) -> None:
    """Names that an axis can have, and their options."""
    found = [described(name, entry) for name, entry in sorted(entries(what).items())]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from .tables import console

    screen = console()
    for one in found:
        screen.print(one["name"], style="bold", highlight=False, end="  ")
        screen.print(one["about"], highlight=False, markup=False)
        for option in one["options"]:
            default = "required" if option["required"] else written(option["default"])
            line = f"    {option['name']} = {default}   {option['type']}"
            screen.print(line, highlight=False, markup=False, style="dim")


def entries(what: str) -> Mapping[str, Callable[..., Any]]:
    """Everything of this kind, by name."""
    if what == "suites":
        from ..suites import SUITES

        return SUITES
    from ..registry import registry

    return registry(what.removesuffix("s"))


def described(name: str, entry: Callable[..., Any]) -> dict[str, Any]:
    """A name and what it stands for, as JSON has it."""
    options = [
        {
            "name": option,
            "type": spelled(parameter.annotation),
            "required": parameter.required,
            "default": None if parameter.required else parameter.default,
        }
        for option, parameter in parameters(entry).items()
    ]
    about = (inspect.getdoc(entry) or "").partition("\n")[0]
    return {"name": name, "about": about, "options": options}
