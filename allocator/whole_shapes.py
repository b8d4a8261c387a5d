"""Model shapes that can be built: whole layers, widths that tile a chip's matrix units, heads that share a cache."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from allocator import catalog
from allocator.errors import AllocatorError
from allocator.roofline.architecture import Architecture, architecture

MULTIPLE = 128  # of widths: what matrix units take at once
HEADS_TOGETHER = 8  # of heads that share no cache: a multiple that tensor parallelism divides
MOST_LAYERS = 4096
FIRST_DENSE = 4  # up to so many layers without experts are the first ones, and stay; more are a pattern, and grow


@dataclass(frozen=True)
class WholeShape:
    """One shape of a model's family; `n_active` counts its parameters, embeddings included."""

    family: str
    layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_ff: int  # of a dense feed-forward part; 0 where all layers have experts
    d_expert: int  # of one expert; 0 for a dense model
    n_active: float

    def __str__(self) -> str:
        widths = f"d_ff {self.d_ff:,}" if self.d_expert == 0 else f"experts of {self.d_expert:,}"
        return f"{self.layers} layers x {self.d_model:,}, {self.n_heads} heads, {widths}"


def nearest_shapes(model: str, n_active: float, *, multiple: int = MULTIPLE) -> tuple[WholeShape, ...]:
    """Shapes of a catalogued model's family just below and just above a size, nearest first.

    Layers, width and heads grow as N^(1/3), as in `ShapeFamily`; the width is rounded both ways to `multiple`, and at
    each width the layers are whole numbers on either side of the size. Head dimension, KV heads, expert counts and
    latent ranks stay; KV heads grow with the heads where each head has its own. Raises `CatalogError` for a model that
    is not known or whose parameters its dimensions do not make, `AllocatorError` for a wrong multiple.
    """
    if isinstance(multiple, bool) or not isinstance(multiple, int) or not 1 <= multiple <= 65536:
        raise AllocatorError(f"multiple: got {multiple!r}; must be a whole number from 1 to 65536, such as 128 or 256")
    record = catalog.find("models", model)
    reference = architecture(record)
    third = (n_active / float(reference.n_active)) ** (1 / 3)
    widths = {max(around(reference.d_model * third / multiple), 1) * multiple for around in (math.floor, math.ceil)}
    found = {shape for width in widths for shape in _on_either_side(record.name, reference, width, multiple, n_active)}
    return tuple(sorted(found, key=lambda shape: (abs(math.log(shape.n_active / n_active)), shape.d_model)))


def _on_either_side(
    name: str, reference: Architecture, width: int, multiple: int, n_active: float
) -> tuple[WholeShape, ...]:
    """The deepest shape of a width that is not above a size, and the next one."""
    low, high = 0, 1
    while high < MOST_LAYERS and _size(reference, width, multiple, high) <= n_active:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _size(reference, width, multiple, middle) <= n_active else (low, middle)
    return tuple(_told(name, reference, width, multiple, layers) for layers in (low, high) if layers >= 1)


def _size(reference: Architecture, width: int, multiple: int, layers: int) -> float:
    return float(resized(reference, width, multiple, layers).n_active)


def resized(reference: Architecture, width: int, multiple: int, layers: int) -> Architecture:
    """An architecture of the same proportions at a whole width and depth."""
    ratio = width / reference.d_model

    def widened(value: float) -> float:
        return 0.0 if value == 0 else max(round(value * ratio / multiple), 1) * multiple

    own_cache = reference.n_kv_heads == reference.n_heads
    together = HEADS_TOGETHER if own_cache else int(reference.n_kv_heads)
    heads = max(round(reference.n_heads * ratio / together), 1) * together
    dense = reference.layers - reference.moe_layers
    moe = reference.moe_layers
    if moe > 0:
        moe = max(layers - dense, 0) if dense <= FIRST_DENSE else round(layers * moe / reference.layers)
    return dataclasses.replace(
        reference,
        layers=float(layers),
        d_model=float(width),
        n_heads=float(heads),
        n_kv_heads=float(heads) if own_cache else reference.n_kv_heads,
        d_ff=float(widened(reference.d_ff)),
        moe_layers=float(moe),
        d_expert=float(widened(reference.d_expert)),
        window_layers=float(round(layers * reference.window_layers / reference.layers)),
    )


def _told(name: str, reference: Architecture, width: int, multiple: int, layers: int) -> WholeShape:
    built = resized(reference, width, multiple, layers)
    counts = (built.n_heads, built.n_kv_heads, built.d_ff, built.d_expert)
    return WholeShape(
        name, layers, width, *(int(count) for count in counts), n_active=float(np.asarray(built.n_active))
    )
