"""Which figures of hardware a phase runs on: stated ones first, then the catalogue's."""

from collections.abc import Iterator, Mapping
from typing import Any

from allocator import catalog
from allocator.errors import CatalogError

FIGURES = {"peak_flop_per_s": None, "usd_per_chip_hour": "usd_per_chip_hour", "power_w": "tdp_w"}  # -> catalogue column
_NEEDS = {
    "chip_hours": {"peak_flop_per_s": "a chip"},
    "usd": {"peak_flop_per_s": "a chip", "usd_per_chip_hour": "a chip with a known price"},
    "energy_joule": {"peak_flop_per_s": "a chip", "power_w": "a chip with a known power"},
}


def machine_figures(hardware: Mapping[str, Any], phase: str) -> dict[str, float | None]:
    """Dense peak (FLOP/s), price (USD per chip-hour) and power (W) of a phase; None where nobody gives one.

    A phase that names its own chip takes that chip's figures, not those stated for the common one.
    Raises `CatalogError` for an unknown chip and for a dtype that it lacks.
    """
    own = hardware.get(phase)
    own = own if isinstance(own, Mapping) else {}
    chip, dtype = (own.get(key) or hardware.get(key) for key in ("chip", "dtype"))
    stated = own if own.get("chip") else {**hardware, **own}
    figures = {name: stated.get(name) for name in FIGURES}
    if isinstance(chip, str):
        record = catalog.find("hardware", chip)
        if figures["peak_flop_per_s"] is None:
            figures["peak_flop_per_s"] = catalog.dense_peak_flop_per_s(record, dtype or "bf16")
        for name, column in FIGURES.items():
            known = record.fields.get(column) if column else None
            if figures[name] is None and isinstance(known, float):
                figures[name] = known
    return figures


def missing_figures(currency: str, hardware: Mapping[str, Any], phases: list[str]) -> Iterator[str]:
    """What counting in a currency needs and nobody gives, a line a figure."""
    try:
        known = {phase: machine_figures(hardware, phase) for phase in phases}
    except CatalogError:
        return  # told by the chip's own key
    for figure, instead in _NEEDS.get(currency, {}).items():
        lacking = [phase for phase in phases if known[phase][figure] is None]
        places = ["hardware"] if len(lacking) == len(phases) else [f"hardware.{phase}" for phase in lacking]
        for place in places if lacking else ():
            yield f"{place}.{figure}: required (or {instead}), since the objective counts {currency}"
