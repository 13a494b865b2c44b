"""Programs that torchrun starts: DistributedDataParallel and fully_shard, on 2 and on 4 ranks.

They train for 200 steps and are compared with one process that has all batches.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp

from . import program, worker
from .test_ranks import MIXED, agreed, only, planned, same_numbers
from .test_ranks import pytestmark as several_processes
from .worker import Piece, Plan, Shape

pytestmark = [*several_processes, pytest.mark.slow]

HAS_FSDP2 = hasattr(torch.distributed.fsdp, "fully_shard")
fsdp2 = pytest.mark.skipif(not HAS_FSDP2, reason="this torch has no public fully_shard")

WORLDS = (2, 4)
STEPS = 200
SMALL = {"audio": Shape(3, 4), "video": Shape(3, 40)}


def even(world: int) -> Plan:
    return planned([(8,) * world], world, STEPS)


def uneven(world: int) -> Plan:
    """Every fifth batch is the last of an epoch, and some ranks have less of it."""
    return planned([*[(8,) * world] * 4, (8, 3, 1, 5)], world, STEPS)


def accumulated(world: int) -> Plan:
    return [[[Piece(4), Piece(4)]] * world for _ in range(STEPS)]


def without(plan: Plan) -> Plan:
    """Rank 1 has never any video."""
    for step in plan:
        step[1] = only(("audio",), [step[1]])[0]
    return plan


def all_at_once(world: int) -> Plan:
    plan = planned([(8,) * world, (8, 5, 4, 7)], world, STEPS, micro=2)
    for step in plan[::3]:
        step[1] = only(("audio",), [step[1]])[0]
    for step in plan[1::4]:
        step[0] = step[0][:1]
    return plan


PLANS = {
    "even": even,
    "uneven last batches": uneven,
    "accumulation": accumulated,
    "a rank without video": lambda world: without(even(world)),
    "all at once": all_at_once,
}
ABSENCES = ("a rank without video", "all at once")


def replicated(case: str, world: int) -> dict[str, Any]:
    return {"plan": PLANS[case](world), "shapes": MIXED, "dtype": torch.float64, "weigh": "ranks"}


# What is trained with fully_shard, by the number of ranks
SHARDED: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "AdamW": {},
        "AdamW-fused": {"optimizer": "AdamW-fused"},
        "AdamW-loop": {"optimizer": "AdamW-loop"},
        "heads": {"capture": "heads"},
        "accumulation": {"micro": 2},
        "accumulation of reduced gradients": {"micro": 2, "sync": True},
        "overflows": {"overflows": (0, 5, 6)},
    },
    4: {
        "SGD": {"optimizer": "SGD"},
        "slices": {"capture": "slices"},
        "overflows, fused": {"overflows": (0, 5, 6), "optimizer": "AdamW-fused"},
    },
}


def shard_task(case: str, world: int) -> dict[str, Any]:
    arguments = dict(SHARDED[world][case])
    # 12 samples for all, so that different numbers of ranks can train on the same ones.
    plan = planned([(12 // world,) * world], world, 30, micro=arguments.pop("micro", 1))
    return {"plan": plan, "shapes": SMALL, **arguments}


RESUMED = ("AdamW", "SGD")
SAVED = 10  # steps before the checkpoint


def resumable(optimizer: str, world: int) -> dict[str, Any]:
    """Two micro-batches on each of 2 ranks, which are one on each of 4."""
    each = [Piece(3)] * (4 // world)
    plan = [[each] * world for _ in range(30)]
    return {"plan": plan, "shapes": SMALL, "optimizer": optimizer, "split": world // 2}


def tasks_of(world: int, folder: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, function, arguments) of all that so many ranks have to do."""
    tasks: list[tuple[str, str, dict[str, Any]]] = []
    for case in PLANS:
        absences = {"find_unused_parameters": case in ABSENCES}
        tasks.append((f"ddp {case}", "train", {**replicated(case, world), **absences}))
    if not HAS_FSDP2:
        return tasks
    tasks += [(f"shard {case}", "shard", shard_task(case, world)) for case in SHARDED[world]]
    verb = {2: "save", 4: "load"}[world]
    for optimizer in RESUMED:
        checkpoint = {verb: (SAVED, str(folder / optimizer))}
        arguments = {**resumable(optimizer, world), **checkpoint}
        tasks.append((f"{verb} {optimizer}", "shard", arguments))
    return tasks


class Launched:
    """What the ranks answered. One start for each number of them serves all tests.

    It serves all of pytest's workers as well, so what was answered lies in a folder of theirs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, world: int, task: str) -> list[dict[str, Any]]:
        self.start(2)  # which saves what 4 go on with
        self.start(world)
        answers = [(self.folder / str(world) / f"{rank}.pickle") for rank in range(world)]
        if not all(answer.exists() for answer in answers):
            pytest.fail((self.folder / str(world) / "output").read_text("utf-8"))
        return [pickle.loads(answer.read_bytes())[task] for answer in answers]

    def start(self, world: int) -> None:
        folder = self.folder / str(world)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return
            folder.mkdir()
            (folder / "tasks").write_bytes(pickle.dumps(tasks_of(world, self.folder)))
            (folder / "output").write_text(launch(world, folder), "utf-8")


def launch(world: int, folder: Path) -> str:
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    run += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*run, "-m", "distributed.program", str(folder / "tasks"), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / "torchrun"
    folder.mkdir(exist_ok=True)
    return Launched(folder)


def close(ours: list[list[float]], theirs: list[list[float]]) -> None:
    """1e-10 of values that are about 1; what is near 0 is a difference of such."""
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(yours, rel=1e-10, abs=1e-10)


def same_ages(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Steps, log P and log P at the base, of every cohort of every group."""
    for group, other in zip(ours["ages"], theirs["ages"], strict=True):
        close(group, other)


# DistributedDataParallel


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", PLANS)
def test_replicas_are_bitwise_equal_after_200_steps_and_equal_to_one_process(
    launched: Launched, world: int, case: str
) -> None:
    """DDP weighs ranks alike however many samples they have, and so does the one process."""
    together = agreed(launched(world, f"ddp {case}"))
    assert len(together["history"]) == STEPS
    alone = worker.train(**replicated(case, world))
    same_numbers(together, alone, torch.float64)
    close(together["values"], alone["values"])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", ["even", "accumulation"])
def test_equal_ranks_are_one_process_that_knows_of_no_ranks(
    launched: Launched, world: int, case: str
) -> None:
    together = agreed(launched(world, f"ddp {case}"))
    samples = {**replicated(case, world), "weigh": "samples"}
    close(together["values"], worker.train(**samples)["values"])


def test_weights_of_uneven_ranks_are_no_detail() -> None:
    """What would be compared if the reference weighed samples alike."""
    arguments = replicated("uneven last batches", 2)
    ranks, samples = (worker.train(**{**arguments, "weigh": w}) for w in ("ranks", "samples"))
    with pytest.raises(AssertionError):
        close(ranks["values"], samples["values"])


# fully_shard


@fsdp2
@pytest.mark.parametrize(
    ("world", "case"), [(world, case) for world, cases in SHARDED.items() for case in cases]
)
def test_shards_are_trained_as_the_whole_in_one_process(
    launched: Launched, world: int, case: str
) -> None:
    together = same_everywhere(launched(world, f"shard {case}"))
    alone = program.shard(**shard_task(case, world))
    same_numbers(together, alone, torch.float64)
    close(together["values"], alone["values"])
    same_ages(together, alone)
    assert [g["lr"] for g in together["groups"]] == [g["lr"] for g in alone["groups"]]
    assert together["kinds"] == ["DTensor"]
    assert alone["kinds"] == ["Tensor"]
    assert max(len(cohorts) for cohorts in together["ages"]) > 1
    skipped = len(SHARDED[world][case].get("overflows", ()))
    assert together["history"][-1]["discarded"] == skipped


def same_everywhere(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """repr tells every float from every other, and nan from nothing."""
    assert len({repr(answer) for answer in answers}) == 1
    return answers[0]


# From 2 ranks to 4


@fsdp2
@pytest.mark.parametrize("optimizer", RESUMED)
def test_a_checkpoint_of_2_ranks_goes_on_on_4(launched: Launched, optimizer: str) -> None:
    """The controller is a Stateful of its own. Both are given the same samples."""
    whole = same_everywhere(launched(2, f"save {optimizer}"))
    rest = same_everywhere(launched(4, f"load {optimizer}"))
    assert len(rest["history"]) == len(whole["history"]) - SAVED
    same_numbers(rest, {**whole, "history": whole["history"][SAVED:]}, torch.float64)
    close(rest["values"], whole["values"])
    same_ages(rest, whole)
    assert len({row["audio/beta"] for row in rest["history"]}) > 10


@fsdp2
@pytest.mark.parametrize("optimizer", RESUMED)
def test_a_checkpoint_of_2_ranks_goes_on_in_one_process(launched: Launched, optimizer: str) -> None:
    whole = same_everywhere(launched(2, f"save {optimizer}"))
    folder = str(launched.folder / optimizer)
    rest = program.shard(**resumable(optimizer, 2), load=(SAVED, folder))
    same_numbers(rest, {**whole, "history": whole["history"][SAVED:]}, torch.float64)
    close(rest["values"], whole["values"])
    same_ages(rest, whole)
