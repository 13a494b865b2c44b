"""Weights from a file, loaded whole or not at all.

A file is `.safetensors`, or a state dict of torch, which is read with `weights_only`, so that
nothing in it is executed. Names are the file's own, but for wrappings: `{"state_dict": ...}`,
`{"model": ...}` and a "module." before every name are taken off.

What is loaded is never a guess. Every weight of the module has to be in the file, in its shape, or
under one of the names in `fresh`; and everything in the file has to have its place, or to be under
one of the names in `unused`, such as the classifier of another task. Anything else is an error that
lists what does not fit, and leaves the module as it was.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

WRAPPINGS = ("state_dict", "model_state_dict", "model")
# Files from before torch 0.4.1 do not have it, and a batch norm with a momentum does not use it.
COUNTER = "num_batches_tracked"
SHOWN = 6  # names of a list in an error


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of a file."""

    path: str
    fresh: tuple[str, ...]  # weights of the module that the file did not set
    unused: tuple[str, ...]  # weights of the file that went nowhere


def load_weights(
    module: nn.Module,
    path: str | Path,
    *,
    fresh: Sequence[str] = (),
    unused: Sequence[str] = (),
    rename: Callable[[str], str] | None = None,
) -> Loaded:
    """Set a module's weights and buffers to those of a file.

    Args:
        module: is left untouched if anything does not fit.
        path: of the file.
        fresh: names of parts that stay as they are, whatever the file has for them.
        unused: names of parts that the file may have and the module does not.
        rename: from a name of the file to the module's.
    """
    own = cast(Mapping[str, Tensor], module.state_dict())
    found = renamed(path, read(path), rename)
    kept = {name for name in own if within(name, fresh)}
    missing = [
        name for name in own.keys() - kept - found.keys() if not name.endswith(f".{COUNTER}")
    ]
    surplus = found.keys() - own.keys()
    unexpected = [name for name in surplus if not within(name, (*unused, *fresh))]
    taken = sorted(own.keys() & found.keys() - kept)
    wrong = [
        f"{name} is {described(found[name])} in the file and {described(own[name])} here"
        for name in taken
        if described(found[name]) != described(own[name])
    ]
    # As they will lie here: a float64 file may hold what a float32 cannot.
    broken = [n for n in taken if not found[n].to(own[n].dtype).isfinite().all()]
    faults = {
        "it lacks": missing,
        "it has what this encoder does not": unexpected,
        "shapes differ": wrong,
        "these are not finite": broken,
    }
    if any(faults.values()):
        raise ValueError(complaint(path, faults, [*missing, *(one.split()[0] for one in wrong)]))
    with torch.no_grad():
        for name in taken:
            own[name].copy_(found[name])
    return Loaded(
        str(path),
        tuple(sorted(own.keys() - set(taken))),
        tuple(sorted(surplus | (kept & found.keys()))),
    )


def why(error: Exception) -> str:
    """In a few words, why a file is no state dict."""
    if isinstance(error, EOFError):
        return "it is empty, or ends too early"
    if isinstance(error, LookupError):
        return "it is no file of torch"
    if "weights_only" in str(error):
        return "it holds objects besides tensors, which would have to be executed"
    return str(error).strip().partition("\n")[0]


def read(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(
            f"there is no file of weights {str(path)!r}; give the path of a .safetensors file or "
            "of a torch state dict, or leave weights out to start from random ones"
        )
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

        try:
            return load_file(file)
        except SafetensorError as error:
            raise ValueError(f"weights {str(path)!r} is no safetensors file: {error}") from None
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError) as error:
        reason = why(error)
        raise ValueError(
            f"weights {str(path)!r} cannot be read as a state dict of tensors alone: {reason} "
            "(save it again with torch.save(model.state_dict(), path))"
        ) from None
    return tensors(path, content)


def tensors(path: str | Path, content: object) -> dict[str, Tensor]:
    """The state dict in what was read, out of its wrappings."""
    state = content
    while isinstance(state, Mapping):
        state = cast(Mapping[object, object], state)
        inner = next((state[key] for key in WRAPPINGS if isinstance(state.get(key), Mapping)), None)
        if inner is None:
            break
        state = inner
    found: dict[str, Tensor] = {}
    items = cast(Mapping[object, object], state).items() if isinstance(state, Mapping) else ()
    for name, value in items:
        if not isinstance(name, str) or not isinstance(value, Tensor):
            found.clear()
            break
        found[name] = value
    if not found:
        raise ValueError(
            f"weights {str(path)!r} holds no state dict: it must map names to tensors, bare or "
            f"under one of {', '.join(map(repr, WRAPPINGS))}"
        )
    return found


def renamed(
    path: str | Path, found: Mapping[str, Tensor], rename: Callable[[str], str] | None
) -> dict[str, Tensor]:
    """The same tensors by the names that the module has for them."""
    while all(name.startswith("module.") for name in found):
        found = {name.removeprefix("module."): value for name, value in found.items()}
    if rename is None:
        return dict(found)
    result: dict[str, Tensor] = {}
    for name, value in found.items():
        if (new := rename(name)) in result:
            raise ValueError(f"weights {str(path)!r} has {new!r} twice, once as {name!r}")
        result[new] = value
    return result


def within(name: str, parts: Iterable[str]) -> bool:
    """Whether a weight is one of these, or belongs to one of these parts."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def described(weight: Tensor) -> str:
    """Its shape; and that it is not of real numbers, where it is not."""
    kind = "" if weight.is_floating_point() else f" of {str(weight.dtype).removeprefix('torch.')}"
    return f"{list(weight.shape)}{kind}"


def complaint(path: str | Path, faults: Mapping[str, Sequence[str]], refused: list[str]) -> str:
    """All that does not fit, and how to leave it out on purpose."""
    listed = "; ".join(f"{what}: {shown(names)}" for what, names in faults.items() if names)
    parts = sorted({name.partition(".")[0] for name in refused})
    hint = f"; parts that shall start from random weights are named: fresh={tuple(parts)}"
    return f"weights {str(path)!r} do not fit: {listed}{hint if parts else ''}"


def shown(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    first = ", ".join(sorted(names)[:SHOWN])
    return first if len(names) <= SHOWN else f"{first} and {len(names) - SHOWN} more"


def digest(path: str | Path) -> str:
    """The sha256 of a file: what weights are known by, wherever they lie."""
    with Path(path).expanduser().open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
