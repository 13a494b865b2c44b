"""What is compared with what: settings, and the arms within them.

An arm is all runs that differ in nothing but their seed. A setting is all arms that differ in
nothing but method, fusion, controller and modalities: the same data, encoders, optimizer, schedule
and budget. Only arms of one setting stand in one table; runs of different settings are never mixed.

Many methods are published on a fusion of their own. An arm is compared with joint training by the
same fusion where the setting has it, or what a fusion does would be taken for what a method does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from .records import Run
from .roles import PUBLISHED, changed
from .spec import AXES
from .studies import COMPARED, canonical, conditions, studies

__all__ = ["Arm", "Setting", "conditions", "gathered", "label", "settings"]

_SWEPT = ("optimizer", "batch_size", "epochs")
_PLAIN = "mean"  # the fusion of the reference where there are several; it goes without saying


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs that differ in their seed alone, by seed."""

    label: str
    runs: Mapping[int, Run]

    @property
    def method(self) -> str:
        return self.spec["method"]["name"]

    @property
    def controller(self) -> str:
        return self.spec["controller"]["name"]

    @property
    def spec(self) -> Mapping[str, Any]:
        """Of any of its runs: they differ in the seed alone."""
        return next(iter(self.runs.values())).spec

    @property
    def plain(self) -> bool:
        """Whether it is joint training without a controller."""
        return self.method == "joint" and self.controller == "none"

    @property
    def alone(self) -> str | None:
        """The one modality that a unimodal reference is trained on."""
        return self.spec["method"]["modality"] if self.method == "unimodal" else None


@dataclass(frozen=True, slots=True)
class Setting:
    """Arms that may be compared, and the one that the others are compared with.

    Aside are arms that were tried and not chosen: of a search, of a grid. Near are arms of a sweep,
    which have another learning rate or batch size. Neither may be compared with the others.
    """

    title: str
    arms: tuple[Arm, ...]
    reference: Arm | None = field(default=None)
    aside: tuple[Arm, ...] = ()
    near: tuple[Arm, ...] = ()

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs.values()]

    @property
    def everything(self) -> list[Run]:
        """All runs that have to do with it: those in its tables, those aside and those near."""
        arms = (*self.arms, *self.aside, *self.near)
        return [run for arm in arms for run in arm.runs.values()]

    def reference_of(self, arm: Arm) -> Arm | None:
        """What an arm is compared with: joint training by its fusion, or else the reference."""
        if self.reference is None or arm is self.reference:
            return None
        wanted = (arm.spec["fusion"], self.reference.spec["modalities"])
        for other in self.arms:
            if other.plain and (other.spec["fusion"], other.spec["modalities"]) == wanted:
                return self.reference if other is arm else other
        return self.reference


def settings(runs: Iterable[Run]) -> list[Setting]:
    """The runs, by what they may be compared with; sorted by title."""
    found = studies(runs)
    titles = _titles([study.common for study in found])
    made = [
        gathered(title, study.runs, study.aside, study.near)
        for title, study in zip(titles, found, strict=True)
    ]
    return sorted(made, key=lambda setting: setting.title)


def gathered(
    title: str, runs: Sequence[Run], aside: Sequence[Run] = (), near: Sequence[Run] = ()
) -> Setting:
    """The arms of runs that may be compared, whatever else they differ in."""
    arms, *others = (_arms(one) for one in (runs, aside, near))
    beside, around = (tuple(replace(one, label=_full(one)) for one in each) for each in others)
    joint = [arm for arm in arms if arm.plain]
    joint.sort(key=lambda arm: arm.spec["fusion"]["name"] != _PLAIN)
    return Setting(title, arms, joint[0] if joint else None, beside, around)


def _arms(runs: Sequence[Run]) -> tuple[Arm, ...]:
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        key = canonical([run.spec[axis] for axis in (*COMPARED, *_SWEPT) if axis != "seed"])
        seeds = groups.setdefault(key, {})
        if run.seed in seeds:
            raise ValueError(
                f"{run.path} and {seeds[run.seed].path} are the same run; delete one of them"
            )
        seeds[run.seed] = run
    members = [dict(sorted(seeds.items())) for _, seeds in sorted(groups.items())]
    specs = [next(iter(seeds.values())).spec for seeds in members]
    arms = [Arm(label(spec, specs), seeds) for spec, seeds in zip(specs, members, strict=True)]
    return tuple(sorted(arms, key=_place))


def _place(arm: Arm) -> tuple[Any, ...]:
    """Unimodal references first, then joint, then the others; all modalities before some."""
    order = ("unimodal", "joint")
    rank = order.index(arm.method) if arm.method in order else len(order)
    part = arm.spec["modalities"] is not None
    return rank, arm.method, arm.controller != "none", part, arm.label


# Words


def label(spec: Mapping[str, Any], specs: Sequence[Mapping[str, Any]]) -> str:
    """What tells an arm from the others: "joint", "joint + vcmm", "ogm (alpha=0.3)"."""
    method = cast(dict[str, Any], spec["method"])
    peers = [other["method"] for other in specs]
    if method["name"] == "unimodal":
        rest = {key: value for key, value in method.items() if key != "modality"}
        label = f"unimodal: {method['modality']}{_options(_differing(rest, peers))}"
    else:
        label = f"{method['name']}{_options(_differing(method, peers))}"
    fusions = [other["fusion"] for other in specs]
    if len({canonical(fusion) for fusion in fusions}) > 1 and spec["fusion"]["name"] != _PLAIN:
        label += f" by {spec['fusion']['name']}{_options(_differing(spec['fusion'], fusions))}"
    controller = cast(dict[str, Any], spec["controller"])
    if controller["name"] != "none":
        peers = [other["controller"] for other in specs]
        # VCMM as published goes without saying, whoever its peers are.
        rest = {key: value for key, value in controller.items() if key not in changed(spec)}
        ours = controller["name"] == "vcmm"
        given = {key: value for key, value in rest.items() if key not in PUBLISHED or not ours}
        label += f" + {controller['name']}{_options({**changed(spec), **_differing(given, peers)})}"
    part = spec["modalities"]
    if part is not None and any(other["modalities"] != part for other in specs):
        label += f" on {', '.join(part)}"
    return label


def _full(arm: Arm) -> str:
    """A label that also says what is searched and swept."""
    lr, size = arm.spec["optimizer"].get("lr"), arm.spec["batch_size"]
    rate = "" if lr is None else f" lr={_short(float(lr))}"
    return f"{arm.label},{rate} batch={size}"


def _differing(choice: Mapping[str, Any], peers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The options in which choices of the same name differ.

    A value that more than two thirds of them share goes without saying. No two of them lose what
    tells them apart, for no two values are shared by so many.
    """
    same = {canonical(peer): peer for peer in peers if peer["name"] == choice["name"]}.values()
    shown: dict[str, Any] = {}
    for key, value in choice.items():
        values = [canonical(peer.get(key)) for peer in same]
        if 3 * values.count(canonical(value)) <= 2 * len(values):
            shown[key] = value
    return shown


def _options(shown: Mapping[str, Any]) -> str:
    """As " (alpha=0.3)"."""
    each = ", ".join(f"{key}={_short(value)}" for key, value in shown.items())
    return f" ({each})" if each else ""


def _titles(commons: Sequence[Mapping[str, Any]]) -> list[str]:
    """The data of each setting, and whatever else tells it from the others."""
    titles: list[str] = []
    for common in commons:
        data = cast(dict[str, Any], common["data"])
        parts = [
            f"{data['name']}{_options(_differing(data, [other['data'] for other in commons]))}"
        ]
        peers = [other for other in commons if other["data"]["name"] == data["name"]]
        for axis, value in common.items():
            if axis == "data" or len({canonical(peer[axis]) for peer in peers}) == 1:
                continue
            if axis in AXES:
                choices = [peer[axis] for peer in peers]
                parts.append(f"{value['name']}{_options(_differing(value, choices))}")
            else:
                parts.append(f"{axis.replace('_', ' ')} {_short(value)}")
        titles.append(", ".join(parts))
    return titles


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        each = cast(dict[str, object], value).items()
        return " ".join(f"{key}:{_short(one)}" for key, one in each)
    return value if isinstance(value, str) else json.dumps(value)
