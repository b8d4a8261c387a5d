"""The figures of a chip that bound a step."""

import math

import equinox as eqx

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.catalog import PEAKS, Record, dense_peak_flop_per_s
from allocator.errors import CatalogError
from allocator.laws.checks import require_positive

# Weights that a chip cannot multiply as they are go to the next wider type that it has.
WIDER = {"fp4": "fp8"}


class Accelerator(eqx.Module):
    """One chip: dense peak of the dtype in use, high-bandwidth memory, and its links, per chip and direction."""

    peak_flop_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    scale_up_chips: float = 1.0  # chips that the fast links connect
    scale_up_bytes_per_s: float = math.inf
    scale_out_bytes_per_s: float = math.inf
    usd_per_chip_hour: float = math.nan  # unknown
    power_w: float = math.nan

    def __check_init__(self):
        require_positive(self, "peak_flop_per_s", "hbm_bytes", "hbm_bytes_per_s", "scale_up_chips")


def accelerator(record: Record, dtype: str) -> Accelerator:
    """Build from a hardware record; raise `CatalogError` for a dtype or figure that it lacks, and for a rack."""
    if record.fields["level"] != "chip":
        raise CatalogError(f"{record.name}: is a rack; a roofline wants the chip, and the number of chips")
    peak = dense_peak_flop_per_s(record, dtype)
    figures = {name: record.fields[name] for name in ("hbm_bytes", "hbm_bytes_per_s")}
    for name, value in figures.items():
        if not isinstance(value, float):
            raise CatalogError(f"{record.name}: {name} is not known")
    # A link that is not on record is NaN, and so is what crosses it.
    links = {
        name: record.fields.get(name) for name in ("scale_up_chips", "scale_up_bytes_per_s", "scale_out_bytes_per_s")
    }
    links = {name: value if isinstance(value, float) else math.nan for name, value in links.items()}
    links["scale_up_chips"] = 1.0 if math.isnan(links["scale_up_chips"]) else links["scale_up_chips"]
    prices = {"usd_per_chip_hour": record.fields.get("usd_per_chip_hour"), "power_w": record.fields.get("tdp_w")}
    known = {name: value for name, value in prices.items() if isinstance(value, float)}
    return Accelerator(peak, **figures, **links, **known)


def multiplied_in(record: Record, weights: str) -> str:
    """The dtype in which a chip multiplies weights of a dtype: its own, or the next wider where the chip lacks that."""
    wider = WIDER.get(weights, weights)
    return weights if wider == weights or _has(record, weights) or not _has(record, wider) else wider


def _has(record: Record, dtype: str) -> bool:
    return isinstance(record.fields.get(PEAKS[dtype]), float)
