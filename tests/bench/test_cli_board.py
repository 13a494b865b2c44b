"""What is shown while runs are trained: a state that events change, and its words."""

from __future__ import annotations

from typing import Any

import pytest

from vcmm.bench.cli.board import Board, Failure, clock, labels
from vcmm.bench.cli.live import betas
from vcmm.bench.cli.plain import PlainView
from vcmm.bench.events import Event
from vcmm.bench.spec import Choice, Spec

ONE, TWO = Spec(), Spec(controller=Choice("vcmm"), seed=1)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def event(kind: Any, spec: Spec = ONE, **more: Any) -> Event:
    return Event(kind, "ab" * 8, spec.to_json(), epochs=spec.epochs, **more)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def board(time: Time) -> Board:
    return Board([ONE, TWO, ONE], clock=time)


def test_equal_specs_are_one_run(board: Board) -> None:
    assert board.total == 2


def test_a_run_from_its_start_to_its_end(board: Board, time: Time) -> None:
    assert board.left is None
    row = board.update(event("started", steps=100))
    time.now += 10
    board.update(event("step", step=20, values={"loss": 0.5, "a/beta": 0.9, "a/R": 1.0}))
    board.update(event("epoch", epoch=2, step=20, values={"accuracy": 0.8, "loss": 0.4}))
    assert (row.loss, row.betas, row.score, row.epoch) == (0.5, {"a": 0.9}, ("accuracy", 0.8), 3)
    assert row.left(time.now) == pytest.approx(40)  # 80 steps at 2 a second
    assert board.share == pytest.approx(0.1)
    assert board.left == pytest.approx(90)  # 1.8 runs at 0.02 a second
    board.update(event("done", step=100, steps=100))
    assert (board.over, board.running) == (1, {})
    board.update(event("failed", TWO, error="Traceback\n  deep\nValueError: too hot"))
    assert board.over == 2
    assert board.failures == [
        Failure("joint + vcmm, seed 1", "ab" * 8, "Traceback\n  deep\nValueError: too hot")
    ]
    assert board.share == 1


def test_what_is_there_already_took_no_time(board: Board, time: Time) -> None:
    board.update(event("cached"))
    time.now += 10
    assert (board.over, board.cached, board.left) == (1, 1, None)


def test_what_was_trained_before_counts_as_done_and_not_as_fast(board: Board, time: Time) -> None:
    row = board.update(event("started", step=90, steps=100, epoch=9))
    time.now += 5
    board.update(event("step", step=95))
    assert board.share == pytest.approx(0.475)
    assert row.left(time.now) == pytest.approx(5)
    assert board.left == pytest.approx(5 / 0.05 * 1.05)


def test_a_run_that_another_process_runs_is_neither_done_nor_failed(board: Board) -> None:
    board.update(event("busy"))
    assert (board.over, len(board.waiting)) == (0, 1)
    board.update(event("cached"))
    assert (board.over, len(board.waiting)) == (1, 0)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("Traceback (most recent call last):\n  x\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("The process died\nand more\n", "The process died"),
        ("", "no reason was given"),
    ],
)
def test_a_failure_in_one_line(error: str, reason: str) -> None:
    assert Failure("a", "b", error).reason == reason


def test_labels_say_what_tells_specs_apart_and_no_more() -> None:
    specs = [
        Spec(),
        Spec(method=Choice("unimodal", modality="gyroscope")),
        Spec(controller=Choice("vcmm", strength=0.5)),
        Spec(controller=Choice("vcmm", strength=1.0)),
    ]
    assert list(labels([s.to_json() for s in specs]).values()) == [
        "joint, seed 0",
        "unimodal: gyroscope, seed 0",
        "joint + vcmm, strength=0.5, seed 0",
        "joint + vcmm, strength=1.0, seed 0",
    ]
    several = [Spec(epochs=1), Spec(epochs=2, optimizer=Choice("sgd"))]
    assert list(labels([s.to_json() for s in several]).values()) == [
        "joint, epochs=1, optimizer=adam, seed 0",
        "joint, epochs=2, optimizer=sgd, seed 0",
    ]
    fusions = [Spec(), Spec(method=Choice("ogm")), Spec(method=Choice("ogm"), seed=1)]
    assert list(labels([s.to_json() for s in fusions]).values()) == [
        "joint, seed 0",
        "ogm by concat, seed 0",
        "ogm by concat, seed 1",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, "-:--"), (5.4, "0:05"), (65, "1:05"), (7384, "2:03:04")]
)
def test_a_time_in_words(seconds: float | None, words: str) -> None:
    assert clock(seconds) == words


def test_momenta_are_named_as_shortly_as_they_can_be() -> None:
    assert betas({"gyroscope": 0.88, "accelerometer": 0.912}) == "acc .912  gyr .880"
    assert betas({"audio_left": 0.9, "audio_right": 1.0}) == "audio_l .900  audio_r 1.000"
    assert betas({}) == ""


def test_a_run_that_diverged_is_not_passed_over(
    board: Board, capsys: pytest.CaptureFixture[str]
) -> None:
    board.update(event("started", steps=100))
    board.update(event("epoch", step=100, values={"accuracy": 0.25}))  # a loss of nan is left out
    one = event("done")
    PlainView(board).show(one, board.update(one))
    said = capsys.readouterr().out
    assert said.endswith("accuracy 25.0 % on valid; it diverged: the loss is no number\n")


def test_plain_lines(board: Board, time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(board)

    def tell(one: Event) -> str:
        view.show(one, board.update(one))
        return capsys.readouterr().out

    assert tell(event("started", steps=100)) == ""
    time.now += 4
    assert tell(event("step", step=10, values={"loss": 0.25})) == ""
    time.now += 20
    beat = tell(event("step", step=20, values={"loss": 0.25}))
    assert beat == (
        "  0 of 2 runs over, about 3:36 left; joint, seed 0 in epoch 1/15, loss 0.250\n"
    )
    tell(event("epoch", epoch=14, step=100, values={"map": 0.5, "loss": 0.3}))
    assert tell(event("done")) == "[1/2] joint, seed 0: done in 24.0 s, mAP 50.0 % on valid\n"
    going_on = tell(event("started", TWO, step=7, steps=100))
    assert going_on == "joint + vcmm, seed 1: continues at step 7 of 100\n"
    assert tell(event("failed", TWO, error="Traceback\nOSError: full")) == (
        "[2/2] joint + vcmm, seed 1: failed: OSError: full\n"
    )
