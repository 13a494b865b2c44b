"""VCMM: every modality its own momentum, from what its gradients show of noise and drift.

Public names are the ones in `__all__`, and nothing else.
"""

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
