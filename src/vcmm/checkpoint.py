"""What is saved of a controller, and what is checked before anything is loaded.

torch accepts a state whose groups are in another order, if only their sizes agree, and drops the
entries of a group that the saved one does not have. Both would put momenta on the wrong modality.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .ages import Ages
from .momentum import Group
from .number import Number
from .policy import Policy
from .pool import Pool, Stream
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


@dataclass(frozen=True, slots=True)
class Staged:
    """The content of a state_dict, ready to be assigned: nothing of it can fail any more."""

    ages: Ages
    streams: dict[str, Stream]
    betas: dict[str, Number]
    unmeasured: dict[str, int]
    discarded: int
    policy: Mapping[str, Any]


def stage(
    state_dict: Mapping[str, Any], groups: Sequence[Group], pool: Pool, policy: Policy
) -> Staged:
    """Take a state_dict apart without changing anything. ValueError if it does not fit."""
    state = read(state_dict)
    present = copy.deepcopy(policy.state_dict())
    try:
        require_same(state["groups"], groups)
        ages = Ages()
        ages.load_state_dict(state["ages"], groups)
        staged = Staged(
            ages=ages,
            streams=pool.staged(state["pool"]),
            betas={str(m): float(beta) for m, beta in state["betas"].items()},
            unmeasured={str(m): int(count) for m, count in state["unmeasured"].items()},
            discarded=int(state["discarded"]),
            policy=state["policy"],
        )
        try:  # a policy cannot say whether it would take a state, but it can take its own back
            policy.load_state_dict(copy.deepcopy(staged.policy))
        finally:
            policy.load_state_dict(present)
    except (LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the controller state is damaged: {error!r}") from error
    return staged


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
