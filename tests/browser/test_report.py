"""The page in a real browser: it draws, sorts, hides, follows the theme, and runs nothing it reads.

Chromium is the one of the machine. Where there is none the tests are skipped, except in CI, which
installs it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.folders import STUDY, study, write
from bench.report.studies import ablated, arm
from playwright.sync_api import Browser, Page, sync_playwright

from vcmm.bench.records import load
from vcmm.bench.report import page as report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ALERT = "<script>alert(1)</script>"
DATA = "<script>alert(1)"  # a slash would make it a path, of which the last part is shown
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = "html[data-ready]"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and not os.environ.get("CI"),
        reason="there is no Chromium on this machine: apt-get install chromium",
    ),
]


class Visit:
    """A page that is open, and all that the browser said about it."""

    def __init__(self, browser: Browser, path: Path, **options: object) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dialog)
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(READY, timeout=60_000)

    def _console(self, message: object) -> None:
        self.complaints.append(message.text)

    def _dialog(self, dialog: object) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def redrawn(self, action: str, selector: str) -> None:
        """Do something that draws anew, and wait until that is done."""
        getattr(self.page, action)(selector)
        self.page.wait_for_selector(READY, timeout=60_000)

    def column(self, key: str) -> list[str]:
        """What a column of the visible table shows, from top to bottom."""
        cells = self.page.locator(f'table.results td[data-column="{key}"] .value:visible')
        return cells.all_inner_texts()

    def traces(self) -> int:
        """How many traces of the visible charts are drawn."""
        script = """() => [...document.querySelectorAll('.chart')]
            .filter((plot) => plot.offsetParent !== null)
            .flatMap((plot) => plot.data).filter((trace) => trace.visible).length"""
        return self.page.evaluate(script)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "CI must install Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = study(tmp_path_factory.mktemp("runs"))
    return report.write(load(root), tmp_path_factory.mktemp("report"), paper=False)


@pytest.fixture
def visit(browser: Browser, path: Path) -> Iterator[Visit]:
    found = Visit(browser, path, color_scheme="light")
    yield found
    found.context.close()
    assert found.complaints == []
    assert found.dialogs == []


def test_it_opens_without_a_word_and_without_the_network(visit: Visit, path: Path) -> None:
    assert visit.requests == [path.as_uri()]
    assert visit.complaints == []


def test_every_visible_figure_is_drawn(visit: Visit) -> None:
    plots = visit.page.locator(".chart:visible")
    # Differences, imbalance, three learning curves, two each of validation, beta and Q/R, time and
    # memory.
    assert plots.count() == 13
    for index in range(plots.count()):
        plot = plots.nth(index)
        assert plot.locator(".main-svg").count() >= 1
        assert plot.locator(".trace").count() >= 1
        box = plot.locator(".main-svg").first.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 150
    assert visit.page.locator(".chart:not(:visible) .main-svg").count() == 0


def test_an_arm_has_one_colour_in_all_figures(visit: Visit) -> None:
    script = """() => [...document.querySelectorAll('.chart')]
        .filter((plot) => plot.offsetParent !== null)
        .flatMap((plot) => plot.data).filter((trace) => trace.meta.arm === 'joint + vcmm')
        .map((trace) => trace.fillcolor || (trace.line || trace.marker).color)"""
    colours = visit.page.evaluate(script)
    assert len(colours) > 10
    assert len(set(colours)) == 1
    assert colours[0].startswith("#")


def test_the_table_sorts_by_number_and_says_so(visit: Visit) -> None:
    table = visit.page.locator("table.results:visible")
    head = table.locator('th[data-column="accuracy"]')
    assert head.get_attribute("aria-sort") == "none"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    falling = [float(text.split()[0]) for text in visit.column("accuracy")]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] == 76.3
    head.locator("button").press("Enter")  # with the keyboard too
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(text.split()[0]) for text in visit.column("accuracy")] == falling[::-1]
    table.locator("th.arm[aria-sort] button").click()
    assert head.get_attribute("aria-sort") == "none"
    names = table.locator("tbody th.arm").all_inner_texts()
    assert names == sorted(names)
    assert names[0] == "ensemble"


def test_what_has_no_value_sorts_last_in_both_directions(visit: Visit) -> None:
    head = visit.page.locator('table.results:visible th[data-column="p"] button')
    for _ in range(2):
        head.click()
        assert visit.column("p")[-1] == "–"


def test_rows_hide_and_come_back(visit: Visit) -> None:
    rows = visit.page.locator("table.results:visible tbody tr:visible")
    assert rows.count() == len(STUDY)
    visit.page.get_by_role("button", name="Hide ensemble").click()
    assert rows.count() == len(STUDY) - 1
    back = visit.page.get_by_role("button", name="Show all rows (1 hidden)")
    back.click()
    assert rows.count() == len(STUDY)
    assert not back.is_visible()


def test_columns_hide_and_show(visit: Visit) -> None:
    assert visit.column("map") != []
    assert visit.column("forwards") == []
    visit.page.locator(".columns summary:visible").click()
    visit.page.locator('.choices:visible [data-column="map"]').uncheck()
    visit.page.locator('.choices:visible [data-column="forwards"]').check()
    assert visit.column("map") == []
    assert visit.column("forwards") == ["1"] * len(STUDY)
    visit.redrawn("check", 'input[value="last"]')  # and stay so under another rule
    assert visit.column("map") == []
    assert visit.column("forwards") == ["1"] * len(STUDY)


def test_chips_take_arms_out_of_the_figures(visit: Visit) -> None:
    before = visit.traces()
    chip = visit.page.get_by_role("button", name="multi_loss", exact=True)
    visit.redrawn("click", '.chip[data-arm="multi_loss"]')
    assert chip.get_attribute("aria-pressed") == "false"
    assert 0 < visit.traces() < before
    visit.redrawn("click", ".chips .none")
    assert visit.traces() == 3  # the bars, which are measures and no arms
    visit.redrawn("click", ".chips .all")
    assert visit.traces() == before


def test_the_picker_changes_the_numbers(browser: Browser, tmp_path: Path) -> None:
    for seed in range(2):
        shift = 0.01 * seed
        test = [0.4 + shift, 0.9 + shift, 0.6 + shift]
        write(tmp_path, seed=seed, test=test, valid=[0.8, 0.5, 0.7], epochs=3)
    path = report.write(load(tmp_path), tmp_path / "report", selection="last", paper=False)
    visit = Visit(browser, path)
    sign = visit.page.locator(".warning:visible")
    shown: dict[str, tuple[str, int]] = {}
    assert visit.page.locator('input[value="last"]').is_checked()
    for rule in ("last", "valid", "oracle"):
        if rule != "last":
            visit.redrawn("check", f'input[value="{rule}"]')
        shown[rule] = (visit.column("accuracy")[0][:4], sign.count())
        assert visit.page.locator(".chart:visible .main-svg").count() > 0
    assert shown["last"] == ("60.5", 0)
    assert shown["valid"] == ("40.5", 0)
    assert shown["oracle"][0] == "90.5"
    assert shown["oracle"][1] > 1  # over the recommendation, and over every figure it changes
    assert "\N{WARNING SIGN}" in sign.first.inner_text()
    assert visit.complaints == []
    visit.context.close()


def look(visit: Visit) -> tuple[str, str]:
    script = """() => [getComputedStyle(document.body).backgroundColor,
        document.querySelector('.chart text').style.fill]"""
    page, words = visit.page.evaluate(script)
    return page, words


def test_dark_and_light_change_page_and_figures(visit: Visit) -> None:
    light = look(visit)
    visit.redrawn("click", "#theme")  # from auto to light
    assert look(visit) == light
    visit.redrawn("click", "#theme")
    dark = look(visit)
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    visit.page.reload()
    visit.page.wait_for_selector(READY, timeout=60_000)
    assert look(visit) == dark  # it is remembered
    visit.redrawn("click", "#theme")
    assert look(visit) == light


def test_dark_systems_get_a_dark_page(browser: Browser, path: Path, visit: Visit) -> None:
    dark = Visit(browser, path, color_scheme="dark")
    assert look(dark)[0] != look(visit)[0]
    assert look(dark)[1] != look(visit)[1]
    dark.page.emulate_media(color_scheme="light")
    for _ in range(200):  # the page hears of it by an event
        if look(dark) == look(visit):
            break
        dark.page.wait_for_timeout(50)
    assert look(dark) == look(visit)
    assert dark.complaints == []
    dark.context.close()


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_is_wider_than_the_window(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 800})
    visit.page.wait_for_timeout(300)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    for plot in visit.page.locator(".chart:visible").all():
        box = plot.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width


def test_drawing_moves_nothing(browser: Browser, path: Path) -> None:
    """The browser's own measure of how far things jumped."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(
        """window.jumps = 0;
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) window.jumps += entry.value;
        }).observe({ type: "layout-shift", buffered: true });"""
    )
    page.goto(path.as_uri())
    page.wait_for_selector(READY, timeout=60_000)
    page.wait_for_timeout(200)
    assert page.evaluate("window.jumps") < 0.02
    context.close()


def test_names_in_records_stay_text(browser: Browser, tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, seed=seed, modalities=[ALERT, "b"], data={"name": DATA})
        write(tmp_path, f"unimodal:{ALERT}", seed=seed, test=0.6, data={"name": DATA})
        write(tmp_path, ALERT, "vcmm", seed=seed, modalities=[ALERT, "b"], data={"name": DATA})
    path = report.write(load(tmp_path), tmp_path / "report", title=ALERT, paper=False)
    visit = Visit(browser, path)
    assert visit.page.title() == ALERT
    assert visit.page.locator("h2").inner_text() == DATA
    assert visit.page.locator("table.results:visible tbody").inner_text().count(ALERT) == 2
    assert visit.page.locator(".panel h4", has_text=ALERT).count() > 0
    # On the axes of plotly, which reads HTML in its text.
    ticks = visit.page.locator(".chart:visible .ytick text, .chart:visible .xtick text")
    assert ALERT in ticks.all_inner_texts() or ALERT in ticks.all_text_contents()
    names = visit.page.evaluate(
        "[...document.querySelectorAll('.chart')].flatMap((p) => p.data || []).map((t) => t.name)"
    )
    assert ALERT not in names  # escaped, so that hovering shows it as text too
    plot = visit.page.locator(".chart:visible").nth(2)
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    for share in (0.3, 0.5, 0.7, 0.98):
        visit.page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.15 * box["height"])
        visit.page.wait_for_timeout(80)
    assert visit.page.locator("script").count() == 3
    assert (visit.dialogs, visit.complaints) == ([], [])
    visit.context.close()


def test_the_policy_stops_a_script_that_got_in(visit: Visit) -> None:
    """Were escaping to fail, the browser would still refuse."""
    visit.page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.reached = true";
          document.body.append(script);
        }"""
    )
    assert visit.page.evaluate("window.reached") is None
    (complaint,) = visit.complaints
    assert "Content Security Policy" in complaint
    visit.complaints.clear()


def test_paper_is_light(visit: Visit) -> None:
    for _ in range(2):
        visit.redrawn("click", "#theme")
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"
    visit.page.pdf()
    visit.page.wait_for_selector(READY, timeout=60_000)
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_maps_marks_and_ranks_are_drawn(browser: Browser, tmp_path: Path) -> None:
    """What only the suites of the paper leave: a grid, a recorder, several data sets."""
    runs = ablated(tmp_path / "runs")
    arm(runs, 0.76, "vcmm", control={"encoder_every": 2}, seeds=(0,))
    for controller in ("none", "vcmm"):
        arm(runs, 0.7, controller, data={"name": "digits"}, turn=len(controller))
    path = report.write(load(runs), tmp_path / "report", paper=False)
    visit = Visit(browser, path, color_scheme="dark")
    cells = visit.page.locator(".heatmaplayer text")
    assert cells.count() == 9
    assert visit.page.locator(".heatmaplayer").is_visible()
    frame = visit.page.locator(".shapelayer path")
    assert frame.count() == 1
    assert "none" not in (frame.get_attribute("style") or "").split("stroke:")[1].split(";")[0]
    for title in ("Probe against encoder", "Ranks over all data sets"):
        figure = visit.page.locator("figure:visible", has=visit.page.get_by_text(title, exact=True))
        assert figure.locator(".scatterlayer .point:visible").count() > 1
    before = visit.traces()
    visit.redrawn("click", ".chips .none >> nth=0")  # the ranks are of no setting, and stay
    assert 0 < visit.traces() < before
    visit.context.close()
    assert visit.complaints == []
