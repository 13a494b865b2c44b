"""`vcmm paper`: whole LaTeX, whole figures, and a manifest that names every run."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from vcmm.bench.cli import main
from vcmm.bench.records import load
from vcmm.bench.report import bundle

from ..folders import write
from .studies import ablated, arm

HOSTILE = r"50%_of \input{x} & $m$ #1 ~^{}<>|\end{document}"
TEX = shutil.which("pdflatex")
# What an unescaped name would bring along; all of it is TeX's own.
SPECIAL = re.compile(r"(?<!\\)[&#%$_^~]")


def lint(text: str) -> None:
    """Braces and environments are balanced, and no special sign stands for itself."""
    bare = re.sub(r"(?<!\\)%.*", "", text)
    depth = 0
    for sign in re.findall(r"(?<!\\)(?:\\\\)*([{}])", bare):
        depth += 1 if sign == "{" else -1
        assert depth >= 0
    assert depth == 0
    open_: list[str] = []
    for verb, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", bare):
        if verb == "begin":
            open_.append(name)
        else:
            assert open_.pop() == name
    assert open_ == []


def prose(text: str) -> str:
    """What is set as words: captions, headings and cells, less mathematics that we wrote."""
    bare = re.sub(r"(?<!\\)%.*", "", text)
    bare = re.sub(r"\$(<|>|\||-|\\pm|\\times|\\leq|\\geq|\\lambda|\\beta)\$", "", bare)
    bare = re.sub(
        r"\\(includegraphics\S*|label\{[^}]*\}|input\{[^}]*\}|begin\{tabular\}.*)", "", bare
    )
    return re.sub(r"(?<!\\)[&~]", "", bare)  # between cells, and spaces that do not break


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = ablated(tmp_path_factory.mktemp("runs"))
    for name in ("digits", HOSTILE.replace("/", "")):
        arm(runs, 0.7, data={"name": name})
        arm(runs, 0.75, "vcmm", data={"name": name}, turn=1)
    return bundle.write(load(runs), tmp_path_factory.mktemp("paper"), data="watch")


def manifest(main_tex: Path) -> dict[str, dict[str, object]]:
    return json.loads((main_tex.parent / "manifest.json").read_text(encoding="utf-8"))


def test_tables_and_figures_are_there_and_taken_in(made: Path) -> None:
    home = made.parent
    taken = re.findall(r"\\input\{([^}]+)\}", made.read_text(encoding="utf-8"))
    assert {"tables/table1", "tables/ablation", "tables/cost", "tables/ranking"} <= set(taken)
    assert {"figures/heat", "figures/validation", "figures/ratio", "figures/critical"} <= set(taken)
    assert len(taken) == len(set(taken))
    for name in taken:
        text = (home / f"{name}.tex").read_text(encoding="utf-8")
        stem = Path(name).name
        assert f"\\label{{{'tab' if name.startswith('tables') else 'fig'}:{stem}}}" in text
        if name.startswith("figures"):
            assert f"{{{stem}.pdf}}" in text
            assert (home / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert {path.stem for path in (home / "tables").iterdir()} == {
        Path(name).name for name in taken if name.startswith("tables")
    }


def test_every_file_is_whole_latex(made: Path) -> None:
    files = [*made.parent.rglob("*.tex")]
    assert len(files) > 10
    for path in files:
        text = path.read_text(encoding="utf-8")
        lint(text)
        assert not SPECIAL.search(prose(text)), path


def test_the_lint_sees_what_is_wrong() -> None:
    for wrong in (r"\textbf{a", r"a}b{", r"\begin{table}\end{figure}", r"\begin{table}"):
        with pytest.raises((AssertionError, IndexError)):
            lint(wrong)
    lint(r"\{ \textbf{100\%} % a comment with {")
    assert SPECIAL.search(prose(r"\caption{multi_loss}"))
    assert not SPECIAL.search(prose(r"\caption{multi\_loss $\pm$ 1}"))


def test_names_of_data_are_words(made: Path) -> None:
    text = (made.parent / "tables" / "ranking.tex").read_text(encoding="utf-8")
    assert r"50\%\_of \textbackslash{}input\{x\}" in text


@pytest.mark.slow
@pytest.mark.skipif(TEX is None, reason="there is no pdflatex on this machine")
def test_it_compiles(made: Path, tmp_path: Path) -> None:
    home = shutil.copytree(made.parent, tmp_path / "paper")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "main.tex"]
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert (home / "main.pdf").stat().st_size > 10_000


def test_the_manifest_knows_every_run_and_file(made: Path) -> None:
    found = manifest(made)
    home = made.parent
    assert found["selection"] == "valid"
    for name, digest in found["files"].items():
        assert hashlib.sha256((home / name).read_bytes()).hexdigest() == digest
    there = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert there == {*found["files"], "manifest.json"}
    for part in (*found["tables"], *found["figures"]):
        assert part["runs"]
        assert set(part["runs"]) <= found["runs"].keys()
    table = next(one for one in found["tables"] if one["file"] == "tables/ablation.tex")
    one = found["runs"][table["runs"][0]]
    assert one["commit"] == "abc1234"
    assert one["data_hash"] == "d" * 64
    assert one["spec"]["seed"] == one["seed"]
    heat = next(one for one in found["figures"] if one["file"] == "figures/heat.tex")
    assert len(heat["runs"]) == 9 + 2 * 2 + 3  # all cells, two of them with all seeds, and joint


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    runs = load(ablated(tmp_path / "runs"))
    one = bundle.write(runs, tmp_path / "one")
    other = bundle.write(list(reversed(runs)), tmp_path / "other")
    assert manifest(one) == manifest(other)


def test_what_is_not_made_any_more_goes_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write(root)
    out = tmp_path / "paper"
    bundle.write(load(root), out)
    (out / "tables").mkdir(exist_ok=True)
    (out / "tables" / "old.tex").write_text("old", encoding="utf-8")
    (out / "mine.tex").write_text("mine", encoding="utf-8")
    outside = tmp_path / "outside.tex"
    outside.write_text("outside", encoding="utf-8")
    path = out / "manifest.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    known["files"] |= {"tables/old.tex": "", "../outside.tex": ""}
    path.write_text(json.dumps(known), encoding="utf-8")
    bundle.write(load(root), out)
    assert not (out / "tables" / "old.tex").exists()
    assert (out / "mine.tex").exists()
    assert outside.exists()
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="is no manifest of vcmm paper"):
        bundle.write(load(root), out)


@pytest.mark.slow
def test_settings_of_one_data_set_have_files_of_their_own(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "ogm", encoder={"name": "mlp"})
    made = bundle.write(load(tmp_path), tmp_path / "paper")
    names = {path.stem for path in (made.parent / "figures").glob("*.pdf")}
    assert {name.rsplit("-", 1)[1] for name in names} == {"learning", "time", "memory", "imbalance"}
    assert len({name.rsplit("-", 1)[0] for name in names}) == 2
    lint(made.read_text(encoding="utf-8"))


def test_an_oracle_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path)
    made = bundle.write(load(tmp_path), tmp_path / "paper", selection="oracle")
    assert "Epochs were chosen on the test split" in made.read_text(encoding="utf-8")


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    write(runs)
    write(runs, data={"name": "digits"})
    with pytest.raises(ValueError, match=r"several data sets.*--data: digits, watch"):
        bundle.write(load(runs), tmp_path / "paper")
    with pytest.raises(ValueError, match=r"no run on 'mosei'.*digits, watch"):
        bundle.write(load(runs), tmp_path / "paper", data="mosei")
    with pytest.raises(ValueError, match="choose from valid, last, oracle"):
        bundle.write(load(runs), tmp_path / "paper", selection="best")
    assert not (tmp_path / "paper").exists()
    for arguments, said in (
        (["--runs", str(runs)], "several data sets"),
        (["--runs", str(tmp_path / "none")], "none"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["paper", *arguments, "--out", str(tmp_path / "paper")])
        assert left.value.code == 2
        assert said in capsys.readouterr().err


def test_the_command_says_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "runs")
    arguments = ["--runs", str(tmp_path / "runs"), "--data", "watch", "--out", str(tmp_path / "p")]
    with pytest.raises(SystemExit) as left:
        main(["paper", *arguments])
    assert left.value.code == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "p" / "main.tex")
