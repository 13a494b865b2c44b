"""`vcmm`: what it says, what it writes to which stream, and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vcmm.bench.cli import main
from vcmm.bench.cli.axes import pairs, value_of, written

COMMANDS = ("demo", "list", "data", "run", "sweep", "compare", "results", "report")
TINY = [
    *("--data", "synthetic", "--data.samples", "64", "--data.size=4"),
    *("--encoder", "mlp", "--encoder.width", "4", "--encoder.outputs", "4"),
]


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def flat(self) -> str:
        """Without the frames and line breaks of a help text."""
        return " ".join(self.out.replace("│", " ").split())


class Vcmm:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str | Path) -> Said:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        assert isinstance(stop.value.code, int)
        return Said(stop.value.code, *self.capsys.readouterr())


@pytest.fixture
def vcmm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Vcmm:
    monkeypatch.setenv("COLUMNS", "100")
    return Vcmm(capsys)


# Help, and what it costs


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"], ["list", "--help"]])
def test_help_needs_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from vcmm.bench.cli import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'duckdb', 'plotly', 'jinja2', 'matplotlib',\n"
        "         'torchmetrics', 'multiprocessing.context'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"
    assert "Usage" in done.stdout


def test_rich_is_not_loaded_before_there_is_something_to_draw() -> None:
    script = "import sys, vcmm.bench.cli; print([m for m in sys.modules if m == 'rich'])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_help_names_every_command(vcmm: Vcmm) -> None:
    said = vcmm("--help")
    assert said.code == 0
    assert all(f"│ {command} " in said.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(vcmm: Vcmm, command: str) -> None:
    said = vcmm(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"Usage: vcmm {command}" in said.flat


def test_options_come_from_the_signatures_of_what_is_named(vcmm: Vcmm) -> None:
    plain = vcmm("run", "--help")
    assert "--controller.strength" not in plain.out
    assert "--optimizer.lr VALUE a number (default: 0.001)" in plain.flat
    assert "constant | cosine | one_cycle | step (default: cosine)" in plain.flat
    named = vcmm("run", "--controller=vcmm", "--optimizer", "sgd", "--method", "unimodal", "--help")
    assert "Options of controller vcmm" in named.out
    assert "--controller.strength VALUE a number (default: 1)" in named.flat
    assert "--controller.gain-range VALUE a number,a number (default: 0.01,0.3)" in named.flat
    assert "--optimizer.momentum VALUE a number (default: 0.9)" in named.flat
    assert "--method.modality VALUE a name (required)" in named.flat
    assert "--optimizer.eps" not in named.out


def test_an_encoder_of_one_modality_has_options_too(vcmm: Vcmm) -> None:
    said = vcmm("run", "--encoders", "m1=mlp", "--help")
    assert "--encoders.m1.width" in said.out


def test_a_suite_has_the_options_of_its_function(vcmm: Vcmm) -> None:
    assert "--methods" not in vcmm("sweep", "demo", "--help").out
    assert "--methods VALUE" in vcmm("sweep", "compare", "--help").flat


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "Did you mean 'run'"),
        (["run", "--foo"], "No such option: --foo"),
        (["run", "--sede", "1"], "--seed"),
        (["run", "--epochs", "many"], "--epochs"),
        (["run", "--epochs", "0"], "--epochs"),
        (["run", "--method", "jont"], "there is no method 'jont'; did you mean 'joint'?"),
        (["run", "--method=jont", "--help"], "did you mean 'joint'?"),
        (["run", "--method.alpha", "1"], "method 'joint' has no option 'alpha'; it has none"),
        (
            ["run", "--controller", "vcmm", "--controller.strenth=1"],
            "controller 'vcmm' has no option 'strenth'; did you mean 'strength'?",
        ),
        (["run", "--optimizer.lr", "fast"], "--optimizer.lr is 'fast'; it must be a number"),
        (["run", "--controller", "fixed"], "controller 'fixed' needs option 'betas'"),
        (["run", "--data", "wacht"], "did you mean 'watch'?"),
        (["run", "--data", "none/such.npz"], "none/such.npz"),
        (["run", "--data", "synthetic", "--modalities", "m1,m9"], "'m9'"),
        (["run", "--data", "synthetic", "--encoder", "conv2d"], "modality 'm1'"),
        (["run", "--encoders", "m1"], "write modality=encoder pairs"),
        (["sweep"], "SUITE"),
        (["sweep", "dmeo"], "there is no suite 'dmeo'; there are ablation, all, compare"),
        (["sweep", "demo", "--seeds", "x"], "--seeds is 'x'; it must be a whole number"),
        (["compare", "--methods", "joint+vcm"], "did you mean 'vcmm'?"),
        (["compare", "--data", "synthetic", "--data.modalities", "1"], "one modality"),
        (["list", "things"], "'things' is not one of 'methods'"),
        (["data", "info", "wacht"], "did you mean 'watch'?"),
        (["data", "get", "watch"], "nothing to download"),
        (["results", "--runs", "none/such"], "none/such"),
        (["report", "--runs", "none/such"], "none/such"),
        (["results", "--select", "best"], "'best' is not one of 'valid', 'last', 'oracle'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_paragraph_on_stderr(
    vcmm: Vcmm, arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = vcmm(*arguments)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert words in said.err
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 3
    assert not list(tmp_path.iterdir())  # nothing was begun


def test_a_command_without_arguments_shows_its_help(vcmm: Vcmm) -> None:
    assert "Usage: vcmm data" in " ".join((said := vcmm("data")).out.split() + said.err.split())


# Listing


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("methods", "multi_loss"),
        ("controllers", "vcmm"),
        ("optimizers", "adamw"),
        ("schedules", "one_cycle"),
        ("data", "watch"),
        ("encoders", "conv1d"),
        ("fusions", "concat"),
        ("suites", "demo"),
    ],
)
def test_everything_that_can_be_named_is_listed(vcmm: Vcmm, what: str, name: str) -> None:
    assert f"{name}  " in vcmm("list", what).out
    found = json.loads(vcmm("list", what, "--json").out)
    names = [one["name"] for one in found]
    assert name in names
    assert names == sorted(names)
    assert all(one["about"] for one in found)


def test_options_are_listed_with_types_and_defaults(vcmm: Vcmm) -> None:
    found = {one["name"]: one for one in json.loads(vcmm("list", "controllers", "--json").out)}
    options = {option["name"]: option for option in found["vcmm"]["options"]}
    assert options["strength"] == {
        "name": "strength",
        "type": "a number",
        "required": False,
        "default": 1.0,
    }
    assert [o["required"] for o in found["fixed"]["options"]] == [True]
    assert "    strength = 1   a number" in vcmm("list", "controllers").out


# Data


def test_data_sets_are_listed_and_described(vcmm: Vcmm) -> None:
    assert "watch" in vcmm("data", "list").out
    here = {one["name"]: one["here"] for one in json.loads(vcmm("data", "list", "--json").out)}
    assert here["watch"]
    assert here["synthetic"]
    assert "accelerometer  sequence, 3 x 100" in vcmm("data", "info", "watch").out
    found = json.loads(vcmm("data", "info", "watch", "--json").out)
    assert set(found["modalities"]) == {"accelerometer", "gyroscope"}


def own(path: Path, **changes: Any) -> Path:
    draw = np.random.default_rng(0)
    arrays = {
        f"x_{modality}_{split}": draw.normal(size=(40, 3)).astype(np.float32)
        for modality in ("left", "right")
        for split in ("train", "test")
    }
    arrays |= {f"y_{split}": np.arange(40) % 4 for split in ("train", "test")}
    np.savez(path, **{**arrays, **changes})
    return path


def test_a_file_where_a_folder_should_be(vcmm: Vcmm, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    run = vcmm("run", *TINY, "--epochs", "1", "--runs", file)
    assert (run.code, run.out) == (2, "")
    assert f"File exists: '{file}'" in run.err
    assert vcmm("run", *TINY, "--epochs", "1", "--runs", tmp_path / "runs").code == 0
    report = vcmm("report", "--runs", tmp_path / "runs", "--out", file)
    assert report.code == 2
    assert f"Not a directory: '{file}" in report.err
    table = vcmm("results", "--runs", tmp_path / "runs").out
    assert table.splitlines()[1].rstrip().endswith("over 1 seed")


def test_all_that_is_wrong_with_a_file_is_said(vcmm: Vcmm, tmp_path: Path) -> None:
    fine = own(tmp_path / "fine.npz")
    assert vcmm("data", "check", fine) == Said(
        0, f"{fine} is fine; try vcmm compare --data {fine}\n", ""
    )
    odd = own(tmp_path / "mine & <yours>.npz")
    assert f"vcmm compare --data '{odd}'" in vcmm("data", "check", odd).out
    read_otherwise = vcmm("data", "info", fine, "--kinds", "left=sound")
    assert read_otherwise.code == 2
    assert "--kinds is 'left=sound'" in read_otherwise.err
    assert "right  vector, 3" in vcmm("data", "info", fine).out
    hole = np.full((40, 3), np.nan, np.float32)
    bad = own(tmp_path / "bad.npz", x_left_train=hole, y_test=np.arange(39) % 4)
    said = vcmm("data", "check", bad)
    assert (said.code, said.out) == (2, "")
    assert "x_left_train" in said.err
    assert "y_test" in said.err
    assert "Traceback" not in said.err
    for path, code in ((fine, 0), (bad, 2)):
        said = vcmm("data", "check", path, "--json")
        assert (said.code, said.err) == (code, "")
        found = json.loads(said.out)
        assert found["path"] == str(path)
        assert bool(found["problems"]) == bool(code)


# Running


@pytest.mark.slow
def test_a_run_is_made_once_and_can_be_asked(vcmm: Vcmm, tmp_path: Path) -> None:
    flags = [*TINY, "--epochs", "2", "--batch-size", "16", "--runs", str(tmp_path)]
    vcmm_flags = ["--controller", "vcmm", "--controller.gain_range=.05,.2"]
    said = vcmm("run", *flags, *vcmm_flags, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["spec"]["controller"]["gain_range"] == [0.05, 0.2]
    assert found["spec"]["data"]["size"] == 4
    assert {"test", "valid"} == found["last"].keys()
    assert 0 <= found["last"]["test"]["accuracy"] <= 1
    assert (tmp_path / found["run"] / "done").is_file()
    assert said.err.startswith("[1/1] joint + vcmm, seed 0: done in ")
    # Again: it is there. Without --json, lines go to stdout.
    said = vcmm("run", *flags, *vcmm_flags)
    assert said.out.startswith("[1/1] joint + vcmm, seed 0: is there already\n")
    assert said.out.splitlines()[-1] == str(tmp_path / found["run"])
    # What came out.
    sql = "SELECT method, controller, seed FROM runs"
    assert "joint   vcmm" in vcmm("results", "--runs", tmp_path, "--sql", sql).out
    assert (
        "\N{HORIZONTAL ELLIPSIS}"
        not in vcmm("results", "--runs", tmp_path, "--sql", "SELECT * FROM runs").out
    )
    rows = json.loads(vcmm("results", "--runs", tmp_path, "--sql", sql, "--json").out)
    assert rows == [{"method": "joint", "controller": "vcmm", "seed": 0}]
    said = vcmm("results", "--runs", tmp_path, "--sql", "DROP TABLE runs")
    assert said.code == 2
    assert "Traceback" not in said.err
    results = json.loads(vcmm("results", "--runs", tmp_path, "--json").out)["results"]
    assert [row["arm"] for row in results] == ["joint + vcmm (gain_range=[0.05, 0.2])"]
    assert "joint + vcmm" in vcmm("results", "--runs", tmp_path).out
    oracle = vcmm("results", "--runs", tmp_path, "--select", "oracle").out
    assert "Epochs were chosen on the test split" in oracle


def test_an_empty_folder_has_no_results(vcmm: Vcmm, tmp_path: Path) -> None:
    for command in ("results", "report"):
        said = vcmm(command, "--runs", tmp_path)
        assert (said.code, said.out) == (2, "")
        assert "no finished run" in said.err


@pytest.mark.slow
def test_a_failed_run_is_exit_code_1_and_says_where_the_story_is(
    vcmm: Vcmm, tmp_path: Path
) -> None:
    flags = [*TINY, "--epochs", "2", "--runs", str(tmp_path)]
    whole = json.loads(vcmm("run", *flags, "--json").out)
    # A checkpoint that cannot be read, where the run would go on from.
    (tmp_path / whole["run"]).rename(work := tmp_path / ".work" / whole["run"])
    (work / "done").unlink()
    (work / "checkpoint.pt").write_bytes(b"no checkpoint")
    said = vcmm("run", *flags)
    assert said.code == 1
    assert "error: 1 run failed:" in said.err
    assert str(work / "error.txt") in said.err
    assert "Traceback" not in said.err
    assert (work / "error.txt").read_text().startswith("Traceback")


@pytest.mark.slow
def test_compare_answers_with_tables_a_page_and_one_json_object(vcmm: Vcmm, tmp_path: Path) -> None:
    data = own(tmp_path / "mine.npz")
    out = tmp_path / "out"
    command = ["compare", "--data", data, "--methods", "multi_loss", "--epochs", "2", "--seeds"]
    said = vcmm(*command, "2", "--encoder.width", "4", "--out", out, "--workers", "2", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["budget"] == {
        "name": "small",
        "epochs": 2,
        "seeds": 2,
        "batch_size": 64,
        "runs": 8,
    }
    arms = {row["arm"]: row for row in found["results"]}
    assert set(arms) == {"unimodal: left", "unimodal: right", "joint", "multi_loss"}
    assert all(row["seeds"] == [0, 1] for row in arms.values())
    assert arms["joint"]["reference"]
    assert {row["modality"] for row in found["imbalance"]} == {"left", "right"}
    assert all(row["unimodal"]["n"] == row["probe"]["n"] == 2 for row in found["imbalance"])
    (sentences,) = found["recommendation"].values()
    assert len(sentences) >= 2
    assert found["failed"] == []
    assert found["report"] == str(out / "report" / "index.html")
    assert Path(found["report"]).read_text().lower().startswith("<!doctype html>")
    assert len(list(out.glob("*/done"))) == 8
    assert said.err.count("done in") == 8
    # In words, from the records that are there; one seed more is two arms' worth of work more.
    said = vcmm(*command, "3", "--encoder.width", "4", "--out", out, "--workers", "2")
    assert said.out.count("is there already") == 8
    assert said.out.count("done in") == 4
    for words in ("12 runs on mine", "multi_loss", "difference to joint", "What it means"):
        assert words in said.out
    assert said.out.splitlines()[-1] == f"Report   {out / 'report' / 'index.html'}"
    said = vcmm("report", "--runs", out, "--out", tmp_path / "page", "--title", "Mine & yours")
    assert said.out == f"{tmp_path / 'page' / 'index.html'}\n"
    assert "Mine &amp; yours" in (tmp_path / "page" / "index.html").read_text()


# Reading the command line


def test_the_last_of_a_flag_counts() -> None:
    assert value_of(["--a", "1", "--b", "--a=2"], "--a") == "2"
    assert value_of(["--ab", "1", "--a"], "--a") is None


def test_pairs() -> None:
    assert pairs("audio=conv1d,video=mlp") == {"audio": "conv1d", "video": "mlp"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        (1e-8, "1e-08"),
        (0.123456789, "0.123456789"),
        ((0.9, 0.999), "0.9,0.999"),
        ({"a": 0.5}, "a=0.5"),
        ("x", "x"),
        (3, "3"),
    ],
)
def test_a_default_is_written_as_one_would_type_it(value: Any, text: str) -> None:
    assert written(value) == text
