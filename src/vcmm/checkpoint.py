"""What is saved of a controller, and what is checked before anything is loaded.

torch accepts a state whose groups are in another order, if only their sizes agree, and drops the
entries of a group that the saved one does not have. Both would put momenta on the wrong modality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .momentum import Group
from .record import pack, unpack

VERSION = 1


def write(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict of two entries, whatever it holds: see `vcmm.record`."""
    return {"version": VERSION, "record": pack(state)}


def read(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a state_dict of the version that `write` writes."""
    if state_dict.get("version") != VERSION:
        raise ValueError(
            f"this vcmm reads controller states of version {VERSION}, but found "
            f"{state_dict.get('version')!r}; load it with the vcmm that saved it"
        )
    return unpack(state_dict.get("record"))


def signature(groups: Sequence[Group]) -> list[list[Any]]:
    """What must be equal for a state to fit: per group name, modality, parameters, numbers."""
    return [
        [g.get("name"), g.get("modality"), len(g["params"]), sum(p.numel() for p in g["params"])]
        for g in groups
    ]


def require_same(saved: Sequence[Sequence[Any]], groups: Sequence[Group]) -> None:
    """An error that names the first group that differs from the saved ones."""
    mine = signature(groups)
    for theirs, ours in zip(saved, mine, strict=False):
        if list(theirs) != ours:
            raise ValueError(
                "the saved groups are others than the optimizer's: saved (name, modality, "
                f"parameters, numbers) = {tuple(theirs)}, here {tuple(ours)}; build the groups as "
                "they were when the state was saved"
            )
    if len(saved) != len(mine):
        raise ValueError(
            f"the saved state has {len(saved)} groups, the optimizer {len(mine)}; build the groups "
            "as they were when the state was saved"
        )


def fitting_groups(saved: Sequence[Group], groups: Sequence[Group]) -> list[Group]:
    """The saved groups with the tags of the present ones; an error where they do not belong.

    A state whose groups carry no tag at all was saved without them, and is taken as it comes.
    """
    fitting = [dict(group) for group in saved]
    for key in ("name", "modality"):
        known = any(group.get(key) is not None for group in saved)
        for theirs, ours in zip(fitting, groups, strict=False):
            if known and theirs.get(key) != ours.get(key):
                raise ValueError(
                    f"the saved group with {key} {theirs.get(key)!r} would be loaded into the one "
                    f"with {key} {ours.get(key)!r}; build the groups in the order of the saved ones"
                )
            if key in ours:
                theirs[key] = ours[key]
    for theirs, ours in zip(fitting, groups, strict=False):
        if len(theirs["params"]) != len(ours["params"]):
            raise ValueError(
                f"group {ours.get('name')!r} of modality {ours.get('modality')!r} was saved with "
                f"{len(theirs['params'])} parameters and has {len(ours['params'])} here; build "
                "the groups as they were when the state was saved"
            )
    return fitting
