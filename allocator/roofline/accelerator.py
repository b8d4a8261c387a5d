"""The figures of a chip that bound a step."""

import equinox as eqx

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.catalog import Record, dense_peak_flop_per_s
from allocator.errors import CatalogError
from allocator.laws.checks import require_positive


class Accelerator(eqx.Module):
    """One chip: dense peak of the dtype in use, and high-bandwidth memory."""

    peak_flop_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float

    def __check_init__(self):
        require_positive(self, "peak_flop_per_s", "hbm_bytes", "hbm_bytes_per_s")


def accelerator(record: Record, dtype: str) -> Accelerator:
    """Build from a hardware record; raise `CatalogError` for a dtype or figure that it lacks, and for a rack."""
    if record.fields["level"] != "chip":
        raise CatalogError(f"{record.name}: is a rack; a roofline wants the chip, and the number of chips")
    peak = dense_peak_flop_per_s(record, dtype)
    figures = {name: record.fields[name] for name in ("hbm_bytes", "hbm_bytes_per_s")}
    for name, value in figures.items():
        if not isinstance(value, float):
            raise CatalogError(f"{record.name}: {name} is not known")
    return Accelerator(peak, **figures)  # pyright: ignore[reportArgumentType]
