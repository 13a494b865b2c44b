"""Multi-loss: every modality's own head is trained as well, with equal weights.

L = CE(z, y) + sum_m CE(z_m, y). It is the "uniform baseline" of MMPareto (ICML 2024), strong where
all modalities are informative, and missing in most tables.
"""

from __future__ import annotations

from ..method import Method, Terms
from ..types import Batch, Output


class MultiLoss(Method):
    """The loss of the fused logits plus the loss of every modality's own."""

    def loss(self, output: Output, batch: Batch) -> Terms:
        own = {m: self.criterion(z, batch.target) for m, z in output.logits.items()}
        return {**super().loss(output, batch), **own}
