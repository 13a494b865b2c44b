"""A mistake of the user's is one clear paragraph and exit code 2, never a traceback."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import typer

from .tables import printable

USAGE = 2


class Mistake(typer.TyperException):
    """What the user asked for cannot be done, and this is why."""

    exit_code = USAGE


@contextmanager
def mistakes() -> Generator[None]:
    """Errors in here are about what the user wrote, a path or a query, or did not install."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise Mistake(printable(str(error), lines=True)) from error
