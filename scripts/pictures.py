"""Make the pictures of README and docs from the code.

    python scripts/pictures.py

Takes a Chromium on the PATH and playwright (extra `test`). Beside the pictures goes pictures.json, the numbers that
they show, which a test compares with today's.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import allocator
from allocator import decision_charts, frontiers, plan_pages
from allocator.charts import pictures
from allocator.decision_report import about
from allocator.frontiers import released_models

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, HEIGHT = 1100, 1010
DEMANDS = [float(f"{part}e{power}") for power in range(12, 16) for part in (1, 2, 5)] + [1e16]


def shown() -> dict[str, Any]:
    """The numbers behind the pictures, to six digits."""
    plan = allocator.solve(allocator.load("lecture"))
    assert plan.decision is not None
    assert plan.phases is not None
    numbers = {name: getattr(plan.decision, name) for name in ("n_active", "d_pretrain", "d_rl", "k")}
    numbers |= {"loss": plan.loss} | {f"share_{name}": phase.share for name, phase in plan.phases.items()}
    found = frontiers.overtraining_by_demand(allocator.load("lecture-free"), DEMANDS)
    told = {name: [float(f"{x:.6g}") for x in plans.tokens_per_param] for name, plans in found.plans.items()}
    return {"report": {name: float(f"{x:.6g}") for name, x in numbers.items()}, "demand": told}


def main() -> None:
    from playwright.sync_api import sync_playwright

    scenario = allocator.load("lecture")
    made = plan_pages.report(scenario)
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = Path(folder) / "report.html"
        page_path.write_text(plan_pages.page(made, "lecture"), encoding="utf-8")
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(page_path.as_uri())
        page.wait_for_function("document.querySelectorAll('svg.marks').length > 5")
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / "report.png")
        chromium.close()
    free = allocator.load("lecture-free")
    found = frontiers.overtraining_by_demand(free, DEMANDS)
    chart = decision_charts.overtraining_by_demand(found.to_frame(), released_models(), about(allocator.solve(free)))
    (IMAGES / "demand.svg").write_text(str(pictures({"demand": chart})["demand.svg"]), encoding="utf-8")
    (IMAGES / "pictures.json").write_text(json.dumps(shown(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
