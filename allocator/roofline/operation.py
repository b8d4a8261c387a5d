"""How a phase is run on chips: layout-free figures that one sets by hand."""

import equinox as eqx

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.errors import CatalogError
from allocator.laws.checks import require_positive
from allocator.roofline.accelerator import Accelerator

USABLE_MEMORY = 0.9  # of HBM, after activations and reserve; assumed


class Operation(eqx.Module):
    """So many chips at a batch and a context, with the efficiencies that the ideal roofline leaves out.

    The ideal bound has both efficiencies at 1; measured serving reaches about 0.67 of memory bandwidth and 0.43 of
    compute, dense pre-training 0.36 to 0.48 of compute.
    """

    chip: Accelerator
    chips: float
    batch: float  # sequences in a step
    context: float  # tokens that a decoded token sees; length of a prompt or of a training sequence
    bytes_per_weight: float
    bytes_per_kv_element: float
    compute_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    usable_memory: float = USABLE_MEMORY
    layer_latency_s: float = 0.0  # fixed time of a layer, whatever its size

    def __check_init__(self):
        names = ("chips", "batch", "context", "bytes_per_weight", "bytes_per_kv_element")
        require_positive(self, *names, "compute_efficiency", "memory_efficiency", "usable_memory")
        for name in ("compute_efficiency", "memory_efficiency", "usable_memory"):
            value = getattr(self, name)
            if isinstance(value, float) and value > 1:
                raise CatalogError(f"roofline.{name}: got {value:g}; must be <= 1")
