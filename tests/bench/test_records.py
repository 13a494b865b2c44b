"""Records: what counts as a run, what is refused, and that a query can do nothing but read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vcmm.bench import records

from .folders import EPOCHS, STEPS, reseal, study, write


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study(tmp_path_factory.mktemp("runs"), seeds=2)


def test_a_run_is_read_whole(tmp_path: Path) -> None:
    folder = write(tmp_path, "joint", "vcmm", seed=3, test=0.7, seconds=1.5, peak=1000)
    (run,) = records.load(tmp_path)
    assert (run.hash, run.path, run.seed) == (folder.name, folder, 3)
    assert run.spec["controller"] == {"name": "vcmm"}
    assert (run.data_hash, run.threads, run.result_version) == ("d" * 64, 1, 1)
    assert len(run.steps) == EPOCHS * STEPS
    assert run.steps[0].values["accelerometer/beta"] == 0.897
    assert [row.split for row in run.evals] == ["valid", "test"] * EPOCHS
    assert run.evals[-1].values["accuracy"] == 0.7
    assert run.cost[0] == records.Cost(1, 0, STEPS, 1.5, 600, STEPS, STEPS, STEPS)
    assert run.seconds == 1.5 * EPOCHS
    assert run.peak_bytes == 1000
    assert run.env["commit"] == "abc1234"


def test_runs_come_sorted_by_hash(root: Path) -> None:
    found = [run.hash for run in records.load(root)]
    assert found == sorted(found)
    assert len(found) == 12


def test_the_peak_of_several_attempts_is_the_highest(tmp_path: Path) -> None:
    folder = write(tmp_path, peak=1000)
    with (folder / "cost.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"attempt": 2, "peak_bytes": 3000}\n{"attempt": 3, "peak_bytes": null}\n')
    assert records.load(tmp_path)[0].peak_bytes == 3000


def test_what_is_not_done_is_no_run(tmp_path: Path) -> None:
    write(tmp_path)
    (write(tmp_path, seed=1) / "done").unlink()
    (tmp_path / ".work" / "0123456789abcdef").mkdir(parents=True)
    (tmp_path / "report").mkdir()
    assert [run.seed for run in records.load(tmp_path)] == [0]


def test_a_folder_without_runs_is_empty_and_a_missing_one_an_error(tmp_path: Path) -> None:
    assert records.load(tmp_path) == []
    with pytest.raises(FileNotFoundError, match=r"nowhere; `vcmm sweep demo`"):
        records.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["spec.json", "steps.jsonl", "evals.jsonl"])
def test_a_changed_file_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path) / name
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(ValueError, match=rf"{name} is damaged: its sum is not in done. Delete"):
        records.load(tmp_path)


@pytest.mark.parametrize("name", ["spec.json", "steps.jsonl", "cost.jsonl", "env.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is damaged: .*No such file"):
        records.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("steps.jsonl", '{"step": 2,', "{", r"steps.jsonl, line 2 is damaged: .*'step'"),
        ("steps.jsonl", '{"step": 2,', '{"step": 2', r"steps.jsonl, line 2 is damaged: "),
        ("evals.jsonl", "0.08", '"low"', r"evals.jsonl, line 1 is damaged: .*low"),
        ("evals.jsonl", '{"epoch": 0', "[", r"evals.jsonl, line 1 is damaged"),
        ("cost.jsonl", '"seconds": 2.0, ', "", r"cost.jsonl, line 1 is damaged: .*seconds"),
        ("spec.json", '"seed": 0', '"seed": "0"', r"spec.json is damaged: seed is '0'"),
        ("spec.json", '"method": {"name"', '"method": {"nome"', r"method is \{'nome'.* names noth"),
        ("spec.json", '"joint"', '"unimodal"', r"names no modality"),
        ("spec.json", '"threads": 1', '"threads": null', r"threads is None"),
        ("spec.json", '"threads": 1', '"threads": 1, "metric": "f1"', r"metric is 'f1'"),
        ("env.json", "{", "[{", r"env.json is damaged"),
        ("done", "{", "", r"done is damaged"),
    ],
)
def test_malformed_records_are_named_by_file_and_line(
    tmp_path: Path, name: str, old: str, new: str, says: str
) -> None:
    folder = write(tmp_path)
    path = folder / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    if name != "done":
        reseal(folder)
    with pytest.raises(ValueError, match=says):
        records.load(tmp_path)


# SQL


def test_a_query_joins_runs_and_evals(root: Path) -> None:
    columns, rows = records.query(
        root,
        """SELECT method, max(value) AS best FROM runs JOIN evals USING (run)
        WHERE metric = 'accuracy' AND split = 'test' AND controller = 'none'
        GROUP BY method ORDER BY method""",
    )
    assert columns == ["method", "best"]
    assert rows == [("ensemble", 0.66), ("joint", 0.71), ("multi_loss", 0.71), ("unimodal", 0.775)]


def test_every_table_has_its_columns_and_rows(root: Path) -> None:
    runs = records.load(root)
    counts = {
        "runs": len(runs),
        "steps": sum(len(row.values) for run in runs for row in run.steps),
        "evals": sum(len(row.values) for run in runs for row in run.evals),
        "cost": len(runs) * EPOCHS,
    }
    for table, fields in records.TABLES.items():
        columns, rows = records.query(root, f"SELECT * FROM {table}")
        assert columns == list(fields)
        assert len(rows) == counts[table]


def test_specs_are_json_and_a_missing_peak_is_null(tmp_path: Path) -> None:
    write(tmp_path, "ogm", options={"alpha": 0.3}, peak=None)
    _, rows = records.query(
        tmp_path, "SELECT spec->'method'->>'alpha', peak_bytes, env->>'commit' FROM runs"
    )
    assert rows == [("0.3", None, "abc1234")]


def test_no_run_is_an_empty_table(tmp_path: Path) -> None:
    assert records.query(tmp_path, "SELECT * FROM steps") == (list(records.TABLES["steps"]), [])


@pytest.mark.parametrize(
    "sql",
    [
        "COPY runs TO '{out}'",
        "COPY (SELECT 1) TO '{out}'",
        "EXPORT DATABASE '{out}'",
        "ATTACH '{out}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET enable_external_access",
        "PRAGMA enable_profiling",
        "CREATE TABLE mine AS SELECT 1",
        "CREATE SECRET (TYPE s3)",
        "INSERT INTO runs SELECT * FROM runs",
        "UPDATE runs SET seed = 1",
        "DELETE FROM runs",
        "DROP TABLE runs",
        "CALL pragma_version()",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE runs",
        "",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_blob('{secret}')",
        "SELECT * FROM read_json('{secret}')",
        "SELECT * FROM read_parquet('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM sniff_csv('{secret}')",
        "SELECT * FROM parquet_metadata('{secret}')",
        "SELECT * FROM read_csv('https://example.org/x.csv')",
        "WITH x AS (SELECT * FROM read_text('{secret}')) SELECT * FROM x",
        "SELECT getenv('HOME')",
        "SELECT * FROM columns",  # a variable of ours
        "SELECT nothing FROM runs",
        "SELEC 1",
    ],
)
def test_a_query_reads_records_and_nothing_else(root: Path, tmp_path: Path, sql: str) -> None:
    out, secret = tmp_path / "out.csv", tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"The tables are runs|is not one SELECT"):
        records.query(root, sql.format(out=out, secret=secret))
    assert os.listdir(tmp_path) == ["secret.csv"]
    assert secret.read_text(encoding="utf-8") == "a,b\n1,2\n"


def test_a_query_leaves_the_records_as_they_were(root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    records.query(root, "SELECT * FROM runs, evals LIMIT 10")
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_names_in_records_are_data_and_never_sql(tmp_path: Path) -> None:
    name = "x'); DROP TABLE runs; --"
    write(tmp_path, name)
    assert records.query(tmp_path, "SELECT method FROM runs")[1] == [(name,)]


def test_reading_imports_neither_torch_nor_what_only_queries_need() -> None:
    script = (
        "import json, sys\n"
        "from vcmm.bench import analysis, recommend, records\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"torch", "duckdb", "scipy", "plotly", "jinja2", "matplotlib", "numpy"}
