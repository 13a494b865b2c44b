"""Arrays larger than memory: read some rows at a time, and some rows of them without a copy.

Whoever looks at every value (statistics, the content hash, the check for NaN) goes through
`chunks`, so that nothing is ever loaded whole. `Rows` stands for some rows of a memory-mapped
array: the samples of train that are left when a validation split was carved from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..types import Array

CHUNK = 1 << 24  # bytes


def chunks(array: Array) -> Iterator[tuple[int, Array]]:
    """(first row, rows) from the first to the last; together they are the array."""
    row = max(1, array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64)))
    step = max(1, CHUNK // row)
    for start in range(0, len(array), step):
        yield start, array[start : start + step]


def rows_of(array: Array, index: npt.NDArray[np.int64]) -> Array:
    """These rows: a copy, or a promise of one where the array is memory-mapped."""
    if not isinstance(array, np.memmap):
        return array[index]
    # Not an ndarray, but one in all that is done with the inputs of a split: asked for its length,
    # shape and dtype, and for rows.
    return cast("Array", Rows(array, index))


class Rows:
    """Some rows of an array, copied only when they are asked for."""

    def __init__(self, source: Array, index: npt.NDArray[np.int64]) -> None:
        self.source = source
        self.index = index

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array that these rows would be."""
        return (len(self.index), *self.source.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return self.source.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its entries."""
        return self.source.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Any) -> Array:
        return self.source[self.index[key]]

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("rows of a memory-mapped array cannot become an array without a copy")
        return np.asarray(self.source[self.index], dtype=dtype)
