"""Windows that papers give in epochs of their own long trainings, as shares of a shorter one.

With the published numbers AUG would look once in 15 epochs, and OGM would never stop. So in a
comparison under a budget they keep their share: half of the training, a tenth of it. `vcmm run`
leaves every option as it was published.
"""

from __future__ import annotations


def windows(method: str, epochs: int) -> dict[str, int]:
    """The options of a method that count epochs, for a training of so many."""

    def share(of: float) -> int:
        return max(1, round(epochs * of))

    options: dict[str, dict[str, int]] = {
        "aug": {"every": share(1 / 10)},  # 20 of 200
        "bss": {"growth": share(1 / 3)},  # 40 of 120
        "g2d": {"ends": share(1 / 2), "teacher_epochs": epochs},  # 150 of 300
        "gblend": {"super_epoch": share(1 / 2)},
        "lfm": {"length": epochs},
        "ogm": {"ends": share(1 / 2)},  # 50 of 100
        "pmr": {"entropy_epochs": share(1 / 10), "ends": epochs},
        "reconboost": {"stage_epochs": share(1 / 8), "joint_epochs": share(1 / 8)},
    }
    return options.get(method, {})
