"""Price steps at a context: what a list charges beyond a length of prompt against below it."""

from typing import NamedTuple

from allocator.catalog import table


class PriceStep(NamedTuple):
    """One model's step at one date; ratios are above over below."""

    model: str
    date: str
    context: float  # tokens
    input_ratio: float
    output_ratio: float
    output_over_input: float  # of the base price


def price_steps(*, service_tier: str = "standard") -> tuple[PriceStep, ...]:
    """All steps of the table of API prices that list both prices on both sides."""
    listed = [row.fields for row in table("api_prices") if row.fields["service_tier"] == service_tier]
    base = {(row["model"], row["snapshot_date"]): row for row in listed if row["context_above_tokens"] is None}
    steps = []
    for row in listed:
        key = row["model"], row["snapshot_date"]
        if row["context_above_tokens"] is None or key not in base:
            continue
        columns = ("input_usd_per_mtok", "output_usd_per_mtok")
        below, above = ([side[column] for column in columns] for side in (base[key], row))
        if all(isinstance(price, float) and price > 0 for price in (*below, *above)):
            ratios = [high / low for high, low in zip(above, below, strict=True)]  # pyright: ignore
            steps.append(PriceStep(*key, row["context_above_tokens"], *ratios, below[1] / below[0]))  # pyright: ignore
    return tuple(steps)
