"""Joint training of all modalities: what every other method is compared with.

L = CE(z, y), with z the fused logits.
"""

from __future__ import annotations

from ..method import Method


class Joint(Method):
    """The loss of the fused logits, and nothing else."""
