"""SIGKILL at any moment costs time and nothing else: the records come out the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .toys import records

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("killer.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What has become of all the sweeps that were killed."""
    root = tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(PROGRAM), str(root)]
    made = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(made.stdout)


def finished(root: str | Path) -> dict[str, dict[str, bytes]]:
    """All records below a root, once nothing else is left there."""
    root = Path(root)
    assert os.listdir(root / ".work") == [], f"{root.name} has leftovers"
    runs = [path for path in root.iterdir() if path.name != ".work" and path.is_dir()]
    for run in runs:
        files = {"cost.jsonl", "done", "env.json", "evals.jsonl", "spec.json", "steps.jsonl"}
        assert set(os.listdir(run)) == files, f"{run} holds other files"
    return {run.name: records(run) for run in runs}


def test_thirty_random_kills_change_nothing(report: dict[str, Any]) -> None:
    whole = finished(report["whole"])
    assert len(whole) == 4
    found = report["random"]
    assert found["kills"] == 30
    assert found["cut"] >= 10, "hardly any was killed in the middle, so little was tested"
    for root in found["roots"]:
        assert finished(root) == whole, root


def test_kills_at_the_worst_moments_change_nothing(report: dict[str, Any]) -> None:
    whole = finished(report["whole"])
    roots = report["moments"]["roots"]
    assert len(roots) >= 40
    for root in roots:
        made = finished(root)
        assert len(made) == 1
        for name, found in made.items():
            assert found == whole[name], root
