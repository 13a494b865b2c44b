"""`vcmm`: the benchmark from a terminal.

Typer reads the flags. What an axis can be, and the options of what it is, come from the registries
and the signatures of what was named (`axes.py`). A help text needs no torch: whatever is heavy is
imported by the command that uses it.

Exit codes: 0 all is well, 1 a run failed, 2 the command or its data are wrong, 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
import typer.main

from .axes import SPEC_AXES, with_axes
from .compare import AXES as COMPARE_AXES
from .compare import compare
from .data import application as data_application
from .listing import list_
from .paper import paper
from .protocol import expanded
from .reading import report, results
from .run import run
from .sweep import AXES as SWEEP_AXES
from .sweep import demo, sweep

HELP = "Train multimodal methods on equal terms, and read what came out."


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point."""
    given = [spelled(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    try:
        given = expanded(given)
        command = typer.main.get_command(application(given))
        code = command.main(args=given, prog_name="vcmm", standalone_mode=False)
    except typer.TyperException as error:
        complain(error, given)
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def application(arguments: Sequence[str]) -> typer.Typer:
    """All commands; the one that the arguments name has its options by then."""
    app = typer.Typer(
        help=HELP, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
    )
    app.command()(demo)
    app.command("list")(list_)
    app.add_typer(data_application(arguments), name="data")
    app.command()(with_axes(run, SPEC_AXES, arguments))
    app.command()(with_axes(sweep, SWEEP_AXES, arguments, suite=True))
    app.command()(with_axes(compare, COMPARE_AXES, arguments))
    app.command()(results)
    app.command()(report)
    app.command()(paper)
    return app


def spelled(argument: str) -> str:
    """A flag as it is declared: --data.image_energy is --data.image-energy."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


def complain(error: typer.TyperException, arguments: Sequence[str]) -> None:
    """One paragraph that says what is wrong, and where help is."""
    # Typer says "Value error," before what is said anyway.
    message = error.format_message().strip().replace("Value error, ", "")
    if not message:
        return
    words = [word for word in arguments[:2] if not word.startswith("-")]
    known = ("demo", "list", "data", "run", "sweep", "compare", "results", "report", "paper")
    command = " ".join(["vcmm", *(words[:1] if words[:1] and words[0] in known else [])])
    if message.startswith("Usage:") or "Usage:" in message.splitlines()[0]:
        typer.echo(message, err=True)  # a command without arguments shows its help
        return
    hint = f"\nSee {command} --help" if isinstance(error, typer.BadParameter) else ""
    typer.echo(f"error: {message}{hint}", err=True)
