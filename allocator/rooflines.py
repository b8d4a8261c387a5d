"""The roofline of a catalogued model on catalogued chips, by name."""

import math
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp

from allocator import catalog
from allocator.errors import CatalogError
from allocator.outputs import finite
from allocator.precision import require_float64
from allocator.roofline import crossovers
from allocator.roofline.accelerator import accelerator
from allocator.roofline.calibration import SERVING
from allocator.roofline.layout import Layout, check
from allocator.roofline.memory import (
    cache_bytes_per_chip,
    free_bytes,
    largest_batch,
    largest_context,
    weight_bytes_per_chip,
)
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_step
from allocator.roofline.shape import WEIGHT_BYTES, Shape, shape
from allocator.roofline.step import TERMS, StepTime, decode_step
from allocator.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    import pandas as pd

USABLE_MEMORY = 0.9  # of HBM, the rest for activations and reserve; assumed


@dataclass(frozen=True)
class Roofline:
    """Times, throughput, memory and cost of decode at one operating point, with the prefill of its prompts.

    Step times are the bound (everything overlaps, full efficiency); `expected_step_s` is what measured serving would
    lead one to expect, within `band`.
    """

    hardware: str
    model: str
    dtype: str
    kv_dtype: str
    shape: Shape = field(repr=False)
    operation: Operation = field(repr=False)
    layout: Layout
    decode: StepTime = field(repr=False)
    prefill: StepTime = field(repr=False)
    prompt: float
    max_batch: int
    max_context: int
    warnings: tuple[dict[str, Any], ...] = ()

    @property
    def step_time_s(self) -> float:
        """Bound of a decode step, which is the TPOT."""
        return float(self.decode.step_s)

    @property
    def binding(self) -> str:
        """The term that binds decode: memory, compute or network."""
        return self.decode.binding()

    @property
    def mfu(self) -> float:
        """MFU of decode at the bound, of the dense peak of `dtype`."""
        op = self.operation
        flop = 2 * float(self.shape.n_compute) * op.batch
        return flop / (op.chips * op.chip.peak_flop_per_s * self.step_time_s)

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Output tokens per second and chip at the bound."""
        return self.operation.batch / self.step_time_s / self.operation.chips

    @property
    def usd_per_mtok(self) -> float:
        """USD per million output tokens at the bound; NaN where the chip's price is unknown."""
        return self.operation.chip.usd_per_chip_hour / SECONDS_PER_HOUR / self.tokens_per_s_per_chip * 1e6

    @property
    def usd_per_mtok_prompt(self) -> float:
        """USD per million prompt tokens at the bound."""
        prompts = float(self.layout.data(self.operation.chips))  # each data-parallel group takes one
        seconds = float(self.prefill.step_s) * self.operation.chips / (self.prompt * prompts)
        return self.operation.chip.usd_per_chip_hour / SECONDS_PER_HOUR * seconds * 1e6

    @property
    def expected_step_s(self) -> float:
        """TPOT that measured serving leads one to expect."""
        return float(SERVING.step_s(self.decode, self.shape.dimensions.layers))

    @property
    def band(self) -> dict[str, float]:
        """Expected TPOT with the 10% and 90% quantiles of the rows that it was calibrated on."""
        middle = self.expected_step_s
        return {
            "low_s": max(SERVING.low * middle, self.step_time_s),
            "expected_s": middle,
            "high_s": SERVING.high * middle,
        }

    @property
    def critical_batch(self) -> float:
        """Batch above which compute takes longer than reading; infinite where the cache outgrows compute."""
        return critical_batch(self.shape, self.operation)

    @property
    def memory(self) -> dict[str, float]:
        """Bytes on the fullest chip: weights, KV cache of its sequences, usable, and left over."""
        shape, op, layout = self.shape, self.operation, self.layout
        groups = float(layout.data(op.chips))
        held = math.ceil(op.batch / groups) * groups
        usable, weights = op.chip.hbm_bytes * op.usable_memory, float(weight_bytes_per_chip(shape, op, layout))
        cache = held * float(cache_bytes_per_chip(shape, op, layout))
        return {
            "weights_bytes": weights,
            "cache_bytes": cache,
            "usable_bytes": usable,
            "free_bytes": usable - weights - cache,
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row a term and phase: seconds at the bound, its share of the step, whether it binds."""
        rows = []
        for phase, step in (("decode", self.decode), ("prefill", self.prefill)):
            total = float(step.step_s)
            for name in TERMS:
                seconds = float(getattr(step, f"{name}_s"))
                rows.append({"phase": phase, "term": name, "seconds": seconds, "share_of_step": seconds / total,
                             "binds": name == step.binding()})  # fmt: skip
        return rows

    def to_frame(self) -> "pd.DataFrame":
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it: every number finite or null."""
        op, layout = self.operation, self.layout
        values = {
            "schema": "allocator.roofline/1",
            "hardware": self.hardware, "model": self.model, "dtype": self.dtype, "kv_dtype": self.kv_dtype,
            "mfu_dtype": self.dtype, "chips": op.chips, "batch": op.batch, "context": op.context, "prompt": self.prompt,
            "layout": {name: float(getattr(layout, name)) for name in ("tensor", "expert", "pipeline")}
            | {"data": float(layout.data(op.chips))},
            "step_time_s": self.step_time_s,
            "t_mem_s": float(self.decode.memory_s), "t_comp_s": float(self.decode.compute_s),
            "t_net_s": float(self.decode.network_s), "latency_s": float(self.decode.latency_s),
            "step_time_no_overlap_s": float(self.decode.total_s("none")),
            "step_time_book_s": float(self.decode.total_s("book")),
            "binding": self.binding, "mfu": self.mfu, "tokens_per_s": op.batch / self.step_time_s,
            "tokens_per_s_per_chip": self.tokens_per_s_per_chip, "ttft_s": float(self.prefill.step_s),
            "critical_batch": self.critical_batch, "max_batch": self.max_batch, "max_context": self.max_context,
            "kv_bytes_per_token": float(self.shape.kv_elements_per_token) * op.bytes_per_kv_element,
            "memory": self.memory, "usd_per_mtok": self.usd_per_mtok, "usd_per_mtok_prompt": self.usd_per_mtok_prompt,
            "band": self.band | {"source": SERVING.source}, "rows": self.rows(), "warnings": list(self.warnings),
            "provenance": {name: version(name) for name in ("allocator", "jax")},
        }  # fmt: skip
        return finite(values)


def roofline(
    hardware: str,
    model: str,
    *,
    chips: float = 1,
    batch: float = 1,
    context: float = 4096,
    prompt: float | None = None,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    tensor: float | None = None,
    expert: float | None = None,
    pipeline: float = 1,
) -> Roofline:
    """The roofline of a model on chips, both by their catalogue names.

    `context` is what a decoded token sees; `prompt` (default: the context) is prefilled, one prompt at a time in each
    data-parallel group. A layout that is not stated cuts as far as heads, experts and the scale-up domain allow.
    Raises `CatalogError` for a dtype that the chip lacks, a batch or layout that is no whole number or does not divide,
    a context above the model's, and a batch that does not fit, saying the largest batch and context that do.
    """
    require_float64()
    chip_record, model_record = catalog.find("hardware", hardware), catalog.find("models", model)
    given = context if prompt is None else prompt
    for name, value in (("chips", chips), ("batch", batch), ("context", context), ("prompt", given)):
        if not (math.isfinite(value) and value >= 1 and value == int(value)):
            raise CatalogError(f"roofline.{name}: got {value:g}; must be a whole number >= 1")
    longest = model_record.fields.get("max_context_tokens")
    for name, value in (("context", context), ("prompt", given)):
        if isinstance(longest, float) and value > longest:
            raise CatalogError(f"roofline.{name}: got {value:g}; {model_record.name} takes at most {longest:g} tokens")
    chip, cache_dtype = accelerator(chip_record, dtype), kv_dtype or dtype
    if cache_dtype not in WEIGHT_BYTES:
        raise CatalogError(f"roofline.kv_dtype: {cache_dtype!r} must be one of {', '.join(WEIGHT_BYTES)}")
    drawn = shape(model_record)
    op = Operation(chip, float(chips), float(batch), float(context), WEIGHT_BYTES[dtype], WEIGHT_BYTES[cache_dtype],
                   usable_memory=USABLE_MEMORY)  # fmt: skip
    layout = _layout(drawn, op, tensor, expert, pipeline)
    check(layout, drawn, op.chips, chip)
    fits, longest_fit = largest_batch(drawn, op, layout), largest_context(drawn, op, layout)
    if batch > fits:
        weights = float(weight_bytes_per_chip(drawn, op, layout)) / 1e9
        usable = chip.hbm_bytes * USABLE_MEMORY / 1e9
        if not fits:
            why = f"weights alone take {weights:.1f} of {usable:.1f} usable GB a chip" if weights > usable else (
                f"one sequence of {context:g} tokens does not fit beside {weights:.1f} GB of weights; the longest that "
                f"does has {largest_context(drawn, eqx.tree_at(lambda o: o.batch, op, 1.0), layout):,}")  # fmt: skip
            raise CatalogError(f"roofline.batch: got {batch:g}; {why}")
        raise CatalogError(f"roofline.batch: got {batch:g}; at {context:g} tokens the largest batch that fits is "
                           f"{fits:,}, at batch {batch:g} the longest context is {longest_fit:,}")  # fmt: skip
    network = _needs_network(layout, chip)
    if network:
        raise CatalogError(f"{chip_record.name}: {network} is not known, so the layout's exchanges cannot be timed; "
                           "keep to the scale-up domain or one chip")  # fmt: skip
    asked = float(given)
    once = eqx.tree_at(lambda o: (o.batch, o.context), op, (float(layout.data(op.chips)), asked))
    return Roofline(
        chip_record.name, model_record.name, dtype, cache_dtype, drawn, op, layout, decode_step(drawn, op, layout),
        prefill_step(drawn, once, layout), asked, fits, longest_fit, tuple(_warnings(drawn, op, chip_record, dtype)),
    )  # fmt: skip


def critical_batch(shape: Shape, op: Operation) -> float:
    """Batch at which compute takes as long as reading all weights and the cache; infinite where there is none."""
    context = jnp.asarray(op.context, float)
    return float(
        crossovers.critical_batch(
            shape.total_bytes(op.bytes_per_weight), shape.n_compute, crossovers.flop_per_byte(op.chip), context=context,
            kv_bytes_per_token=shape.kv_bytes(context, op.bytes_per_kv_element) / context,
            attention_flop=shape.attention_flop_per_token(context) / context,
        )
    )  # fmt: skip


def _layout(shape: Shape, op: Operation, tensor: float | None, expert: float | None, pipeline: float) -> Layout:
    """What is stated; experts otherwise cut as far as they go, and heads so that the step is shortest and fits."""
    if not (math.isfinite(pipeline) and pipeline >= 1 and pipeline == int(pipeline)) or op.chips % pipeline:
        return Layout(float(tensor or 1), float(expert or 1), float(pipeline))  # `check` says what is wrong
    stage = int(op.chips / pipeline)
    inside = min(stage, int(op.chip.scale_up_chips))
    heads, experts = int(shape.dimensions.query_heads), int(shape.dimensions.experts)
    if expert is None:
        expert = next(n for n in range(stage, 0, -1) if stage % n == 0 and experts % n == 0) if experts else 1
    if tensor is not None:
        return Layout(float(tensor), float(expert), float(pipeline))
    cuts = [n for n in range(1, inside + 1) if stage % n == 0 and heads % n == 0]
    layouts = [Layout(float(n), float(expert), float(pipeline)) for n in cuts]

    def merit(layout: Layout) -> tuple[bool, float]:
        return float(free_bytes(shape, op, layout)) < 0, float(decode_step(shape, op, layout).step_s)

    return min(layouts, key=merit)


def _needs_network(layout: Layout, chip) -> str | None:
    widest = max(layout.tensor, layout.expert)
    if widest > 1 and math.isnan(chip.scale_up_bytes_per_s):
        return "scale_up_bytes_per_s"
    if widest > chip.scale_up_chips and math.isnan(chip.scale_out_bytes_per_s):
        return "scale_out_bytes_per_s"
    return None


def _warnings(shape: Shape, op: Operation, record: catalog.Record, dtype: str):
    attention = float(shape.attention_flop_per_token(jnp.asarray(op.context, float)))
    share = attention / (attention + 2 * float(shape.n_compute))
    if share > 0.1:
        yield {"code": "attention_flop", "path": "context", "value": share,
               "message": f"attention takes {share:.0%} of a decoded token's FLOP, which 2 N leaves out"}  # fmt: skip
    if record.fields.get("status") not in (None, "verified"):
        yield {"code": "unverified_chip", "path": "hardware", "value": None,
               "message": f"{record.name}: {record.fields['status']}"}  # fmt: skip
