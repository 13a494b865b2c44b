"""Every method by name, one paper a file."""

from __future__ import annotations

from ..method import Method
from .dgl import DGL
from .ensemble import Ensemble
from .joint import Joint
from .multi_loss import MultiLoss
from .unimodal import Unimodal

METHODS: dict[str, type[Method]] = {
    "dgl": DGL,
    "ensemble": Ensemble,
    "joint": Joint,
    "multi_loss": MultiLoss,
    "unimodal": Unimodal,
}
