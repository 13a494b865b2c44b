"""The page as a file: whole, self-contained, atomic, and deaf to what names in records say."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from vcmm.bench.records import load
from vcmm.bench.report import page

from ..folders import STUDY, study, write

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7919*7919}}\u2028"
VOID = {"meta", "input", "link", "img", "br", "hr"}


class Reader(HTMLParser):
    """What elements, attributes and text a page has."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        else:
            self.words.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = study(tmp_path_factory.mktemp("runs"))
    return page.write(load(root), tmp_path_factory.mktemp("report"), title="The study")


@pytest.fixture(scope="module")
def reader(made: Path) -> Reader:
    return Reader(made.read_text(encoding="utf-8"))


def test_it_is_one_file_and_the_figures_for_papers(made: Path) -> None:
    assert made.name == "index.html"
    assert sorted(os.listdir(made.parent)) == ["figures", "index.html"]
    names = {p.stem for p in (made.parent / "figures").iterdir()}
    assert names == {
        "differences",
        "imbalance",
        "learning",
        "memory",
        "momentum",
        "ratio",
        "time",
        "validation",
    }
    assert len(list((made.parent / "figures").iterdir())) == 16


def test_every_element_is_closed_and_ids_are_unique(reader: Reader) -> None:
    assert reader.open == []
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_nothing_is_fetched_from_anywhere(made: Path, reader: Reader) -> None:
    for tag, attrs in reader.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "video", "audio"}
        assert "src" not in attrs
        assert not [name for name in attrs if name.startswith("on")]
        if "href" in attrs:
            assert re.fullmatch(r"#[\w-]+|figures/[a-z0-9-]+\.(pdf|png)", attrs["href"] or "")
    rest = made.read_text(encoding="utf-8").replace(get_plotlyjs(), "")
    assert not re.search(r"https?://|//[a-z]|@import|url\(", re.sub(r"(?m)^ *//.*$", "", rest))


def test_plotly_is_embedded_exactly_once(made: Path, reader: Reader) -> None:
    assert made.read_text(encoding="utf-8").count("* plotly.js v") == 1
    assert [len(one) > 10**6 for one in reader.scripts] == [False, True, False]
    kinds = [attrs.get("type") for tag, attrs in reader.elements if tag == "script"]
    assert kinds == ["application/json", None, None]


def test_the_policy_lets_only_these_scripts_run(reader: Reader) -> None:
    (policy,) = [
        attrs["content"] or ""
        for tag, attrs in reader.elements
        if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    sums = re.findall(r"'(sha256-[^']+)'", policy)
    assert sums == [f"sha256-{page._digest(script)}" for script in reader.scripts[1:]]
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]


def test_it_says_what_the_analysis_says(reader: Reader) -> None:
    words = " ".join(" ".join(reader.words).split())
    assert "The modalities are imbalanced: accelerometer is under-trained" in words
    assert "joint + vcmm is better than joint training by 4.0 points" in words
    for text in ("70.0 ± 1.0", "[67.5, 72.5]", "+4.0", "[+3.5, +4.6]", "▲ better", "▼ worse"):
        assert text in words
    assert words.index("In short") < words.index("Results on test")
    assert "18 runs" in words


def test_oracle_never_stands_without_its_sign(reader: Reader, made: Path) -> None:
    text = made.read_text(encoding="utf-8")
    blocks = re.split(r'(?=<(?:div|figure)[^>]* data-rule=")', text)
    shown = [block for block in blocks if 'data-rule="oracle"' in block.split(">")[0]]
    assert len(shown) == 5  # recommendation and table, and four figures
    assert all("\N{WARNING SIGN} Epochs were chosen on the test split" in one for one in shown)
    others = [b for b in blocks if re.search(r'data-rule="(valid|last)"', b.split(">")[0])]
    assert len(others) == 10
    assert not any("Epochs were chosen on the test split" in one for one in others)


def test_every_run_is_named_under_the_figures(reader: Reader, made: Path) -> None:
    words = " ".join(reader.words)
    root = made.parent
    assert len(set(re.findall(r"\b[0-9a-f]{16}\b", words))) == 18, root
    assert "abc1234" in words


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(tmp_path: Path, made: Path) -> None:
    runs = load(study(tmp_path / "runs"))
    again = page.write(list(reversed(runs)), tmp_path / "report", title="The study")
    assert again.read_bytes() == made.read_bytes()


def test_names_in_records_stay_text(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, seed=seed, modalities=[HOSTILE, "b"], data={"name": HOSTILE})
        write(
            tmp_path,
            HOSTILE,
            HOSTILE,
            seed=seed,
            modalities=[HOSTILE, "b"],
            data={"name": HOSTILE},
            options={HOSTILE: HOSTILE},
        )
    made = page.write(load(tmp_path), tmp_path / "report", title=HOSTILE, paper=False)
    text = made.read_text(encoding="utf-8")
    reader = Reader(text)
    assert len(reader.scripts) == 3
    assert "img" not in {tag for tag, _ in reader.elements}
    assert not [attrs for _, attrs in reader.elements if "onerror" in attrs]
    assert "62710561" not in text  # a name is no template
    assert "<script>alert" not in text
    charts = json.loads(reader.scripts[0])
    names = {trace["meta"].get("arm") for one in charts for trace in one["data"]}
    assert f"{HOSTILE} + {HOSTILE}" in names


def test_half_a_character_does_not_stop_the_page(tmp_path: Path) -> None:
    write(tmp_path, "a\ud800b")
    text = page.write(load(tmp_path), tmp_path / "report", paper=False).read_text(encoding="utf-8")
    assert "a?b" in text


@pytest.mark.slow
def test_settings_have_sections_and_files_of_their_own(tmp_path: Path) -> None:
    for name in ("watch", "Watch!", "digits"):
        write(tmp_path, data={"name": name})
    made = page.write(load(tmp_path), tmp_path / "report")
    reader = Reader(made.read_text(encoding="utf-8"))
    sections = [attrs for tag, attrs in reader.elements if attrs.get("class") == "setting"]
    assert [attrs["id"] for attrs in sections] == ["setting-1", "setting-2", "setting-3"]
    files = {path.name for path in (made.parent / "figures").iterdir()}
    assert {"digits-learning.pdf", "watch-0-learning.pdf", "watch-2-learning.pdf"} <= files


def test_a_failure_leaves_the_page_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = load(study(tmp_path / "runs", dict(list(STUDY.items())[2:4]), seeds=1))
    made = page.write(runs, tmp_path / "report", paper=False)
    before = made.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        page.write(runs, tmp_path / "report", title="Other", paper=False)
    assert made.read_bytes() == before
    assert os.listdir(made.parent) == ["index.html"]


def test_without_figures_for_papers_nothing_speaks_of_them(tmp_path: Path) -> None:
    made = page.write(load(study(tmp_path, seeds=1)), tmp_path / "report", paper=False)
    assert "For papers" not in made.read_text(encoding="utf-8")
    assert os.listdir(made.parent) == ["index.html"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no runs to report"):
        page.write([], tmp_path)
    write(tmp_path)
    with pytest.raises(ValueError, match="selection is 'best'; choose from valid, last, oracle"):
        page.write(load(tmp_path), tmp_path / "report", selection="best")
    assert not (tmp_path / "report").exists()


def test_numbers_stay_with_their_signs() -> None:
    assert page.bound("77 % (95 % interval, Holm p < 0.001, p = 1), up = 2") == (
        "77\u00a0% (95\u00a0% interval, Holm p\u00a0<\u00a00.001, p\u00a0=\u00a01), up =\u00a02"
    )


def test_embedded_json_cannot_leave_its_element() -> None:
    value = {"</script>": ["<!--", "&lt;", "\u2028", HOSTILE]}
    text = page.embedded(value)
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == value
