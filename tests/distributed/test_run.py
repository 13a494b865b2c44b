"""`vcmm run` under torchrun: one rank trains, the others wait for its record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_ranks import pytestmark as several_processes

pytestmark = [*several_processes, pytest.mark.slow]

VCMM = ["-c", "from vcmm.bench.cli import main; main()"]
RUN = ["run", "--data", "synthetic", "--controller", "vcmm", "--epochs", "1", "--json", "--runs"]


def outcome(command: list[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def records(root: Path) -> dict[str, bytes]:
    """Of the only run there."""
    (folder,) = (path.parent for path in root.glob("*/done"))
    assert not list((root / ".work").iterdir())
    names = ("spec.json", "steps.jsonl", "evals.jsonl")
    return {f"{folder.name}/{name}": (folder / name).read_bytes() for name in names}


def test_ranks_make_one_record_and_the_same_as_a_process_alone(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    outcome([sys.executable, *VCMM, *RUN, str(alone)])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--no-python"]
    answers = outcome([*launcher, sys.executable, *VCMM, *RUN, str(together)])
    assert records(together) == records(alone)
    (run,) = {name.split("/")[0] for name in records(alone)}
    assert answers.count(run) >= 2  # every rank names it
