"""Searches on valid, with one seed: of a learning rate for every arm, and of fixed momenta.

What is tried is an ordinary run, so a search is recorded as all training is, and one that was
interrupted goes on. What counts is the best epoch on valid, in the metric that a run is judged by;
nothing here looks at test. Of equals, the first one tried is chosen.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from itertools import cycle, product

from ..records import Run
from ..spec import Choice, Spec, canonical
from .stages import Asked, Done, Stages, staged

SEED = 0  # with which everything is tried
NAME = ("method", "fusion", "controller", "modalities")  # what draws follow from
RANGE = 10.0  # learning rates are drawn from lr / 10 to 10 lr
MOST = 25  # trials of momenta for three modalities or more


def score(run: Run) -> float:
    """What a search compares: the metric on valid at its best epoch."""
    rows = [row for row in run.evals if row.split == "valid"]
    return max(row.values.get(run.metric, -math.inf) for row in rows)


def best(tried: Iterable[Spec], done: Done) -> Spec | None:
    """The one that did best, of those that did not fail."""
    finished = [spec for spec in tried if spec in done]
    return max(finished, key=lambda spec: score(done[spec]), default=None)


# Learning rates


def searched(asked: Asked, trials: int) -> Stages:
    """A suite in which every arm has the learning rate that was best in so many trials.

    The first trial is the learning rate that the arm had; the others are drawn around it. The suite
    itself does not notice: it is sent the runs by the specs that it asked for.
    """
    if trials < 1:
        raise ValueError(f"search is {trials}; it is how many learning rates are tried, 1 or more")
    stages = staged(asked)
    done: dict[Spec, Run] = {}  # what the suite is told
    specs = next(stages, None)
    while specs is not None:
        arms = {spec: replace(spec, seed=SEED) for spec in specs}
        tried = {arm: [with_rate(arm, lr) for lr in rates(arm, trials)] for arm in arms.values()}
        found = yield [trial for each in tried.values() for trial in each]
        # Where all trials have failed, the arm fails as it is, and says why.
        chosen = {arm: best(each, found) or arm for arm, each in tried.items()}
        final = {spec: replace(spec, optimizer=chosen[arm].optimizer) for spec, arm in arms.items()}
        found = yield list(final.values())
        done |= {spec: found[one] for spec, one in final.items() if one in found}
        try:
            specs = stages.send(done)
        except StopIteration:
            specs = None


def rates(arm: Spec, trials: int) -> list[float]:
    """The learning rates that an arm is tried with: its own, and draws by its name."""
    own: float = arm.optimizer.options["lr"]
    values = arm.to_json()
    source = random.Random(canonical([values[axis] for axis in NAME]))
    drawn = [own * RANGE ** source.uniform(-1, 1) for _ in range(trials - 1)]
    return [own, *(float(f"{lr:.3g}") for lr in drawn)]


def with_rate(spec: Spec, lr: float) -> Spec:
    """The same with another learning rate."""
    optimizer = Choice(spec.optimizer.name, **{**spec.optimizer.options, "lr": lr})
    return replace(spec, optimizer=optimizer)


# Fixed momenta


def fixed(joint: Spec, betas: dict[str, float]) -> Spec:
    """Joint training with constant momenta of these modalities, as the search trains it."""
    return replace(joint, controller=Choice("fixed", betas=betas), seed=SEED)


def grid(joint: Spec, modalities: Sequence[str], betas: Sequence[float]) -> list[Spec]:
    """Every combination of momenta."""
    each = product(betas, repeat=len(modalities))
    return [fixed(joint, dict(zip(modalities, row, strict=True))) for row in each]


def equal(joint: Spec, modalities: Sequence[str], betas: Sequence[float]) -> list[Spec]:
    """Every momentum, the same for all modalities."""
    return [fixed(joint, dict.fromkeys(modalities, beta)) for beta in betas]


def descent(
    joint: Spec, modalities: Sequence[str], betas: Sequence[float]
) -> Generator[list[Spec], Done, Spec | None]:
    """The best momenta, one modality after the other, until none has a better one or `MOST` trials.

    It starts from the optimizer's own momentum, or the one of `betas` that is closest to it.
    """
    start = min(betas, key=lambda beta: abs(beta - base_momentum(joint)))
    now: Spec | None = fixed(joint, dict.fromkeys(modalities, start))
    tried: list[Spec] = []
    settled = 0  # modalities in a row that keep their momentum
    for modality in cycle(modalities):
        place = now.controller.options["betas"]
        line = [fixed(joint, {**place, modality: beta}) for beta in betas]
        new = [one for one in line if one not in tried][: MOST - len(tried)]
        tried += new
        found = best([now, *line], (yield new))
        settled = settled + 1 if found == now else 1
        now = found
        if now is None or settled >= len(modalities) or len(tried) >= MOST:
            break
    return now


def base_momentum(spec: Spec) -> float:
    """What the optimizer gives to all parameters."""
    options = spec.optimizer.options
    return options["momentum"] if "momentum" in options else options["betas"][0]
