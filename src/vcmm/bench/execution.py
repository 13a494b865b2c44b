"""Where and how runs are executed. What can change a number is part of what a run is known by."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Execution:
    """How runs are executed.

    Args:
        device: where to train.
        threads: of torch; they change the last digits of a sum.
        precision: of what encoders compute, by autocast; all that follows them is float32.
        channels_last: lay the weights of 2-d convolutions out so. Faster on a GPU.
        compiled: compile the encoders.
        loaders: threads that make batches ahead, where they are decoded or augmented; they change
            nothing. None is one for each of torch's threads, and two at least.
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
        return max(2, self.threads) if self.loaders is None else self.loaders

    def identity(self) -> dict[str, Any]:
        """What enters the hash of a run. The default arithmetic goes without saying."""
        where: dict[str, Any] = {"threads": self.threads, "device": self.device}
        return where | ({"numerics": self.numerics} if self.numerics else {})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
