"""What runs left on disk: read, checked, and asked with SQL. Nothing here changes a record.

A run is a directory `<root>/<hash>` with a file `done`. What it holds is verified once, here:
against the sums in `done`, and for its form. All other rooms may then trust a `Run`. A damaged
record is an error that names the file, for a table of what happens to be left would not be the
table of the runs.

`query` copies the records into a DuckDB database in memory, locks it, and only then runs the query:
one SELECT, which can reach no file, no network and no setting.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from .spec import AXES

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_HASH = re.compile(r"[0-9a-f]{16}")
_IDENTITY = {"data_hash": str, "threads": int, "device": str, "result_version": int}
_SUMMED = ("spec.json", "steps.jsonl", "evals.jsonl")
_Row = TypeVar("_Row")

# The tables of `query`, in the order of their columns.
TABLES: dict[str, dict[str, str]] = {
    "runs": {
        "run": "VARCHAR",
        **dict.fromkeys(AXES, "VARCHAR"),
        "modalities": "JSON",
        "epochs": "BIGINT",
        "batch_size": "BIGINT",
        "seed": "BIGINT",
        "seconds": "DOUBLE",
        "samples": "BIGINT",
        "peak_bytes": "BIGINT",
        "threads": "BIGINT",
        "device": "VARCHAR",
        "numerics": "VARCHAR",
        "data_hash": "VARCHAR",
        "result_version": "BIGINT",
        "spec": "JSON",
        "env": "JSON",
    },
    "steps": {
        "run": "VARCHAR",
        "step": "BIGINT",
        "epoch": "BIGINT",
        "metric": "VARCHAR",
        "value": "DOUBLE",
    },
    "evals": {
        "run": "VARCHAR",
        "epoch": "BIGINT",
        "step": "BIGINT",
        "split": "VARCHAR",
        "metric": "VARCHAR",
        "value": "DOUBLE",
    },
    "cost": {
        "run": "VARCHAR",
        "attempt": "BIGINT",
        "epoch": "BIGINT",
        "steps": "BIGINT",
        "seconds": "DOUBLE",
        "samples": "BIGINT",
        "forwards": "BIGINT",
        "backwards": "BIGINT",
        "updates": "BIGINT",
    },
}


class Step(NamedTuple):
    """What one optimizer step logged."""

    step: int
    epoch: int
    values: dict[str, float]


class Eval(NamedTuple):
    """What one split measured after an epoch."""

    epoch: int
    step: int
    split: str
    values: dict[str, float]


class Cost(NamedTuple):
    """What the training of an epoch, or of the part that one attempt did of it, took."""

    attempt: int
    epoch: int
    steps: int
    seconds: float
    samples: int
    forwards: int
    backwards: int
    updates: int


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run."""

    hash: str
    path: Path
    spec: Mapping[str, Any]
    data_hash: str
    threads: int
    device: str
    numerics: str  # all that is not torch's default arithmetic, bfloat16 say
    weights: Mapping[str, str]  # sha256 of the files that encoders started from, by their paths
    result_version: int
    metric: str  # what it is judged by
    steps: tuple[Step, ...]
    evals: tuple[Eval, ...]
    cost: tuple[Cost, ...]
    peak_bytes: int | None  # over all attempts; None where it was not measured
    env: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return self.spec["seed"]

    @property
    def seconds(self) -> float:
        """Time spent training, that of repeated work after an interruption included."""
        return sum(row.seconds for row in self.cost)


def load(root: str | Path, only: Container[str] | None = None) -> list[Run]:
    """Every finished run under a root, or those of these hashes, sorted by hash.

    Raises:
        FileNotFoundError: if there is no such directory.
        ValueError: if a finished run is damaged, naming the file and the way out.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no directory {root}; `vcmm sweep demo` makes runs")
    folders = [p for p in sorted(root.iterdir()) if _HASH.fullmatch(p.name)]
    wanted = [folder for folder in folders if only is None or folder.name in only]
    return [_read(folder) for folder in wanted if (folder / "done").is_file()]


def query(root: str | Path, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and rows that one SELECT over the tables runs, steps, evals and cost gives.

    Raises:
        ValueError: if the query is not one SELECT, is malformed, or reaches for anything else.
    """
    import duckdb

    columns = _columns(load(root))
    with duckdb.connect(":memory:", config={"temp_directory": ""}) as connection:
        for table in TABLES:
            _fill(connection, table, columns[table])
        for lock in ("python_enable_replacements=false", "enable_external_access=false"):
            connection.execute(f"SET {lock}")
        connection.execute("SET lock_configuration=true")
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise ValueError(
                    f"{sql!r} is not one SELECT. Records are read only; ask for example: "
                    "SELECT method, count(*) FROM runs GROUP BY method"
                )
            done = connection.execute(statements[0])
            return [name for name, *_ in done.description or ()], done.fetchall()
        except duckdb.Error as error:
            shape = "; ".join(f"{name}({', '.join(TABLES[name])})" for name in TABLES)
            raise ValueError(f"{error}\nThe tables are {shape}") from error


# Reading one run


def _read(folder: Path) -> Run:
    texts = _verified(folder)
    spec_path = folder / "spec.json"
    outer = _object(spec_path, texts["spec.json"])
    spec = _check_spec(outer.get("spec"), spec_path)
    metric = outer.get("metric", "accuracy")  # where samples have several labels, it says "map"
    _demand(metric in ("accuracy", "map"), spec_path, f"metric is {metric!r}")
    for key, kind in _IDENTITY.items():
        _demand(isinstance(outer.get(key), kind), spec_path, f"{key} is {outer.get(key)!r}")
    cost_path, env_path = folder / "cost.jsonl", folder / "env.json"
    cost = list(_lines(cost_path, _text(cost_path), _cost))
    _demand(any(isinstance(row, Cost) for row in cost), cost_path, "no epoch is in it")
    return Run(
        hash=folder.name,
        path=folder,
        spec=spec,
        data_hash=outer["data_hash"],
        threads=outer["threads"],
        device=outer["device"],
        numerics=str(outer.get("numerics", "")),
        weights=outer.get("weights", {}),
        result_version=outer["result_version"],
        metric=metric,
        steps=tuple(_lines(folder / "steps.jsonl", texts["steps.jsonl"], _step)),
        evals=tuple(_lines(folder / "evals.jsonl", texts["evals.jsonl"], _eval)),
        cost=tuple(row for row in cost if isinstance(row, Cost)),
        peak_bytes=max((row for row in cost if isinstance(row, int)), default=None),
        env=_object(env_path, _text(env_path)),
    )


def _verified(folder: Path) -> dict[str, str]:
    """The files that `done` vouches for."""
    done = _object(folder / "done", _text(folder / "done"))
    texts: dict[str, str] = {}
    for name in _SUMMED:
        path = folder / name
        texts[name] = _text(path)
        found = hashlib.sha256(texts[name].encode()).hexdigest()
        _demand(done.get(name) == found, path, "its sum is not in done")
    return texts


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise _damaged(path, "", str(error)) from error


def _object(path: Path, text: str) -> dict[str, Any]:
    found = _parse(path, text)
    _demand(isinstance(found, dict), path, f"{text[:80]!r} is not an object")
    return cast(dict[str, Any], found)


def _parse(path: Path, text: str, where: str = "") -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _damaged(path, where, str(error)) from error


def _lines(path: Path, text: str, form: Callable[[dict[str, Any]], _Row]) -> Iterable[_Row]:
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        row = _parse(path, line, f", line {number}")
        try:
            yield form(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, f", line {number}", f"{line[:80]!r}: {error}") from error


def _step(row: dict[str, Any]) -> Step:
    return Step(int(row["step"]), int(row["epoch"]), _numbers(row["values"]))


def _eval(row: dict[str, Any]) -> Eval:
    return Eval(int(row["epoch"]), int(row["step"]), str(row["split"]), _numbers(row["values"]))


def _cost(row: dict[str, Any]) -> Cost | int | None:
    """What an epoch took, or what an attempt took at its peak."""
    if "peak_bytes" in row:
        return None if row["peak_bytes"] is None else int(row["peak_bytes"])
    values: dict[str, Any] = {key: int(row[key]) for key in Cost._fields if key != "seconds"}
    return Cost(**values, seconds=float(row["seconds"]))


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _check_spec(given: object, path: Path) -> dict[str, Any]:
    _demand(isinstance(given, dict), path, "it holds no spec")
    spec = cast(dict[str, Any], given)
    for axis in AXES:
        choice = spec.get(axis)
        named = isinstance(choice, dict) and isinstance(
            cast(dict[str, object], choice).get("name"), str
        )
        _demand(named, path, f"{axis} is {choice!r} and names nothing")
    for key in ("epochs", "batch_size", "seed"):
        _demand(isinstance(spec.get(key), int), path, f"{key} is {spec.get(key)!r}")
    chosen = spec.get("modalities")
    _demand(chosen is None or isinstance(chosen, list), path, f"modalities is {chosen!r}")
    unimodal = spec["method"]["name"] == "unimodal"
    known = not unimodal or isinstance(spec["method"].get("modality"), str)
    _demand(known, path, "method 'unimodal' names no modality")
    return spec


def _demand(fact: bool, path: Path, problem: str) -> None:
    if not fact:
        raise _damaged(path, "", problem)


def _damaged(path: Path, where: str, problem: str) -> ValueError:
    return ValueError(
        f"{path}{where} is damaged: {problem}. Delete {path.parent} and run its spec again"
    )


# Tables


def _columns(runs: Sequence[Run]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of every table, each in the order of `TABLES`."""
    steps = [
        (run.hash, row.step, row.epoch, metric, value)
        for run in runs
        for row in run.steps
        for metric, value in row.values.items()
    ]
    evals = [
        (run.hash, row.epoch, row.step, row.split, metric, value)
        for run in runs
        for row in run.evals
        for metric, value in row.values.items()
    ]
    cost = [(run.hash, *row) for run in runs for row in run.cost]
    return {"runs": [_row(run) for run in runs], "steps": steps, "evals": evals, "cost": cost}


def _row(run: Run) -> tuple[Any, ...]:
    return (
        run.hash,
        *(run.spec[axis]["name"] for axis in AXES),
        json.dumps(run.spec["modalities"]),
        run.spec["epochs"],
        run.spec["batch_size"],
        run.seed,
        run.seconds,
        sum(row.samples for row in run.cost),
        run.peak_bytes,
        run.threads,
        run.device,
        run.numerics,
        run.data_hash,
        run.result_version,
        json.dumps(run.spec),
        json.dumps(run.env),
    )


def _fill(connection: DuckDBPyConnection, table: str, rows: list[tuple[Any, ...]]) -> None:
    """One table, in one insertion: a row at a time takes minutes for a hundred runs."""
    import numpy as np

    form = TABLES[table]
    fields = ", ".join(f"{name} {kind}" for name, kind in form.items())
    connection.execute(f"CREATE TABLE {table} ({fields})")
    if rows:
        dtypes = {"BIGINT": object, "DOUBLE": float}  # an integer may be NULL
        columns = zip(*rows, strict=True)
        given = {
            name: np.array(column, dtype=dtypes.get(kind, object))
            for (name, kind), column in zip(form.items(), columns, strict=True)
        }
        connection.register("given", given)
        connection.execute(f"INSERT INTO {table} SELECT * FROM given")
        connection.unregister("given")
