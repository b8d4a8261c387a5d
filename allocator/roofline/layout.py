"""How a model is cut over chips."""

import math

import equinox as eqx

from allocator.errors import CatalogError
from allocator.laws.checks import is_known
from allocator.roofline.accelerator import Accelerator
from allocator.roofline.shape import Shape


class Layout(eqx.Module):
    """Degrees of parallelism; what they leave of the chips is data-parallel.

    Dense weights and KV heads are cut `tensor` ways, routed experts `expert` ways, layers into `pipeline` stages; each
    data-parallel group serves its part of the batch. Numbers may be arrays under `vmap`.
    """

    tensor: float = 1.0
    expert: float = 1.0
    pipeline: float = 1.0
    all_reduces: float = 2.0  # of a layer's activations, where tensor > 1: one after attention, one after feed-forward
    bytes_dispatch: float = 1.0  # of an activation sent to an expert (fp8)
    bytes_combine: float = 2.0  # of its answer, and of what tensor parallelism exchanges (bf16)
    hop_s: float = 0.0  # latency of handing a step to the next stage

    def data(self, chips: float) -> float:
        """Groups that serve different sequences."""
        return chips / (self.tensor * self.pipeline)

    def in_flight(self, chips: float) -> float:
        """Micro-batches at work at once: one a stage in each group."""
        return chips / self.tensor


def check(layout: Layout, shape: Shape, chips: float, chip: Accelerator) -> None:
    """Raise `CatalogError` where a layout does not divide the chips or the model; tracers pass."""
    values = {"tensor": layout.tensor, "expert": layout.expert, "pipeline": layout.pipeline, "chips": chips}
    if not all(is_known(value) for value in values.values()):
        return
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 1 and value == int(value)):
            raise CatalogError(f"roofline.{name}: got {value:g}; must be a whole number >= 1")
    stage = chips / layout.pipeline
    dimensions = shape.dimensions
    rules = (
        ("pipeline", chips % layout.pipeline == 0, f"must divide the {chips:g} chips"),
        ("tensor", stage % layout.tensor == 0, f"must divide the {stage:g} chips of a stage"),
        ("expert", stage % layout.expert == 0, f"must divide the {stage:g} chips of a stage"),
        ("pipeline", layout.pipeline <= float(dimensions.layers), f"must be <= {dimensions.layers:g} layers"),
        ("tensor", float(dimensions.query_heads) % layout.tensor == 0,
         f"must divide the model's {dimensions.query_heads:g} query heads"),
        ("expert", layout.expert == 1 or (dimensions.experts > 0 and dimensions.experts % layout.expert == 0),
         f"must divide the model's {dimensions.experts:g} experts" if dimensions.experts else "must be 1: it is dense"),
    )  # fmt: skip
    for name, holds, rule in rules:
        if not holds:
            raise CatalogError(f"roofline.{name}: got {values[name]:g}; {rule}")
