"""Tables for a terminal."""

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """A table without lines: the first column to the left, numbers to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        made.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return made
