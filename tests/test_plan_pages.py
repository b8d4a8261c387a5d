"""The page of a plan in a real browser: silent, drawn, moved by its sliders to what solving says, shared, printed."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import allocator
from allocator import plan_pages
from allocator.live_planner import BOUND, LOSS_BOUND, Axis, Grid, interpolate
from allocator.scenario.reading import from_values, load, with_values

HOSTILE = "</script><img src=x onerror=alert('x')> & Co"
DECISIONS = ("n_active", "d_pretrain", "d_rl", "k")


@pytest.fixture(scope="module")
def made() -> plan_pages.Report:
    return plan_pages.report(with_values(load("lecture"), {"title": HOSTILE}), draws=64)


@pytest.fixture(scope="module")
def files(made: plan_pages.Report) -> dict[str, str | bytes]:
    return plan_pages.page_files(made, "lecture")


@pytest.fixture(scope="module")
def address(files, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(str(files["report.html"]), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def chromium(browser: Path) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=str(browser), args=options)
        yield started
        started.close()


@pytest.fixture
def opened(chromium: Any, address: str) -> Iterator[Any]:
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("dialog", lambda dialog: (page.said.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(address)
    page.wait_for_function("document.querySelectorAll('svg.marks').length === "
                           "document.querySelectorAll('[id^=chart-]').length + 1")  # fmt: skip
    yield page
    page.close()


# --- what it says ---


def test_page_is_one_small_file_with_its_tables(files, made):
    page = str(files["report.html"])
    assert len(page.encode()) < 5e6
    assert made.missing == {}
    assert {"decisions.csv", "phases.csv", "frontier.csv", "swings.csv", "intervals.csv", "laws.csv"} <= files.keys()
    assert page.count("<script>") == page.count("</script>") == 2
    text = re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL)
    assert "<img" not in text
    assert "&lt;/script&gt;" in text
    sections = "What to buy", "Rules of thumb", "What the answer hangs on", "How sure that is", "Other laws", "Warnings"
    for words in (*sections, "Assumptions", "Where this comes from", "assumed", "allocator report lecture"):
        assert words in text
    assert "default-src 'none'" in page
    for notice in made.plan.warnings:
        assert notice.code in text


def test_every_warning_comes_with_what_to_do(root: Path):
    source = "".join(path.read_text() for path in (root / "allocator/optimum").glob("*.py"))
    codes = set(re.findall(r'Notice\(\s*"(\w+)"', source)) - {"over_budget", "misses_target"}
    assert codes <= plan_pages.ADVICE.keys()


def test_numbers_of_the_page_are_the_plan_s(files, made):
    text = str(files["report.html"])
    assert made.plan.decision is not None
    for name in ("d_pretrain", "d_rl"):
        assert plan_pages.told(name, getattr(made.plan.decision, name)) in text
    assert f"{100 * made.plan.phases['rl'].share:.1f} %" in text  # pyright: ignore


# --- in a browser ---


def test_nothing_is_asked_for_and_all_is_drawn(opened: Any, address: str):
    count = "svg => svg.querySelectorAll('.role-mark path, .role-mark line, .role-mark rect').length"
    drawn = opened.evaluate(f"[...document.querySelectorAll('svg.marks')].map({count})")
    opened.wait_for_timeout(300)
    assert opened.said == []
    assert opened.asked == [address]
    assert len(drawn) == 7
    assert min(drawn) >= 2
    assert opened.title() == HOSTILE


def _slide(page: Any, name: str, place: int) -> None:
    script = """([id, place]) => {
        const slider = document.getElementById('slide-' + id);
        slider.value = place;
        slider.dispatchEvent(new Event('input'));
    }"""
    page.evaluate(script, [name, place])


def test_sliders_tell_what_solving_tells(opened: Any, made):
    """20 random settings, both modes and all laws: decisions within half a per cent, loss within 1e-4, or no plan."""
    live, rng, solved = made.live, np.random.default_rng(4), 0
    for i in range(20):
        law = live["laws"][i % len(live["laws"])]["name"]
        mode = ("free", "fixed")[i // 2 % 2]
        for slider in live["sliders"]:
            # The middle four fifths, where most settings can be served.
            place = int(rng.integers(100, 900))
            _slide(opened, slider["id"], place)
        opened.select_option("#live-law", law)
        opened.select_option("#live-mode", mode)
        told = opened.evaluate("window.livePlan")
        scenario = from_values(tomllib.loads(opened.evaluate("window.liveScenario()")))
        plan = allocator.solve(scenario, throw=False)
        if "problem" in told:
            assert plan.decision is None or "outside" in told["problem"] or "almost nothing" in told["problem"]
            continue
        solved += 1
        assert plan.decision is not None
        for name in DECISIONS:
            assert told[name] == pytest.approx(getattr(plan.decision, name), rel=BOUND)
        assert told["loss"] == pytest.approx(plan.loss, rel=LOSS_BOUND)
        shares = [phase.share for phase in plan.phases.values()]  # pyright: ignore
        assert told["shares"] == pytest.approx(shares, abs=BOUND)
    assert solved >= 12
    assert opened.said == []


def test_what_cannot_be_served_says_so(opened: Any):
    opened.select_option("#live-mode", "fixed")
    for name, place in (("budget", 0), ("traffic", 1000)):
        _slide(opened, name, place)
    assert "cannot serve" in opened.text_content("#live-verdict")
    assert opened.is_hidden("#live-figures")


def test_a_link_restores_the_sliders(opened: Any, address: str, chromium: Any):
    opened.focus("#slide-budget")
    for _ in range(30):
        opened.keyboard.press("ArrowRight")
    opened.select_option("#live-mode", "free")
    told, link = opened.evaluate("window.livePlan"), opened.url
    assert "#budget=" in link
    other = chromium.new_page()
    other.goto(link)
    assert other.evaluate("window.livePlan") == told
    other.close()
    opened.click("#live-reset")
    assert "#" not in opened.url


@pytest.mark.parametrize("nonsense", ["budget=-1", "law=%3Cb%3E", "x", "mode=side", "budget=1e99&rl=3", "%E0%A4%A"])
def test_a_link_with_nonsense_falls_back_with_a_notice(chromium: Any, address: str, nonsense: str, made):
    page = chromium.new_page()
    page.goto(f"{address}#{nonsense}")
    assert "could not be read" in page.text_content("#live-notice")
    assert page.evaluate("window.livePlan.d_pretrain") == made.plan.decision.d_pretrain
    page.close()


def test_scenario_of_the_sliders_is_the_scenario(opened: Any):
    opened.click("#live-toml")
    text = opened.text_content("#live-scenario")
    scenario = from_values(tomllib.loads(text))
    assert scenario.title == HOSTILE
    assert allocator.solve(scenario).decision.d_pretrain == pytest.approx(  # pyright: ignore
        allocator.solve(load("lecture")).decision.d_pretrain,
        rel=1e-9,  # pyright: ignore
    )


def test_keyboard_reaches_every_control(opened: Any):
    wanted = opened.evaluate("[...document.querySelectorAll('.live input, .live select, .live button')]"
                             ".filter(e => e.offsetParent).map(e => e.id)")  # fmt: skip
    reached = set()
    for _ in range(60):
        opened.keyboard.press("Tab")
        reached.add(opened.evaluate("document.activeElement.id"))
    assert set(wanted) <= reached
    assert len(wanted) >= 9


def test_narrow_screen_has_no_sideways_scroll_and_print_fits_a4(opened: Any):
    opened.set_viewport_size({"width": 390, "height": 800})
    opened.wait_for_timeout(200)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    opened.emulate_media(media="print")
    opened.set_viewport_size({"width": 718, "height": 1000})  # A4 at 96 dpi less a centimetre either side
    opened.wait_for_timeout(200)
    script = """[...document.querySelectorAll('svg.marks, table, pre')]
        .filter(e => e.getBoundingClientRect().right > 720).map(e => e.outerHTML.slice(0, 80))"""
    wide = opened.evaluate(script)
    assert wide == []
    assert opened.pdf(format="A4")[:4] == b"%PDF"


def test_axe_finds_nothing_serious(opened: Any):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(opened).response["violations"]
    grave = [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")]
    assert grave == []


# --- the grid ---


def test_interpolation_is_exact_for_quadratics_inside_and_lines_at_the_ends():
    """Cubic with central slopes reproduces a quadratic between inner points, and a line everywhere."""
    axes = (Axis("a", 0.0, 4.0, 5), Axis("b", -1.0, 1.0, 5))
    a, b = np.meshgrid(axes[0].points, axes[1].points, indexing="ij")
    values = np.stack([a**2 + 3 * a * b, 2 * a - b], axis=-1)
    grid = Grid(axes, values, {})
    inner = np.array([[1.5, 0.2], [2.9, -0.4]])
    assert interpolate(grid, inner)[:, 0] == pytest.approx(inner[:, 0] ** 2 + 3 * inner[:, 0] * inner[:, 1], rel=1e-6)
    ends = np.array([[0.3, -0.9], [3.9, 1.0]])
    assert interpolate(grid, ends)[:, 1] == pytest.approx(2 * ends[:, 0] - ends[:, 1], rel=1e-6)


@pytest.mark.parametrize("changes", [
    {"decisions.n_active": "free", "decisions.k": "free"},
    {"law.rl.unit_tokens": 1e9},
    {"objective.target_loss": 1.85, "decisions.n_active": "free"},
], ids=["k free", "pure power", "target loss"])  # fmt: skip
def test_other_scenarios_keep_the_bound(changes: dict):
    live = plan_pages.live_planner(allocator.solve(with_values(load("lecture"), changes)))
    errors = [grid["error"] for law in live["laws"] for grid in law["grids"].values()]
    assert errors
    for error in errors:
        assert error["decisions"] < BOUND
        assert error["loss"] < LOSS_BOUND
    assert json.dumps(live, allow_nan=False)


def test_rooflines_get_no_overhead_sliders():
    changes = {
        "hardware.chip": "h100-sxm", "pretraining.mfu": 0.4, "decisions.n_active": "free",
        "inference.roofline.model": "llama-3.1-70b", "inference.roofline.chips": 64.0,
        "inference.roofline.batch": 64.0, "inference.roofline.context": 4096.0, "inference.roofline.efficiency": 0.6,
    }  # fmt: skip
    live = plan_pages.live_planner(allocator.solve(with_values(load("lecture"), changes)))
    assert live["moving"]
    assert {slider["id"] for slider in live["sliders"]} == {"budget", "traffic", "days", "derate"}
