"""What momentum does over a training: the suite behind the paper's pictures.

| picture                                         | runs                                       |
|-------------------------------------------------|--------------------------------------------|
| noise, drift and momentum of every modality     | joint training with VCMM                   |
| accuracy of every modality on valid             | joint training without and with VCMM       |
| equal against unequal momenta of two modalities | `fixed` momenta, every combination, seed 0 |
| the probe against the encoder's own gradient    | VCMM with a recorder beside it, seed 0     |
"""

from __future__ import annotations

from dataclasses import replace

from ..spec import Choice, Spec
from .ablation import BETAS
from .budget import Name, within
from .grid import Base, arm, modalities_of, seeded
from .search import SEED, grid


def dynamics(
    base: Base,
    *,
    budget: Name = "small",
    seeds: int | None = None,
    epochs: int | None = None,
    batch_size: int = 64,
    betas: tuple[float, ...] = BETAS,
    pair: tuple[str, str] | None = None,
    encoder_every: int = 5,
) -> list[Spec]:
    """Noise, drift and momentum over a training; momenta of two modalities; probe and encoder.

    `pair` names the two modalities whose momenta are combined, the first two if it is left out;
    `encoder_every` is how many steps lie between two looks at the encoders' own gradients.
    """
    base, count = within(base, budget, seeds, epochs, batch_size)
    joint = arm(base, "joint")
    chosen = pair or modalities_of(joint)[:2]
    for modality in chosen:
        if modality not in modalities_of(joint):
            known = ", ".join(modalities_of(joint))
            raise ValueError(f"pair names modality {modality!r}; the data has {known}")
    recorded = Choice("vcmm", encoder_every=encoder_every)
    return [
        *seeded([joint, arm(base, "joint+vcmm")], count),
        replace(joint, controller=recorded, seed=SEED),
        *grid(joint, sorted(chosen), betas),
    ]
