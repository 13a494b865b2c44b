"""Parameter groups that say which modality their parameters belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

Claim = nn.Module | str | Iterable[nn.Module | nn.Parameter]
DecayFilter = Callable[[str, nn.Parameter], bool]

SHARED = "shared"
RESERVED = {
    SHARED: "this is the name of the parameters that no modality claims",
    "mask": "observe(target, mask=...) would take it for the mask",
}


def modal_groups(
    model: nn.Module, /, *, decay_filter: bool | DecayFilter = False, **modalities: Claim
) -> list[dict[str, Any]]:
    """Split a model's parameters into named groups for any torch optimizer.

    Args:
        model: every parameter of it lands in exactly one group.
        decay_filter: split each group in two, with and without weight decay: a function of name and
            parameter, or True for the usual rule, that matrices decay, and biases and norms do not.
        modalities: what belongs to each modality: a module, several modules or parameters, or a
            pattern of parameter names such as "encoders.audio.*". The rest is shared, and keeps the
            optimizer's own momentum.

    Returns:
        Ordinary group dicts with `params`, `name` and `modality`, None for the shared one.

    Example:
        modal_groups(model, audio=model.audio, video=[model.video, model.video_head])
    """
    if not modalities:
        raise ValueError(
            "no modality was named; write modal_groups(model, audio=model.audio, video=model.video)"
        )
    for name in RESERVED.keys() & modalities.keys():
        raise ValueError(f"modality {name!r}: {RESERVED[name]}; choose another name")
    # A parameter that two modules share has two names, and either may be claimed.
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)

    owner = _owners(modalities, names)
    members: dict[str, list[nn.Parameter]] = {modality: [] for modality in (*modalities, SHARED)}
    for parameter in names:
        members[owner.get(parameter, SHARED)].append(parameter)
    groups: list[dict[str, Any]] = []
    for name, parameters in members.items():
        modality = None if name == SHARED else name
        for suffix, part, extra in _by_decay(parameters, names, decay_filter):
            if part:
                tags = {"name": name + suffix, "modality": modality}
                groups.append({"params": part, **tags, **extra})
    return groups


def _owners(
    modalities: Mapping[str, Claim], names: Mapping[nn.Parameter, list[str]]
) -> dict[nn.Parameter, str]:
    owner: dict[nn.Parameter, str] = {}
    for modality, claim in modalities.items():
        for parameter in _claimed(modality, claim, names):
            if parameter not in names:
                raise ValueError(
                    f"modality {modality!r} claims a parameter of shape {tuple(parameter.shape)} "
                    "that the model does not hold; claim parts of the model that you passed first"
                )
            if owner.setdefault(parameter, modality) != modality:
                raise ValueError(
                    f"parameter {names[parameter][0]!r} is claimed by modality "
                    f"{owner[parameter]!r} and again by modality {modality!r}; leave it to one of "
                    "them, or to none if they share it"
                )
    return owner


def _claimed(
    modality: str, claim: Claim, names: Mapping[nn.Parameter, list[str]]
) -> Iterable[nn.Parameter]:
    if isinstance(claim, str):
        found = [p for p, known in names.items() if any(fnmatchcase(n, claim) for n in known)]
        if not found:
            starts = sorted(
                {name.split(".")[0] + ".*" for known in names.values() for name in known}
            )
            raise ValueError(
                f"modality {modality!r}: no parameter name matches {claim!r}; patterns match whole "
                f"names, for instance {', '.join(starts)}"
            )
        return found
    parts: list[Any] = list(claim) if isinstance(claim, Iterable) else [claim]
    if isinstance(claim, nn.Module):  # some of which are iterable
        parts = [claim]
    found: list[nn.Parameter] = []
    for part in parts:
        if isinstance(part, nn.Module):
            found += part.parameters()
        elif isinstance(part, nn.Parameter):
            found.append(part)
        else:
            raise TypeError(
                f"modality {modality!r} claims a {type(part).__name__}; it may claim a module, a "
                'list of modules or parameters, or a name pattern such as "encoders.audio.*"'
            )
    if not found:
        raise ValueError(
            f"modality {modality!r} claims nothing that has parameters; name the module that "
            "encodes it, and pass parameters() anew if the same generator was used before"
        )
    return found


def _by_decay(
    parameters: list[nn.Parameter],
    names: Mapping[nn.Parameter, list[str]],
    decay_filter: bool | DecayFilter,
) -> list[tuple[str, list[nn.Parameter], dict[str, Any]]]:
    """(name suffix, parameters, further group entries)."""
    if decay_filter is False:
        return [("", parameters, {})]

    def decays(parameter: nn.Parameter) -> bool:
        if callable(decay_filter):
            return bool(decay_filter(names[parameter][0], parameter))
        return parameter.ndim > 1

    return [
        ("/decay", [p for p in parameters if decays(p)], {}),
        ("/no_decay", [p for p in parameters if not decays(p)], {"weight_decay": 0.0}),
    ]
