"""Finished runs with scores that a test chooses, for suites that look at what they asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields

from vcmm.bench.records import Eval, Run
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.suites.stages import Asked, Done, driven

TWO = {"data": Choice("synthetic", modalities=2, samples=64)}
THREE = {"data": Choice("synthetic", modalities=3, samples=64)}
SHORT = {"epochs": 3, "batch_size": 32}

Score = Callable[[Spec], float]


def run_of(spec: Spec, valid: float, test: float = 0.5) -> Run:
    """A run with one epoch, judged so."""
    evals = (
        Eval(0, 1, "valid", {"accuracy": valid}),
        Eval(0, 1, "test", {"accuracy": test}),
    )
    known = {"spec": spec.to_json(), "metric": "accuracy", "evals": evals}
    return Run(**{**dict.fromkeys((f.name for f in fields(Run)), ""), **known})


class Bench:
    """Trains by looking the score up, and keeps what it was asked for."""

    def __init__(self, score: Score = lambda _: 0.5, failing: Callable[[Spec], bool] | None = None):
        self.score = score
        self.failing = failing or (lambda _: False)
        self.stages: list[list[Spec]] = []

    def train(self, specs: list[Spec]) -> Done:
        self.stages.append(specs)
        # What is best on test is the worst on valid: whoever looked there would be found out.
        return {
            spec: run_of(spec, self.score(spec), 1 - self.score(spec))
            for spec in specs
            if not self.failing(spec)
        }

    def drive(self, asked: Asked) -> list[Spec]:
        return driven(asked, self.train)


def betas_of(specs: Iterable[Spec]) -> list[tuple[float, ...]]:
    """The fixed momenta, of those that have them."""
    return [
        tuple(spec.controller.options["betas"].values())
        for spec in specs
        if spec.controller.name == "fixed"
    ]
