"""Where and how runs are executed. What can change a number is part of what a run is known by."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

Precision = Literal["float32", "bfloat16"]


def cores() -> int:
    """How many of the machine's cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Execution:
    """How runs are executed.

    Args:
        device: where to train.
        threads: of torch; on a CPU they change the last digits of a sum.
        precision: of what encoders compute, by autocast; all that follows them is float32.
        channels_last: lay the weights of 2-d convolutions out so. Faster on a GPU.
        compiled: compile the encoders.
        loaders: threads that make batches ahead, where they are decoded or augmented; they change
            nothing. None is as many as torch has, two at least, and for a GPU one for every core,
            eight at most.
    """

    device: str = "cpu"
    threads: int = 1
    precision: Precision = "float32"
    channels_last: bool = False
    compiled: bool = False
    loaders: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("threads", 1), ("loaders", 0)):
            value: int | None = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be {least} or more")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision is {self.precision!r}; it must be float32 or bfloat16")

    @property
    def numerics(self) -> str:
        """All that is not torch's default arithmetic, in words: "bfloat16 compiled"."""
        named = {"channels_last": self.channels_last, "compiled": self.compiled}
        words = [name for name, used in named.items() if used]
        if self.precision != "float32":
            words.insert(0, self.precision)
        return " ".join(words)

    @property
    def workers(self) -> int:
        """The number of loaders."""
        if self.loaders is not None:
            return self.loaders
        return max(2, min(8, cores()) if self.on_gpu else self.threads)

    @property
    def on_gpu(self) -> bool:
        """Whether encoders compute elsewhere than on the CPU."""
        return self.device != "cpu"

    def identity(self) -> dict[str, Any]:
        """What enters the hash of a run. The default arithmetic goes without saying.

        A GPU's sums do not depend on the CPU's threads, so a run goes on on a machine with others.
        """
        where: dict[str, Any] = {"threads": 1 if self.on_gpu else self.threads}
        where["device"] = self.device
        return where | ({"numerics": self.numerics} if self.numerics else {})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
