"""VCMM: every modality its own momentum, from what its gradients show of noise and drift.

Public names are the ones in `__all__`, and nothing else. Each is imported when it is first asked
for, so that what reads records or prints a help text need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .controller import MomentumController
    from .facade import VCMM
    from .groups import modal_groups
    from .heads import ProbeHeads
    from .momentum import Binding, register
    from .policy import Fixed, Frozen, Kalman, Policy
    from .probe import Probe

__all__ = [
    "VCMM",
    "Binding",
    "Fixed",
    "Frozen",
    "Kalman",
    "MomentumController",
    "Policy",
    "Probe",
    "ProbeHeads",
    "modal_groups",
    "register",
]

_HOME = {
    "VCMM": "facade",
    "Binding": "momentum",
    "Fixed": "policy",
    "Frozen": "policy",
    "Kalman": "policy",
    "MomentumController": "controller",
    "Policy": "policy",
    "Probe": "probe",
    "ProbeHeads": "heads",
    "modal_groups": "groups",
    "register": "momentum",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value  # the next time it is found without asking
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
