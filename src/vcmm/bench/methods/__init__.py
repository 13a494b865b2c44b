"""Every method by name, one paper a file."""

from __future__ import annotations

from ..method import Method
from .agm import AGM
from .aug import AUG
from .bss import BSS
from .cggm import CGGM
from .decalign import DecAlign
from .dgl import DGL
from .ensemble import Ensemble
from .g2d import G2D
from .gblend import GBlend
from .inforeg import InfoReg
from .joint import Joint
from .lfm import LFM
from .mla import MLA
from .mmpareto import MMPareto
from .multi_loss import MultiLoss
from .ogm import OGM
from .pmr import PMR
from .reconboost import ReconBoost
from .unimodal import Unimodal

METHODS: dict[str, type[Method]] = {
    "agm": AGM,
    "aug": AUG,
    "bss": BSS,
    "cggm": CGGM,
    "decalign": DecAlign,
    "dgl": DGL,
    "ensemble": Ensemble,
    "g2d": G2D,
    "gblend": GBlend,
    "inforeg": InfoReg,
    "joint": Joint,
    "lfm": LFM,
    "mla": MLA,
    "mmpareto": MMPareto,
    "multi_loss": MultiLoss,
    "ogm": OGM,
    "pmr": PMR,
    "reconboost": ReconBoost,
    "unimodal": Unimodal,
}
