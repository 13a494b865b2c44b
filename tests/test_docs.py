"""What the README and the documentation say: their code runs, their links lead somewhere."""

import ast
import functools
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import vcmm
from vcmm import momentum

ROOT = Path(__file__).parents[1]
README, GUIDE, PAPER = ROOT / "README.md", ROOT / "docs" / "guide.md", ROOT / "docs" / "paper.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    """(line number of the first line, code) of every fenced block in this language."""
    found, start = [], None
    lines = page.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if start is None and line == f"```{language}":
            start = number + 1
        elif start is not None and line == "```":
            found.append((start, lines[start - 1 : number - 1]))
            start = None
    assert start is None, f"{page.name}: the block at line {start} has no end"
    return found


def execute(page, start, lines, namespace):
    """Errors and tracebacks show the page's own line numbers."""
    source = "\n" * (start - 1) + "\n".join(lines)
    exec(compile(source, str(page), "exec"), namespace)


# What the pages suppose that their reader has


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.video = nn.Sequential(nn.Linear(9, 24), nn.LayerNorm(24), nn.ReLU())
        self.audio_head, self.video_head = nn.Linear(16, 10), nn.Linear(24, 10)


class MyAdam(torch.optim.Optimizer):
    """A class that vcmm does not know."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999)):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            a, b = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                state["m"].lerp_(p.grad, 1 - a)
                state["v"].lerp_(p.grad**2, 1 - b)
                m, v = state["m"] / (1 - a ** state["step"]), state["v"] / (1 - b ** state["step"])
                p.addcdiv_(m, v.sqrt() + 1e-8, value=-group["lr"])


@pytest.fixture
def namespace(tmp_path, monkeypatch):
    # The C++ compiler of torch.compile's own backend takes a minute, and need not be there.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    # Some blocks teach the library a class.
    monkeypatch.setattr(momentum, "_BINDINGS", dict(momentum._BINDINGS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Model()
        loader = [
            (torch.randn(16, 6), torch.randn(16, 9), torch.randint(10, (16,))) for _ in range(8)
        ]
        audio, video, target = loader[0]
        h_a, h_v = model.audio(audio), model.video(video)
        z_a, z_v = model.audio_head(h_a), model.video_head(h_v)
        yield {
            "model": model,
            "loader": loader,
            "target": target,
            "h_a": h_a,
            "h_v": h_v,
            "z_a": z_a,
            "z_v": z_v,
            "loss": nn.functional.cross_entropy((z_a + z_v) / 2, target),
            "class_weights": torch.rand(10) + 0.5,
            "width_a": 16,
            "width_v": 24,
            "fusion": nn.Bilinear(16, 24, 10),
            "path": tmp_path / "run.pt",
            "folder": tmp_path / "run",
            "MyAdam": MyAdam,
        }
    torch.compiler.reset()


def test_readme_shows_no_code_that_is_not_run():
    text = README.read_text("utf-8")
    assert re.findall(r"^```(\w*)$", text, re.MULTILINE) == ["diff", "", "", ""]


def test_readme_diff_applies_and_runs(namespace):
    ((start, lines),) = blocks(README, "diff")
    assert {line[:1] for line in lines} <= {"+", "-", " ", ""}
    execute(README, start, [line[1:] if line[:1] != "-" else "" for line in lines], namespace)
    metrics = namespace["vcmm"].metrics()
    assert metrics["audio/beta"] == metrics["video/beta"] == pytest.approx(0.9)  # the first step
    assert metrics["audio/R"] > 0
    assert metrics["video/R"] > 0
    assert metrics["audio/unmeasured"] == metrics["video/unmeasured"] == 0
    assert namespace["optimizer"].param_groups[-1]["params"]  # the heads are shared here


def test_index_shows_the_diff_of_the_readme():
    index = ROOT / "docs" / "index.md"
    assert [lines for _, lines in blocks(index, "diff")] == [
        lines for _, lines in blocks(README, "diff")
    ]


def test_guide_runs_from_top_to_bottom(namespace, capsys):
    code = blocks(GUIDE, "python")
    assert len(code) > 15
    start, lines = code[0]
    execute(GUIDE, start, lines, namespace)
    betas = namespace["vcmm"].betas
    assert min(betas.values()) < 0.9 < max(betas.values())

    documented = GUIDE.read_text("utf-8")
    for name in namespace["vcmm"].metrics():
        assert f"`{name.replace('video/', 'audio/')}`" in documented

    for start, lines in code[1:]:
        namespace["model"].zero_grad()  # left by another section's training
        execute(GUIDE, start, lines, namespace)
    assert "audio/rho" in capsys.readouterr().out
    assert namespace["folder"].is_dir()
    assert type(namespace["optimizer"]) is MyAdam


def test_guide_shows_the_policy_of_the_example():
    example = (ROOT / "examples" / "policy.py").read_text("utf-8")
    (shown,) = [
        "\n".join(lines) for _, lines in blocks(GUIDE, "python") if "class NoiseShare" in str(lines)
    ]
    shown = shown[shown.index("class NoiseShare") :]
    assert shown in example
    body = ast.parse(shown).body[0]
    update = body.body[-1]
    assert update.name == "update"
    assert update.end_lineno - body.lineno < 13


# Links


def anchors(page):
    """As GitHub and MyST make them of headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if (
            not target.exists()
            or not target.is_relative_to(ROOT)
            or (anchor and anchor not in anchors(target))
        ):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    toctree = index.split("```{toctree}")[1].split("```")[0].split("\n\n")[1].split()
    assert {f"{name}.md" for name in toctree} == {page.name for page in PAGES[1:]} - {"index.md"}


def test_readme_claims_link_to_a_test():
    """Every row of the tables of what is supported names who shows it."""
    text = README.read_text("utf-8")
    section = text.split("## What is supported")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    claims = [row for row in rows if not row.endswith("| shown by |")]
    assert len(claims) > 20
    assert [row for row in claims if not re.search(r"\]\(tests/[\w/]+\.py\) \|$", row)] == []


# Names


def test_api_documents_exactly_the_public_names():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    named = re.findall(r"^\.\. auto(?:class|function):: vcmm\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(vcmm.__all__)


def test_readme_names_every_optimizer_that_is_bound_or_refused():
    rows = [line for line in README.read_text("utf-8").splitlines() if "(tests/test_" in line]
    for classes, word in ((momentum._BINDINGS, "exact|Muon"), (momentum._REFUSED, "refused")):
        for kind in classes:
            if not kind.__module__.startswith("torch."):  # registered by somebody else
                continue
            named = [row for row in rows if re.search(rf"^\|[^|]*\b{kind.__name__}\b", row)]
            assert any(re.search(word, row) for row in named), kind


def defined(path):
    """Names of functions and classes, and of methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef)
            }
    return names


def test_map_of_the_paper_names_functions_that_are_there():
    sections = PAPER.read_text("utf-8").split("\n## ")[1:]
    mapped = [section for section in sections if "| equation | function |" in section]
    assert len(mapped) == 4
    for section in mapped:
        files = re.findall(r"\(\.\./(src/vcmm/\w+\.py)\)", section)
        there = set().union(*(defined(ROOT / file) for file in files))
        rows = re.findall(r"^\| .* \| (.*) \|$", section, re.MULTILINE)
        named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
        assert named
        assert named <= there


# The picture


def test_picture_can_be_drawn_anew():
    make = runpy.run_path(str(ROOT / "docs" / "images" / "make.py"))
    steps = [{"audio": 0.9 + n / 1000, "video": 0.9 - n / 1000} for n in range(40)]
    drawn = ElementTree.fromstring(make["draw"](steps))
    lines = [
        line for line in drawn if line.tag.endswith("polyline") and "stroke-width" in line.attrib
    ]
    heights = [
        [float(point.split(",")[1]) for point in line.get("points").split()] for line in lines
    ]
    assert [len(points) for points in heights] == [40, 40]
    audio, video = heights
    assert audio[0] == video[0]
    assert audio[-1] < video[-1]  # higher up is nearer to 1
    with pytest.raises(ValueError, match="leave the axis"):
        make["draw"]([{"audio": 0.7, "video": 0.9}])

    committed = ElementTree.parse(ROOT / "docs" / "images" / "betas.svg").getroot()
    assert [child.tag for child in committed] == [child.tag for child in drawn]
