"""The page of a fit: whole, silent on the network, readable on a narrow screen, and no way in for a user's text."""

import re
from pathlib import Path

import pytest
from fit_examples import HOSTILE, fitted, recipe, unfitted

from allocator import fit_pages
from allocator.fit_pages import ADVICE, page_files
from allocator.fitting.forms import FORMS
from allocator.fitting.notes import Note


@pytest.fixture(scope="module")
def files() -> dict[str, str | bytes]:
    drop = {"lowest_tokens_per_param": 2, "reason": HOSTILE}
    where = [{"column": HOSTILE, "at_least": 0, "reason": "so"}]
    made = recipe(title=HOSTILE, caution=HOSTILE, data={"path": f"{HOSTILE.replace('/', '')}.csv"}, drop=drop,
                  where=where, columns={"loss": HOSTILE})  # fmt: skip
    return page_files(fitted(), HOSTILE, made)


@pytest.fixture(scope="module")
def page(files) -> str:
    return str(files["fit.html"])


def visible(page: str) -> str:
    """The page without scripts and style."""
    return re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL)


def test_files_are_a_page_tables_and_pictures(files):
    drawn = "data_and_law", "residuals", "profiles", "bootstrap", "influence"
    tables = (
        "parameters",
        "runs",
        "profiles",
        "influence",
        "holdouts",
        "bootstrap",
        "data_and_law_points",
        "data_and_law_lines",
    )
    assert set(files) == {"fit.html", *(f"{name}.csv" for name in tables),
                          *(f"{name}.{kind}" for name in drawn for kind in ("svg", "png"))}  # fmt: skip


def test_texts_of_the_user_cannot_become_markup(page: str):
    assert page.count("<script>") == page.count("</script>") == 2
    assert "<img" not in visible(page)
    assert "alert('x')" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "&lt;script&gt;" in page


def test_page_names_nothing_outside_itself(page: str):
    text = visible(page)
    assert not re.findall(r"<[^>]*\b(?:src|href|action)\s*=", text)
    assert not re.findall(r"@import|url\(", page[: page.index("<body>")])
    assert "default-src 'none'" in page


def test_page_says_what_it_has_to(page: str):
    text = visible(page)
    for words in ("What was fitted", "Parameters", "Compute-optimal model", "Findings and what to do", "Hold-outs",
                  "Runs of most influence", "Search", "Do it again", "95% bootstrap", "95% profile", "nats/token",
                  "L0(N, D) = E + A N^-alpha + B D^-beta", "the 2 runs of fewest tokens", "allocator fit ./recipe.toml",
                  "SHA-256"):  # fmt: skip
        assert words in text
    assert "nan" not in re.sub(r"[0-9a-f]{64}", "", text).lower().split()


def test_the_same_fit_gives_the_same_page():
    def page() -> str:
        fit = unfitted.__wrapped__("chinchilla")
        tables = fit_pages.tables_of(fit, [])
        return fit_pages.page(fit, "x", recipe(), tables, fit_pages.charts_of(fit, tables, "x"))

    assert page() == page()


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_a_page_without_refits(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("allocator.charts.pictures", lambda drawn: {})
    text = visible(str(page_files(unfitted(name, 0), "x", recipe(law=name))["fit.html"]))
    assert "no intervals" in text
    assert "95% bootstrap" not in text
    assert not re.search(r"\bnan\b|\binf\b", text, re.IGNORECASE)


def test_a_shipped_fit_is_named_and_its_data_are_cited(monkeypatch: pytest.MonkeyPatch):
    from allocator.catalog import recipe_path
    from allocator.fitting import recipes

    monkeypatch.setattr("allocator.charts.pictures", lambda drawn: {})
    shipped = recipes.read(recipe_path("pythia-gsm8k"))
    text = visible(str(page_files(unfitted("pass-at-k", 0), "pythia-gsm8k", shipped)["fit.html"]))
    for words in ("<pre>allocator fit pythia-gsm8k --out pages</pre>", "arXiv 2502.17578", "Apache-2.0",
                  "because: earlier checkpoints answer by luck", "besiroglu-2024"):  # fmt: skip
        assert words in text


def test_verdict_is_one_sentence_that_follows_the_findings():
    from dataclasses import replace

    fit = unfitted("chinchilla")
    assert fit_pages.verdict(fit).startswith("The runs determine the law with no finding against it; at 5.76e+23 FLOP")
    doubtful = replace(fit, notes=(Note("weakly_identified", "so"), Note("influential_run", "so")))
    assert fit_pages.verdict(doubtful).startswith("Do not plan with the estimates alone (weakly identified)")
    milder = replace(fit, notes=(Note("influential_run", "so"),))
    assert "with the reservations below" in fit_pages.verdict(milder)


def test_every_finding_comes_with_what_to_do(root: Path):
    source = "".join(path.read_text() for path in sorted((root / "allocator/fitting").glob("*.py")))
    codes = {*re.findall(r'Note\(\s*"(\w+)"', source), "two_sizes_only", "few_levels"}
    assert codes <= ADVICE.keys()


def test_in_a_browser_nothing_is_asked_for_and_all_is_drawn(files, browser: Path, tmp_path: Path):
    sync_api = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "fit.html"
    path.write_text(str(files["fit.html"]), encoding="utf-8")
    said, asked = [], []
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        chromium = playwright.chromium.launch(executable_path=str(browser), args=options)
        page = chromium.new_page(viewport={"width": 390, "height": 800})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function("document.querySelectorAll('figure svg.marks').length === 5")
        count = "svg => svg.querySelectorAll('.role-mark path, .role-mark line').length"
        drawn = page.evaluate(f"[...document.querySelectorAll('figure svg.marks')].map({count})")
        widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        tables = page.evaluate("[...document.querySelectorAll('table.stack')].map(t => t.scrollWidth)")
        chromium.close()
    assert said == []
    assert asked == [path.as_uri()]
    assert min(drawn) >= 10
    assert widths[0] <= widths[1] == 390
    assert max(tables) <= 390
