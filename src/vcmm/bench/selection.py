"""Which epoch of a run counts. It is decided when records are read, never while training.

| rule     | epoch                                                         |
|----------|---------------------------------------------------------------|
| `valid`  | the best one on the validation split, the first of equals     |
| `last`   | the last one                                                  |
| `oracle` | the best one on the test split, the first of equals           |

The best is that of accuracy, or of mAP where samples have several labels.

`oracle` looks at what it is judged by, so its numbers are too good, and the more so the noisier a
method is. It is here because papers use it, and it carries a warning wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from .records import Run

SIGN = "\N{WARNING SIGN}"


def selected(run: Run, rule: str) -> int:
    """The epoch that counts under a rule."""
    if rule not in RULES:
        raise ValueError(f"there is no selection {rule!r}; choose from {', '.join(RULES)}")
    return RULES[rule](run)


def counted(run: Run, rule: str) -> Mapping[str, float]:
    """What the test split gave at the epoch that counts."""
    return _at(run, "test", selected(run, rule))


def final(run: Run) -> Mapping[str, float]:
    """What the test split gave at the last epoch, where features are probed."""
    return _at(run, "test", _last(run))


def on_valid(run: Run) -> float:
    """What a search goes by: the best there is on the validation split."""
    _demand(run, "valid")
    return max(row.values.get(run.metric, -math.inf) for row in run.evals if row.split == "valid")


def warning(rule: str) -> str | None:
    """What must stand beside every number that a rule gave."""
    if rule != "oracle":
        return None
    return (
        f"{SIGN} Epochs were chosen on the test split, so these numbers are too good. "
        "Do not report them as results."
    )


def shown(rule: str) -> str:
    """The name of a rule, with its sign."""
    return f"{rule} {SIGN}" if warning(rule) else rule


def _demand(run: Run, split: str) -> None:
    if not any(row.split == split for row in run.evals):
        raise ValueError(
            f"{run.path / 'evals.jsonl'} has no split {split!r}; delete {run.path} and run its "
            "spec again"
        )


def _at(run: Run, split: str, epoch: int) -> Mapping[str, float]:
    return next(row.values for row in run.evals if row.split == split and row.epoch == epoch)


def _best(run: Run, split: str) -> int:
    _demand(run, split)
    rows = [row for row in run.evals if row.split == split]
    # Where training diverged, the metric may be undefined.
    return max(rows, key=lambda row: (row.values.get(run.metric, -math.inf), -row.epoch)).epoch


def _last(run: Run) -> int:
    _demand(run, "test")
    return max(row.epoch for row in run.evals if row.split == "test")


RULES: dict[str, Callable[[Run], int]] = {
    "valid": lambda run: _best(run, "valid"),
    "last": _last,
    "oracle": lambda run: _best(run, "test"),
}
