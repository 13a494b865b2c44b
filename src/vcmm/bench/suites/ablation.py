"""The paper's ablation, and the controls that it lacks.

| row                        | arm                                                           |
|----------------------------|---------------------------------------------------------------|
| shared                     | `joint`: the optimizer's own momentum                         |
| fixed asymmetric           | `fixed`, with the momenta that were best on valid             |
| frozen                     | `frozen`                                                      |
| without noise subtraction  | `vcmm` with `subtract_noise=False`                            |
| without centring           | `vcmm` with `center=False`                                    |
| without exact correction   | `vcmm` with `exact=False`                                     |
| full                       | `vcmm`                                                        |
| control: best shared       | `fixed`, with the one momentum that was best on valid for all |
| control: no control        | `vcmm` with `strength=0`: it measures and changes nothing     |
| control: the unbiased order| `vcmm` with `floor_after_smoothing=True`                      |

The search for momenta takes every combination of two modalities, and goes modality by modality for
more; it is trained with seed 0 and looks at valid alone. The best shared momentum comes out of the
same grid. So whoever asks whether a momentum that changes is worth anything can compare it with
constant ones that were given far more compute.
"""

from __future__ import annotations

from dataclasses import replace

from ..spec import Choice
from .budget import Name, within
from .grid import Base, arm, modalities_of, seeded
from .search import best, descent, equal, grid
from .stages import Stages

BETAS = (0.70, 0.80, 0.90, 0.95, 0.99)

CONTROLLERS = (
    Choice("none"),
    Choice("frozen"),
    Choice("vcmm", subtract_noise=False),
    Choice("vcmm", center=False),
    Choice("vcmm", exact=False),
    Choice("vcmm"),
    Choice("vcmm", strength=0.0),
    Choice("vcmm", floor_after_smoothing=True),
)


def ablation(
    base: Base,
    *,
    budget: Name = "small",
    seeds: int | None = None,
    epochs: int | None = None,
    batch_size: int = 64,
    betas: tuple[float, ...] = BETAS,
) -> Stages:
    """VCMM without each of its parts, and beside momenta that were searched for."""
    base, count = within(base, budget, seeds, epochs, batch_size)
    joint = arm(base, "joint")
    rows = [replace(joint, controller=one) for one in CONTROLLERS]
    modalities = modalities_of(joint)
    diagonal = equal(joint, modalities, betas)
    first = diagonal if len(modalities) > 2 else grid(joint, modalities, betas)
    done = yield [*seeded(rows, count), *first]
    shared = best(diagonal, done)
    if len(modalities) > 2:
        asymmetric = yield from descent(joint, modalities, betas)
    else:
        asymmetric = best(first, done)
    yield seeded([one for one in (asymmetric, shared) if one is not None], count)
