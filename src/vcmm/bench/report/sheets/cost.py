"""What training costs: memory and time of every method, absolute and over joint training."""

from __future__ import annotations

from statistics import median

from ...analysis import Row, table
from ...arms import Arm, Setting
from ...roles import published
from .. import published as paper
from ..sheet import Cell, Column, Sheet
from .cells import beside, times

MIB = 2**20


def cost(setting: Setting, selection: str) -> Sheet | None:
    """Peak memory of a step, time of a run, and passes, of all arms that train all modalities."""
    rows = [
        row
        for row in table(setting, selection).rows
        if not row.arm.alone and published(row.arm.spec)
    ]
    reference = setting.reference
    if reference is None or len(rows) < 2:
        return None
    heads = ("memory (MiB)", "× joint", "time (s)", "× joint", "forwards", "backwards")
    return Sheet(
        name="cost",
        title=f"Cost of training on {setting.title}",
        caption=(
            f"Cost of training on {setting.title}. Memory is what model and optimizer hold and the "
            "peak of a training step; time is that of training alone, without evaluation, the "
            "median over runs and their range. Forwards and backwards are those of each sample "
            "that a step sees."
        ),
        columns=(Column("method", number=False), *map(Column, heads)),
        rows=tuple(_cells(row, reference) for row in rows),
        notes=_notes(setting),
    )


def _cells(row: Row, reference: Arm) -> tuple[Cell, ...]:
    spent, seconds = row.expense, _seconds(row.arm)
    memory = Cell()
    if spent.peak_bytes is not None:
        peak = spent.peak_bytes.mean
        memory = Cell(f"{peak / MIB:.1f}", values={"mean": peak / MIB})
    ratio = beside(times(spent.peak_ratio), paper.memory(row.arm.spec), form="{:.2f}×")
    return (
        Cell(f"{row.arm.label}{' (reference)' * (row.arm is reference)}"),
        memory,
        ratio,
        _time(seconds),
        times(median(seconds) / median(_seconds(reference))),
        _number(spent.forwards),
        _number(spent.backwards),
    )


def _seconds(arm: Arm) -> list[float]:
    return [run.seconds for run in arm.runs.values()]


def _time(seconds: list[float]) -> Cell:
    """The median, which one disturbed run does not move, and the range, which it does."""
    middle, low, high = median(seconds), min(seconds), max(seconds)
    values = {"median": middle, "low": low, "high": high}
    return Cell(f"{middle:.3g}", f"[{low:.3g}, {high:.3g}]" * (len(seconds) > 1), values=values)


def _number(value: float) -> Cell:
    return Cell(f"{value:.3g}", values={"mean": value})


def _notes(setting: Setting) -> tuple[str, ...]:
    hosts = {str(run.env.get("cpu", "unknown")) for run in setting.runs}
    devices = {run.device for run in setting.runs}
    threads = {run.threads for run in setting.runs}
    where = f"Measured on {', '.join(sorted(devices))}"
    where += f", {', '.join(map(str, sorted(threads)))} thread(s) for each run."
    said = [
        f"{where} Times compare only where the load was the same; forwards and backwards do not "
        "depend on it."
    ]
    if len(hosts) > 1:
        said.append(f"The runs are of {len(hosts)} kinds of processor, so their times do not.")
    repeated = sum(len({row.attempt for row in run.cost}) > 1 for run in setting.runs)
    if repeated:
        said.append(f"{repeated} runs were interrupted; repeated work is counted.")
    if paper.reports_memory(setting.arms[0].spec):
        said.append("“paper” is the ratio of the paper’s own numbers.")
    return tuple(said)
