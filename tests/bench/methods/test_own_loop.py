"""Methods outside of the benchmark's loop: what the page says of it, for each of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.methods import kit
from vcmm.bench.method import Method
from vcmm.bench.methods import METHODS

PAGE = (Path(__file__).parents[3] / "docs" / "methods.md").read_text()
TOLD = {name for name, made in METHODS.items() if made.begin_epoch is not Method.begin_epoch}


def code() -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    return found


def test_the_page_names_the_methods_that_want_to_be_told_of_epochs() -> None:
    table = PAGE[PAGE.index("| method | is then |") :]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == TOLD


@pytest.mark.parametrize("name", sorted(TOLD))
def test_the_loop_of_the_page_runs_with_each_of_them(name: str) -> None:
    made, text = METHODS[name], code()
    torch.manual_seed(0)
    text = text.replace("methods.pmr import PMR", f"methods.{name} import {made.__name__}")
    text = text.replace("PMR(", f"{made.__name__}(")
    if made.fusion not in ("mean", "concat"):
        text = text.replace("fusions.linear import Concat", "fusions import FUSIONS")
        text = text.replace("Concat(", f"FUSIONS[{made.fusion!r}](")
    space: dict[str, Any] = {}
    exec(text, space)
    assert isinstance(space["method"], made)
    assert space["report"]["loss"].isfinite()
    assert space["method"].counts["updates"] >= 3 * 3


@pytest.mark.parametrize("name", sorted(TOLD))
def test_without_being_told_a_method_is_what_the_page_says(name: str) -> None:
    model, optimizer = kit.small(2, METHODS[name].fusion)
    method = METHODS[name](model, optimizer)
    joint = METHODS["joint"](*kit.small(2, METHODS[name].fusion))
    batches = [kit.some(model, 8, seed=seed) for seed in range(6)]
    reports = [method.step(batch) for batch in batches]
    for batch in batches:
        joint.step(batch)
    same = all(
        torch.equal(*pair)
        for pair in zip(model.parameters(), joint.model.parameters(), strict=True)
    )
    assert same == (name in ("g2d", "pmr"))
    assert all(value.isfinite() for report in reports for value in report.values())
