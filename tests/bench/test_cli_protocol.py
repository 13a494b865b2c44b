"""The benchmarks of the papers from a terminal: prepared, trained by a protocol, and told."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vcmm.bench.build import build_model
from vcmm.bench.data import load
from vcmm.bench.methods import METHODS
from vcmm.bench.spec import Choice, Spec

from .media import makers_cremad as makers
from .media import small
from .test_cli import Vcmm

pytestmark = pytest.mark.slow

NARROW = [
    *("--encoders.audio.width", "2", "--encoders.visual.width", "2"),
    *("--data.size", str(small.SIZE), "--data.side", str(small.SIDE)),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """CREMA-D in miniature, decoded with the sound of ogm22."""
    with pytest.MonkeyPatch.context() as patch:
        yield small.cremad(tmp_path_factory.mktemp("cli"), patch, "stft-3s")


@pytest.fixture
def vcmm(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Vcmm:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return Vcmm(capsys)


def ran(vcmm: Vcmm, *arguments: str | Path) -> dict:  # type: ignore[type-arg]
    command = ("run", "--protocol", "ogm22", "--data", "cremad", *NARROW, "--epochs", "1")
    command = (*command, "--batch-size", "8")
    said = vcmm(*command, *arguments, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


# One run


def test_a_run_by_a_protocol_is_recorded_with_all_that_it_says(vcmm: Vcmm) -> None:
    spec = Spec.from_json(ran(vcmm)["spec"])
    assert spec.optimizer == Choice("sgd", lr=1e-3, momentum=0.9, weight_decay=1e-4)
    assert spec.schedule == Choice("step", every=70, factor=0.1)
    assert (spec.epochs, spec.batch_size) == (1, 8)
    assert spec.data.options["audio"] == "stft-3s"
    narrow = Choice("resnet18", width=2, classifier=0, fresh=None, weights=None)
    assert spec.encoders == {"audio": narrow, "visual": narrow}
    other = Spec.from_json(ran(vcmm, "--optimizer", "adam")["spec"])
    assert other.optimizer == Spec().optimizer


@pytest.fixture(scope="module")
def weights(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what two trainings began with."""
    folder = tmp_path_factory.mktemp("weights")
    options = {"side": small.SIDE, "size": small.SIZE}
    for seed in (3, 4):
        spec = Spec(
            data=Choice("cremad", **options), encoder=Choice("resnet18", width=2), seed=seed
        )
        model = build_model(spec, load("cremad", **spec.data.options))
        torch.save(model.encoders["visual"].state_dict(), folder / f"{seed}.pt")
    return folder


def test_a_file_of_weights_is_where_a_run_starts(vcmm: Vcmm, weights: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    runs: list[str] = []
    for seed in (3, 4):
        shutil.copy(weights / f"{seed}.pt", file)
        found = ran(vcmm, "--encoders.visual.weights", file)
        assert found["spec"]["encoders"]["visual"]["weights"] == str(file)
        assert found["spec"]["encoders"]["audio"]["weights"] is None
        runs.append(found["run"])
    shutil.copy(weights / "3.pt", tmp_path / "elsewhere.pt")
    assert ran(vcmm, "--encoders.visual.weights", tmp_path / "elsewhere.pt")["run"] == runs[0]
    runs.append(ran(vcmm)["run"])
    assert len(set(runs)) == 3
    steps = [(tmp_path / "runs" / run / "steps.jsonl").read_bytes() for run in runs]
    assert len(set(steps)) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--encoders.visual.weights", "FILE", "--encoders.visual.width", "4"], "shapes differ"),
        (["--encoders.audio.weights", "FILE"], "fresh=('conv1',)"),
        (["--encoders.visual.weights", "none.pt"], "there is no file of weights 'none.pt'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_is_trained(
    vcmm: Vcmm, weights: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    given = [str(weights / "3.pt") if flag == "FILE" else flag for flag in flags]
    for command in (["run"], ["sweep", "table1", "--seeds", "1"], ["compare"]):
        line = [*command, "--protocol", "ogm22", "--data", "cremad", *NARROW, *given]
        said = vcmm(*line)
        assert (said.code, said.out) == (2, "")
        assert message in said.err
        assert not (tmp_path / "runs").exists()


# What to do next


def test_what_prepare_says_to_do_next_works(vcmm: Vcmm, root: Path, tmp_path: Path) -> None:
    side = ["--side", str(small.SIDE)]
    said = vcmm("data", "prepare", "cremad", "--root", root, *side)
    assert said.code == 0, said.err
    told = said.out.splitlines()[-1]
    assert told == f"Next   vcmm compare --data cremad --protocol ogm22 --data.side {small.SIDE}"
    line = shlex.split(told)[2:]
    said = vcmm(
        *line, *NARROW, "--methods", "multi_loss", "--epochs", "1", "--seeds", "1", "--json"
    )
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert {row["arm"] for row in found["results"]} == {
        "unimodal: audio",
        "unimodal: visual",
        "joint",
        "multi_loss",
    }
    assert Path(found["report"]).is_file()
    # Where the lists of the protocol are not there, it is another split.
    shutil.copytree(root, tmp_path / "unlisted", ignore=shutil.ignore_patterns("annotations"))
    said = vcmm("data", "prepare", "cremad", "--root", tmp_path / "unlisted", *side)
    told = said.out.splitlines()[-1]
    assert told.endswith(f" --data.side {small.SIDE} --data.split stratified")
    vcmm("data", "prepare", "cremad", "--root", root, *side)


def test_a_benchmark_without_a_protocol_is_refused_and_told_which(
    vcmm: Vcmm, tmp_path: Path
) -> None:
    data = ["--data", "cremad", "--data.side", str(small.SIDE)]
    for command in ("compare", "run"):
        said = vcmm(command, *data)
        assert (said.code, said.out) == (2, "")
        assert "encoder auto has nothing for 'visual', which is video" in said.err
        assert "--protocol ogm22, or name an encoder, resnet18" in said.err
    assert not list(tmp_path.iterdir())


def test_info_takes_the_options_of_loading(vcmm: Vcmm) -> None:
    side = ["--side", str(small.SIDE)]
    whole = json.loads(vcmm("data", "info", "cremad", *side, "--json").out)
    assert whole["splits"]["train"]["samples"] == 16
    assert whole["modalities"]["visual"]["shape"] == [3, 1, 224, 224]
    other = vcmm("data", "info", "--json", "cremad", *side, "--split", "actor", "--frames=2")
    found = json.loads(other.out)
    assert found["splits"]["test"]["groups"] == 1
    assert found["modalities"]["visual"]["shape"] == [3, 2, 224, 224]
    assert found["hash"] != whole["hash"]
    told = vcmm("data", "info", "cremad", "--help").flat
    assert "Options of cremad" in told
    assert "--split VALUE ogm | stratified | actor (default: ogm)" in told
    said = vcmm("data", "info", "cremad", "--audio", "fbank")
    assert said.code == 2
    assert "run: vcmm data prepare cremad --root DIR --audio fbank" in said.err
    assert vcmm("data", "info", "synthetic", "--modalities", "3").out.count("vector, 16") == 3


# The whole table


def more(root: Path, folder: Path) -> Path:
    """The same clips under five sentences: G-Blend holds some of every class out of train."""
    for sentence in ("DFA", "IEO", "IOM", "ITH", "ITS"):
        for name in makers.IDS:
            other = name.replace("DFA", sentence)
            (folder / "AudioWAV").mkdir(parents=True, exist_ok=True)
            shutil.copy(root / "AudioWAV" / f"{name}.wav", folder / "AudioWAV" / f"{other}.wav")
            frames = "Image-01-FPS"
            shutil.copytree(root / frames / name, folder / frames / other)
    names = sorted(path.stem for path in (folder / "AudioWAV").iterdir())
    makers.lists(folder / "annotations", tuple(names))
    return folder


def test_the_main_table_of_a_benchmark_by_one_command(
    vcmm: Vcmm, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VCMM_CACHE", str(tmp_path / "cache"))
    table = ["sweep", "table1", "--data", "cremad", "--root", more(root, tmp_path / "files")]
    narrow = [*NARROW, "--data.audio", "stft-3s", "--epochs", "1", "--batch-size", "16"]
    said = vcmm(*table, *narrow, "--seeds", "1", "--workers", "2", "--json")
    assert said.code == 0, said.err[-3000:]
    assert "cremad: decoding, 120 of 120 samples\n" in said.err  # on the way
    found = json.loads(said.out)
    assert not found["failed"]
    arms = {row["arm"] for row in found["results"]}
    others = METHODS.keys() - {"joint", "unimodal"}
    assert {arm.partition(" ")[0] for arm in arms} >= others
    assert {"unimodal: audio", "unimodal: visual", "joint", "joint + vcmm"} <= arms
    records = [json.loads(path.read_text()) for path in Path("runs").glob("*/spec.json")]
    assert len(records) == len(arms) > 20
    for one in records:  # as vcmm26 says, which nobody had to name
        optimizer = Spec.from_json(one["spec"]).optimizer
        assert optimizer == Choice(
            "adam", **{**Spec().optimizer.options, "lr": 1e-2, "weight_decay": 1e-4}
        )
    page = Path(found["report"]).read_text("utf-8")
    assert all(name in page for name in others)
