"""What the pages about the benchmark say: their code runs, and their tables are whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from vcmm.bench.fusions import FUSIONS
from vcmm.bench.methods import METHODS
from vcmm.bench.records import load

DOCS = Path(__file__).parents[2] / "docs"
SIMPLE = {"ensemble", "joint", "multi_loss", "unimodal"}


def code(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, execution, step, multi_loss, loop = code("bench.md")
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(run, space)
    (made,) = load(space["folder"].parent)
    assert made.spec["controller"]["strength"] == 0.5
    exec(execution, space)
    exec(multi_loss, space)
    exec(loop, space)
    assert set(space["report"]) == {"loss", "loss/fused", "loss/audio", "loss/video"}
    # The step that is shown is the one that is run.
    source = (DOCS.parent / "src/vcmm/bench/method.py").read_text()
    for line in step.splitlines()[1:]:
        assert line.strip() in source
    shown = multi_loss[multi_loss.index("    def loss") :]
    file = (DOCS.parent / "src/vcmm/bench/methods/multi_loss.py").read_text()
    assert [line.strip() for line in shown.splitlines()[1:]] == [
        line.strip() for line in file[file.index("        own") :].splitlines()
    ]


def test_every_method_has_its_card_and_its_row() -> None:
    table, *_ = (DOCS / "methods.md").read_text().split("\n## ")
    named = re.findall(r"^\| \[?`(\w+)`", table, re.M)
    assert sorted(named) == sorted(METHODS)
    cards = {path.stem for path in (DOCS / "methods").glob("*.md")}
    assert cards == METHODS.keys() - SIMPLE


@pytest.mark.parametrize("name", sorted(METHODS.keys() - SIMPLE))
def test_a_card_says_what_one_needs_to_know(name: str) -> None:
    card = (DOCS / "methods" / f"{name}.md").read_text()
    for word in ("**When", "**Cost", "**Options", "**Caveats", "**Published"):
        assert word in card, word
    from vcmm.bench.signature import parameters

    for option in parameters(METHODS[name]):
        assert re.search(rf"`{option}\b", card), option


def test_every_fusion_says_what_it_is() -> None:
    for fusion in FUSIONS.values():
        assert (fusion.__doc__ or "").strip()
