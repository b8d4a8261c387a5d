"""Write the table of errors in docs/roofline.md anew.

python scripts/roofline_errors.py
"""

from pathlib import Path

from allocator.roofline_checks import check
from allocator.roofline_report import error_table

START, END = "<!-- errors: python scripts/roofline_errors.py -->\n", "<!-- /errors -->"
PAGE = Path(__file__).parents[1] / "docs" / "roofline.md"


def with_table(text: str) -> str:
    """The page with the table that the shipped measurements give now."""
    before, rest = text.split(START)
    return f"{before}{START}{error_table(check('serving_measurements'))}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
