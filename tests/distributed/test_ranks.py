"""Real processes over gloo, compared with one process that has their batches put end to end."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vcmm.probe import cheaper_form

from . import worker
from .worker import Piece, Plan, Shape, Task

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="this torch is built without gloo",
    ),
]

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}

# Of every shape, what the ranks' sizes below (from 15 rows, or up to 9) make cheaper.
DIRECT = {"audio": Shape(3, 4), "video": Shape(3, 7)}
GRAM = {"audio": Shape(40, 30), "video": Shape(40, 50)}
MIXED = {"audio": Shape(12, 4), "video": Shape(12, 300)}
SHAPES = {"direct": DIRECT, "gram": GRAM, "mixed": MIXED}
FORMS = {
    "direct": {"audio": "direct", "video": "direct"},
    "gram": {"audio": "gram", "video": "gram"},
    "mixed": {"audio": "direct", "video": "gram"},
}
# Rank sizes per step, over and over; odd ones, so that a rank may begin with half B.
EVEN = {"direct": [(16, 16, 16)], "gram": [(6, 6, 6)], "mixed": [(18, 18, 18)]}
UNEVEN = {
    "direct": [(15, 20, 17), (21, 16, 18), (20, 15, 15)],
    "gram": [(5, 8, 3), (9, 4, 7), (2, 5, 5)],
    "mixed": [(17, 18, 19), (19, 17, 18), (18, 17, 17)],
}


class Ranks:
    """Processes that wait for work. They start with the first, and anew after a failure."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._pipes: list[Any] = []
        self._processes: list[Any] = []

    def __call__(self, function: Task, **arguments: Any) -> list[Any]:
        """What `function` returns on each rank."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))
        answers: list[tuple[bool, Any]] = []
        for pipe in self._pipes:
            answered = pipe.poll(60)
            answers.append(pipe.recv() if answered else (False, "no answer"))
        if not all(fine for fine, _ in answers):
            self.stop()  # what is left of their collectives would meet those of the next test
            pytest.fail("\n".join(str(text) for fine, text in answers if not fine))
        return [answer for _, answer in answers]

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        rendezvous = Path(tempfile.mkdtemp()) / "rendezvous"
        for rank in range(self.world):
            pipe, inbox = context.Pipe()
            arguments = (rank, self.world, str(rendezvous), inbox)
            process = context.Process(target=worker.serve, args=arguments, daemon=True)
            process.start()
            inbox.close()
            self._pipes.append(pipe)
            self._processes.append(process)

    def stop(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:  # it has died
                continue
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    ranks = Ranks(request.param)
    yield ranks
    ranks.stop()


def planned(sizes: list[tuple[int, ...]], world: int, steps: int = 7, micro: int = 1) -> Plan:
    """One batch of that size on each rank, or that size split into uneven micro-batches."""
    plan: Plan = []
    for step in range(steps):
        share = sizes[step % len(sizes)][:world]
        cuts = [[n] if micro == 1 else [(n + 2) // 3, n - (n + 2) // 3] for n in share]
        plan.append([[Piece(n) for n in cut] for cut in cuts])
    return plan


def only(modalities: tuple[str, ...], step: list[list[Piece]]) -> list[list[Piece]]:
    return [[Piece(piece.n, modalities) for piece in share] for share in step]


def agreed(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The ranks' answer, which must be one: bitwise, metrics and parameters."""
    first, *others = answers
    assert len(first["history"]) > 0
    for other in others:
        assert other["parameters"] == first["parameters"]
        # repr tells every float from every other, and nan from nothing.
        assert repr(other["history"]) == repr(first["history"])
        assert other["forms"] == first["forms"]
    return first


def same_numbers(got: dict[str, Any], want: dict[str, Any], dtype: torch.dtype) -> None:
    """Equal within the tolerance, in every step.

    A drift is what is left of numbers as large as the noise, so a small one may be off by their
    rounding as well.
    """
    relative, rounding = TOLERANCE[dtype], torch.finfo(dtype).eps
    assert len(got["history"]) == len(want["history"])
    for ours, theirs in zip(got["history"], want["history"], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            modality, _, quantity = name.partition("/")
            slack = {
                "Q": theirs.get(f"{modality}/R", 0) * rounding,
                "rho": rounding,
                "gain": 8 * rounding,
            }
            near = pytest.approx(value, rel=relative, abs=slack.get(quantity, 0))
            assert ours[name] == near, name
    last = got["history"][-1]
    # Otherwise nothing was compared.
    assert last["audio/beta"] != last["video/beta"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("sizes", ["even", "uneven"])
@pytest.mark.parametrize("form", ["direct", "gram", "mixed"])
def test_fact_09_ranks_measure_as_one_process_with_the_concatenated_batch(
    ranks: Ranks, form: str, sizes: str, dtype: torch.dtype
) -> None:
    table = {"even": EVEN, "uneven": UNEVEN}[sizes][form]
    plan = planned(table, ranks.world)
    arguments = {"plan": plan, "shapes": SHAPES[form], "dtype": dtype}
    together = agreed(ranks(worker.watch, **arguments))
    assert together["forms"] == FORMS[form]
    same_numbers(together, worker.watch(**arguments), dtype)


@pytest.mark.parametrize("form", ["direct", "gram", "mixed"])
def test_fact_09_a_modality_may_be_absent_on_one_rank_or_on_all(ranks: Ranks, form: str) -> None:
    plan = planned(UNEVEN[form], ranks.world, steps=9)
    plan[2] = [only(("audio",), plan[2])[0], *plan[2][1:]]  # no video on rank 0
    plan[4] = [*plan[4][:-1], only(("video",), plan[4])[-1]]  # no audio on the last rank
    plan[5] = only(("audio",), plan[5])  # no video at all
    plan[6] = [[], *plan[6][1:]]  # rank 0 has nothing
    plan[7] = [[] for _ in plan[7]]  # nobody has anything
    arguments = {"plan": plan, "shapes": SHAPES[form], "dtype": torch.float64}
    together = agreed(ranks(worker.watch, **arguments))
    same_numbers(together, worker.watch(**arguments), torch.float64)
    # Ranks count together, and a step in which nobody observed anything counts for nobody.
    assert together["history"][-1]["video/unmeasured"] == 1
    assert together["history"][-1]["audio/unmeasured"] == 0


@pytest.mark.parametrize("form", ["direct", "gram", "mixed"])
def test_fact_09_a_modality_may_be_absent_on_a_rank_from_the_start(ranks: Ranks, form: str) -> None:
    plan = planned(UNEVEN[form], ranks.world)
    plan[0] = [*plan[0][:-1], []]
    plan[1] = [only(("audio",), plan[1])[0], *plan[1][1:]]
    plan[-1] = [[Piece(3)], [Piece(2)], [Piece(1)]][: ranks.world]  # the last batch of an epoch
    arguments = {"plan": plan, "shapes": SHAPES[form], "dtype": torch.float64}
    together = agreed(ranks(worker.watch, **arguments))
    assert together["forms"] == FORMS[form]
    same_numbers(together, worker.watch(**arguments), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("form", ["direct", "gram", "mixed"])
def test_fact_09_micro_batches_of_ranks_count_rank_by_rank(
    ranks: Ranks, form: str, dtype: torch.dtype
) -> None:
    plan = planned(UNEVEN[form], ranks.world, micro=2)
    arguments = {"plan": plan, "shapes": SHAPES[form], "dtype": dtype}
    together = agreed(ranks(worker.watch, **arguments))
    same_numbers(together, worker.watch(**arguments), dtype)


def test_fact_09_the_form_is_agreed_on_although_ranks_see_different_sizes_at_first(
    ranks: Ranks,
) -> None:
    shape = DIRECT["audio"]
    sizes = [(3, 25, 4), (21, 3, 3), (2, 2, 3)]
    # Alone, the ranks would choose differently in the first step, and so meet in no collective.
    assert {cheaper_form(n, shape.classes, shape.width) for n in sizes[0][: ranks.world]} == {
        "direct",
        "gram",
    }
    plan = planned(sizes, ranks.world, steps=6)
    arguments = {"plan": plan, "shapes": DIRECT, "dtype": torch.float64}
    together = agreed(ranks(worker.watch, **arguments))
    assert together["forms"] == FORMS["direct"]
    same_numbers(together, worker.watch(**arguments), torch.float64)


def test_fact_09_ranks_leave_the_gram_form_together_when_batches_grow(ranks: Ranks) -> None:
    plan = planned([(2, 3, 2), (30, 41, 33)], ranks.world, steps=5)
    assert cheaper_form(30, DIRECT["audio"].classes, DIRECT["audio"].width) == "direct"
    arguments = {"plan": plan, "shapes": DIRECT, "dtype": torch.float64}
    small = {**arguments, "plan": plan[:1]}
    assert agreed(ranks(worker.watch, **small))["forms"] == FORMS["gram"]
    together = agreed(ranks(worker.watch, **arguments))
    assert together["forms"] == FORMS["direct"]
    same_numbers(together, worker.watch(**arguments), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("form", ["direct", "gram"])
def test_fact_09_tokens_with_masks_and_ranks_that_pad_to_different_lengths(
    ranks: Ranks, form: str, dtype: torch.dtype
) -> None:
    shapes = {m: s._replace(tokens=(4, 7, 5)[: ranks.world]) for m, s in SHAPES[form].items()}
    sizes = {"direct": [(7, 4, 5), (5, 9, 3)], "gram": [(3, 1, 2), (1, 2, 1)]}[form]
    plan = planned(sizes, ranks.world, steps=6)
    arguments = {"plan": plan, "shapes": shapes, "dtype": dtype}
    together = agreed(ranks(worker.watch, **arguments))
    assert together["forms"] == FORMS[form]
    same_numbers(together, worker.watch(**arguments), dtype)


@pytest.mark.parametrize("form", ["direct", "gram", "mixed"])
@pytest.mark.parametrize("ranks", [3], indirect=True)
def test_fact_09_a_process_group_is_a_batch_of_its_own(ranks: Ranks, form: str) -> None:
    plan = planned(UNEVEN[form], 3)
    for split in ([[0], [1, 2]], [[0, 2], [1]]):
        arguments = {"plan": plan, "shapes": SHAPES[form], "dtype": torch.float64}
        answers = ranks(worker.watch, split=split, **arguments)
        betas = set()
        for part in split:
            together = agreed([answers[rank] for rank in part])
            theirs = [[s if r in part else [] for r, s in enumerate(step)] for step in plan]
            alone = worker.watch(**{**arguments, "plan": theirs})
            same_numbers(together, alone, torch.float64)
            betas.add(together["history"][-1]["audio/beta"])
        assert len(betas) == 2


def test_fact_09_without_the_reduction_the_ranks_drift_apart(ranks: Ranks) -> None:
    # What the other tests would see if the pool summed over nothing.
    plan = planned(EVEN["direct"], ranks.world, steps=20)
    split = [[rank] for rank in range(ranks.world)]
    answers = ranks(worker.watch, plan=plan, shapes=DIRECT, split=split)
    betas = [answer["history"][-1]["audio/beta"] for answer in answers]
    assert len(set(betas)) == ranks.world
    assert max(betas) - min(betas) > 1e-3
    assert len({repr(answer["parameters"]) for answer in answers}) == ranks.world


@pytest.mark.parametrize("ranks", [3], indirect=True)
@pytest.mark.parametrize("split", [[[0, 1, 2]], [[0], [1, 2]]], ids=str)
def test_fact_09_ranks_that_round_differently_take_the_numbers_of_the_first(
    ranks: Ranks, split: list[list[int]]
) -> None:
    # Unlike machines may; and betas that differ in the last digit would part the replicas.
    answers = ranks(worker.rounded_unlike, split=split)
    for part in split:
        want = [(i + 1) * (1 + part[0] * 1e-15) for i in range(4)]
        for rank in part:
            assert answers[rank] == dict.fromkeys(worker.MODALITIES, want)


# In training

AVERAGES = pytest.mark.parametrize(
    ("average", "form"),
    [("ddp", "direct"), ("ddp", "gram"), ("ddp", "mixed"), ("hand", "mixed")],
)


def with_absences(plan: Plan) -> Plan:
    """Absent modalities here and there; every rank has something in every step, as DDP needs."""
    plan = list(plan)
    for step in range(3, len(plan), 7):
        plan[step] = [only(("audio",), plan[step])[0], *plan[step][1:]]
    for step in range(5, len(plan), 7):
        plan[step] = only(("video",), plan[step])
    return plan


@AVERAGES
def test_fact_09_replicas_stay_bitwise_equal_in_training(
    ranks: Ranks, average: str, form: str
) -> None:
    plan = with_absences(planned(UNEVEN[form], ranks.world, steps=52))
    options = {"find_unused_parameters": True} if average == "ddp" else {}
    together = agreed(
        ranks(worker.train, plan=plan, shapes=SHAPES[form], average=average, **options)
    )
    beta = together["history"][-1]["audio/beta"]
    assert abs(beta - 0.9) > 1e-4  # it has moved, so that there is something to agree on


@AVERAGES
def test_fact_09_training_on_ranks_is_training_in_one_process(
    ranks: Ranks, average: str, form: str
) -> None:
    plan = with_absences(planned(UNEVEN[form], ranks.world, steps=12))
    arguments = {"plan": plan, "shapes": SHAPES[form], "dtype": torch.float64}
    options = {"find_unused_parameters": True} if average == "ddp" else {}
    together = agreed(ranks(worker.train, average=average, **arguments, **options))
    alone = worker.train(**arguments)
    same_numbers(together, alone, torch.float64)
    for ours, theirs in zip(together["values"], alone["values"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("views", [False, True], ids=["copies", "bucket-views"])
@pytest.mark.parametrize("form", ["direct", "gram"])
def test_fact_09_accumulation_with_no_sync_is_one_batch(
    ranks: Ranks, form: str, views: bool
) -> None:
    # With bucket views DDP puts another tensor in the place of the gradient that no_sync left:
    # this must not be taken for a step that was skipped.
    plan = planned(UNEVEN[form], ranks.world, micro=2)
    arguments = {"plan": plan, "shapes": SHAPES[form], "dtype": torch.float64}
    together = agreed(ranks(worker.train, gradient_as_bucket_view=views, **arguments))
    same_numbers(together, worker.train(**arguments), torch.float64)


def test_probe_heads_of_all_ranks_learn_as_in_one_process(ranks: Ranks) -> None:
    plan = planned(UNEVEN["direct"], ranks.world, steps=12)
    plan[4] = only(("video",), plan[4])
    plan[8] = [[], *plan[8][1:]]
    first, *others = ranks(worker.probe_heads, plan=plan)
    for other in others:
        assert other == first
    alone = worker.probe_heads(plan=plan)
    for ours, theirs in zip(first, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert any(abs(value) > 0.01 for value in first[0])
