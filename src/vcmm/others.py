"""Optimizers of other libraries that are refused, and why.

Nothing is imported for it: a class is known by its package and its name.
"""

from __future__ import annotations


def named(package: str, names: str, *, prefix: str = "", suffixes: str = "") -> list[str]:
    """package.name of every name, with and without the prefix and each of the suffixes."""
    return [
        f"{package}.{before}{name}{after}"
        for name in names.split()
        for before in dict.fromkeys(("", prefix))
        for after in ("", *suffixes.split())
    ]


BITS = "8bit 32bit"  # as bitsandbytes calls the sizes of its states
_PAGED = {"prefix": "Paged", "suffixes": BITS}

_LION = (
    "it has two betas, one for the average that it keeps and one for what the newest gradient adds "
    "to the sign that it takes, so neither is its momentum. Use AdamW"
)
_SCHEDULE_FREE = (
    "it has no first moment: its beta is the place between two iterates at which gradients are "
    "taken, and its eval() has to find the beta of the last step. Use AdamW with a schedule"
)

_REASONS: dict[str, list[str]] = {
    _LION: [
        "lion_pytorch.Lion",
        "pytorch_optimizer.Lion",
        *named("bitsandbytes", "Lion", **_PAGED),
    ],
    _SCHEDULE_FREE: [
        *named(
            "schedulefree",
            "AdamWScheduleFree RAdamScheduleFree SGDScheduleFree ScheduleFreeWrapper",
            suffixes="Closure Paper Reference",
        ),
        *named(
            "pytorch_optimizer",
            "ScheduleFreeAdamW ScheduleFreeRAdam ScheduleFreeSGD ScheduleFreeWrapper",
        ),
    ],
    "it has no dampening, by which alone the newest gradient is weighed. Use torch.optim.SGD": (
        named("bitsandbytes", "SGD", suffixes=BITS)
    ),
    "it bounds its step by the norm of its own moment, which no learning rate corrects. Use "
    "bitsandbytes' AdamW": [
        *named("bitsandbytes", "LAMB LARS", suffixes=BITS),
        "bitsandbytes.PytorchLARS",
    ],
    "it adds a slow moment that needs no correction to one that does, and one learning rate "
    "scales both. Use bitsandbytes' AdamW": named("bitsandbytes", "AdEMAMix", **_PAGED),
    "it has no first moment. Use bitsandbytes' AdamW": (
        named("bitsandbytes", "Adagrad RMSprop", suffixes=BITS)
    ),
}

REFUSED: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names}
