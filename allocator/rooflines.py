"""The roofline of a catalogued model on catalogued chips, by name, or of one's own."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp

from allocator import catalog
from allocator.errors import CatalogError
from allocator.outputs import finite
from allocator.precision import require_float64
from allocator.roofline import degrees
from allocator.roofline.accelerator import Accelerator, accelerator, multiplied_in
from allocator.roofline.calibration import SERVING, Band
from allocator.roofline.crossovers import batch_where_compute_binds
from allocator.roofline.layout import Layout, check
from allocator.roofline.memory import (
    cache_bytes_per_chip,
    fitting_batch,
    largest_batch,
    largest_context,
    weight_bytes_per_chip,
)
from allocator.roofline.operation import Operation
from allocator.roofline.serving import expected_prefill_s, expected_step_s, one_prompt_a_group
from allocator.roofline.shape import WEIGHT_BYTES, Shape, approximated, shape
from allocator.roofline.step import StepTime, decode_step
from allocator.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    import pandas as pd

PARTS = (("weights", "memory"), ("cache", "memory"), ("linear", "compute"), ("attention", "compute"),
         ("network", "network"), ("latency", "fixed"))  # fmt: skip
DEFAULT_PROMPT = 4096.0
MOST_CHIPS = 1024  # tried before it is said that no number of chips is enough
OWN = "own"  # name of a chip or model that is none of the catalogue's

_critical = eqx.filter_jit(batch_where_compute_binds)
_best = eqx.filter_jit(degrees.best)


@dataclass(frozen=True)
class Roofline:
    """Times, throughput, memory and cost of decode at one operating point, with the prefill of its prompts.

    Step times are the bound (everything overlaps, full efficiency); `expected_step_s` is what measured serving would
    lead one to expect, within `band`.
    """

    hardware: str
    model: str
    dtype: str
    weight_dtype: str
    kv_dtype: str
    shape: Shape = field(repr=False)
    operation: Operation = field(repr=False)
    layout: Layout
    decode: StepTime = field(repr=False)
    prefill: StepTime = field(repr=False)
    prompt: float
    output: float | None  # tokens of an answer; None: other chips read the prompts
    critical_batch: float  # above it compute takes longer than reading; infinite where reading always does
    max_batch: int
    max_context: int
    max_context_limit: str  # what limits it: memory, or the model
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
        return self._usd(self.step_time_s, self.operation.batch)

    @property
    def expected_usd_per_mtok(self) -> float:
        """The same at the expected time per token; with the prompts, where the same chips read them."""
        return self._usd(self.expected_step_s, self.operation.batch)

    @property
    def usd_per_mtok_prompt(self) -> float:
        """USD per million prompt tokens at the bound; each data-parallel group reads one prompt a stage."""
        return self._usd(float(self.prefill.step_s), self.prompt * self.layout.in_flight(self.operation.chips))

    @property
    def expected_usd_per_mtok_prompt(self) -> float:
        """The same at the expected time of a prefill."""
        return self._usd(self.expected_ttft_s, self.prompt * self.layout.in_flight(self.operation.chips))

    def _usd(self, seconds: float, tokens: float) -> float:
        rate = self.operation.chip.usd_per_chip_hour / SECONDS_PER_HOUR
        return rate * self.operation.chips * seconds / float(tokens) * 1e6

    @property
    def prompts_per_step(self) -> float:
        """Prompts that a step reads on average, to replace the sequences that end; 0 where other chips read them."""
        return 0.0 if self.output is None else self.operation.batch / self.output

    @property
    def expected_step_s(self) -> float:
        """TPOT that measured serving leads one to expect, as `roofline check` predicts it."""
        return float(expected_step_s(self.shape, self.operation, self.layout, prompt=self.prompt,
                                     prompts_per_step=self.prompts_per_step))  # fmt: skip

    @property
    def expected_ttft_s(self) -> float:
        """Time of a prefill under the same constants, without a queue."""
        return float(expected_prefill_s(self.shape, self.operation, self.layout, prompt=self.prompt))

    @property
    def calibrated(self) -> Band:
        """Spread of the rows that read their prompts where these do."""
        return SERVING.apart if self.output is None else SERVING.together

    @property
    def band(self) -> dict[str, float]:
        """Expected TPOT with the 10% and 90% quantiles of the rows that it was calibrated on."""
        middle, spread = self.expected_step_s, self.calibrated
        return {
            "low_s": max(spread.low * middle, self.step_time_s),
            "expected_s": middle,
            "high_s": spread.high * middle,
        }

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
        """A row a part of the decode step and of the prefill: seconds, share of the step, whether its term binds."""
        rows = []
        for phase, step in (("decode", self.decode), ("prefill", self.prefill)):
            whole, binding = float(step.step_s), step.binding()
            for part, term in PARTS:
                seconds = float(getattr(step, f"{part}_s"))
                rows.append({"phase": phase, "part": part, "term": term, "seconds": seconds,
                             "share_of_step": seconds / whole, "binds": term == binding})  # fmt: skip
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
            "hardware": self.hardware, "model": self.model, "dtype": self.dtype,
            "weight_dtype": self.weight_dtype, "kv_dtype": self.kv_dtype, "mfu_dtype": self.dtype,
            "chips": op.chips, "batch": op.batch, "context": op.context, "prompt": self.prompt, "output": self.output,
            "layout": {name: float(getattr(layout, name)) for name in ("tensor", "expert", "pipeline")}
            | {"data": float(layout.data(op.chips))},
            "step_time_s": self.step_time_s,
            "t_mem_s": float(self.decode.memory_s), "t_comp_s": float(self.decode.compute_s),
            "t_net_s": float(self.decode.network_s), "latency_s": float(self.decode.latency_s),
            "step_time_no_overlap_s": float(self.decode.total_s("none")),
            "step_time_book_s": float(self.decode.total_s("book")),
            "binding": self.binding, "mfu": self.mfu, "tokens_per_s": op.batch / self.step_time_s,
            "tokens_per_s_per_chip": self.tokens_per_s_per_chip, "ttft_s": float(self.prefill.step_s),
            "expected_ttft_s": self.expected_ttft_s, "expected_usd_per_mtok": self.expected_usd_per_mtok,
            "expected_usd_per_mtok_prompt": self.expected_usd_per_mtok_prompt,
            "critical_batch": self.critical_batch, "max_batch": self.max_batch, "max_context": self.max_context,
            "max_context_limit": self.max_context_limit,
            "kv_bytes_per_token": float(self.shape.kv_elements_per_token) * op.bytes_per_kv_element,
            "memory": self.memory, "usd_per_mtok": self.usd_per_mtok, "usd_per_mtok_prompt": self.usd_per_mtok_prompt,
            "band": self.band | {"rows": self.calibrated.rows, "source": SERVING.source},
            "rows": self.rows(), "warnings": list(self.warnings),
            "provenance": {name: version(name) for name in ("allocator", "jax")},
        }  # fmt: skip
        return finite(values)


def roofline(
    hardware: str | Accelerator,
    model: str | Shape,
    *,
    chips: float = 1,
    batch: float = 1,
    context: float | None = None,
    prompt: float | None = None,
    output: float | None = None,
    dtype: str = "bf16",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    tensor: float | None = None,
    expert: float | None = None,
    pipeline: float = 1,
    usd_per_chip_hour: float | None = None,
) -> Roofline:
    """The roofline of a model on chips, by their catalogue names, or of an own `Accelerator` and `Shape`.

    `context` is what a decoded token sees (default: prompt + output/2); `prompt` (default: the context, or 4,096) is
    prefilled, one prompt at a time in each data-parallel group. With `output`, the tokens of an answer, the same
    chips read the prompts, which the expected time then contains; without it others do. Arithmetic is in `dtype`,
    weights too unless `weight_dtype` is narrower, the cache too but in 8 bits at least unless `kv_dtype` says
    otherwise. A layout that is not stated cuts as far as heads, experts and the scale-up domain allow.
    Raises `CatalogError` for a dtype that the chip lacks, a batch or layout that is no whole number or does not divide,
    a context above the model's, too few chips (saying how many do), and a batch that does not fit, saying the largest
    batch and context that do.
    """
    require_float64()
    for name, value in (("chips", chips), ("batch", batch), ("context", context), ("prompt", prompt),
                        ("output", output)):  # fmt: skip
        if value is not None and not (math.isfinite(value) and value >= 1 and value == int(value)):
            raise CatalogError(f"roofline.{name}: got {value:g}; must be a whole number >= 1")
    if usd_per_chip_hour is not None and not (math.isfinite(usd_per_chip_hour) and usd_per_chip_hour > 0):
        raise CatalogError(f"roofline.usd_per_chip_hour: got {usd_per_chip_hour:g}; must be a number > 0")
    record = catalog.find("hardware", hardware) if isinstance(hardware, str) else None
    drawn, model_name, longest = _model(model)
    read = prompt if prompt is not None else context if context is not None else DEFAULT_PROMPT
    seen = context if context is not None else read + (output or 0.0) / 2
    whole = None if output is None else read + output
    for name, value in (("context", context), ("prompt", prompt), ("output", whole)):
        if value is not None and value > longest:
            told = f"{output:g} after a prompt of {read:g}" if name == "output" else f"{value:g}"
            raise CatalogError(f"roofline.{name}: got {told}; {model_name} takes at most {longest:g} tokens")
    if read > seen:
        raise CatalogError(
            f"roofline.prompt: got {read:g}; must be <= the context of {seen:g} tokens, of which it is part"
        )
    weights, cached = _dtypes(dtype, weight_dtype, kv_dtype)
    chip = hardware if isinstance(hardware, Accelerator) else _chip(catalog.find("hardware", hardware), dtype)
    if usd_per_chip_hour is not None:
        chip = eqx.tree_at(lambda c: c.usd_per_chip_hour, chip, float(usd_per_chip_hour))
    op = Operation(chip, float(chips), float(batch), float(seen), WEIGHT_BYTES[weights], WEIGHT_BYTES[cached])
    layout = _layout(drawn, op, tensor, expert, pipeline)
    check(layout, drawn, op.chips, chip)
    fits, in_memory = largest_batch(drawn, op, layout), largest_context(drawn, op, layout)
    longest_fit, limit = (int(longest), "model") if in_memory > longest else (in_memory, "memory")
    if not fits:
        raise CatalogError(_too_little(drawn, op, layout, weights, {"tensor": tensor, "expert": expert}))
    if batch > fits:
        raise CatalogError(f"roofline.batch: got {batch:g}; at {seen:g} tokens the largest batch that fits is "
                           f"{fits:,}, at batch {batch:g} the longest context is {longest_fit:,}")  # fmt: skip
    chip_name = record.name if record is not None else OWN
    network = _needs_network(layout, chip)
    if network:
        raise CatalogError(f"{chip_name}: {network} is not known, so the layout's exchanges cannot be timed; "
                           "keep to the scale-up domain or one chip")  # fmt: skip
    warnings = [*_warnings(drawn, op, record, chip_name, model_name)]
    if isinstance(model, str) and (timed := approximated(catalog.find("models", model))) is not None:
        warnings.append({"code": "attention_approximated", "path": "model", "value": None,
                         "message": f"{model_name}: {timed}"})  # fmt: skip
    if tensor is None and expert is None:
        warnings += _copies(drawn, op, layout)
    return Roofline(
        chip_name, model_name, dtype, weights, cached, drawn, op, layout, decode_step(drawn, op, layout),
        one_prompt_a_group(drawn, op, layout, prompt=read), float(read), None if output is None else float(output),
        float(_critical(drawn, op, layout)), fits, longest_fit, limit,
        tuple(warnings),
    )  # fmt: skip


def _model(model: str | Shape) -> tuple[Shape, str, float]:
    """Its shape, name and longest context."""
    if isinstance(model, Shape):
        return model, OWN, math.inf
    record = catalog.find("models", model)
    longest = record.fields.get("max_context_tokens")
    return shape(record), record.name, longest if isinstance(longest, float) else math.inf


def _chip(record: catalog.Record, dtype: str) -> Accelerator:
    try:
        return accelerator(record, dtype)
    except CatalogError as error:
        wider = multiplied_in(record, dtype)
        if wider == dtype:
            raise
        raise CatalogError(f"{error}; for {dtype} weights that are multiplied in {wider}: dtype {wider}, "
                           f"weight_dtype {dtype}") from None  # fmt: skip


def _dtypes(dtype: str, weight_dtype: str | None, kv_dtype: str | None) -> tuple[str, str]:
    """Dtypes of weights and cache."""
    for name, value in (("dtype", dtype), ("weight_dtype", weight_dtype), ("kv_dtype", kv_dtype)):
        if value is not None and value not in WEIGHT_BYTES:
            raise CatalogError(f"roofline.{name}: {value!r} must be one of {', '.join(WEIGHT_BYTES)}")
    weights = weight_dtype or dtype
    if WEIGHT_BYTES[weights] > WEIGHT_BYTES[dtype]:
        raise CatalogError(f"roofline.weight_dtype: got {weights}; must not be wider than the arithmetic's {dtype}")
    return weights, kv_dtype or ("fp8" if dtype == "fp4" else dtype)


def _layout(shape: Shape, op: Operation, tensor: float | None, expert: float | None, pipeline: float) -> Layout:
    """What is stated; experts otherwise cut as far as they go, and heads so that the batch fits and is fastest."""
    if not (math.isfinite(pipeline) and pipeline >= 1 and pipeline == int(pipeline)) or op.chips % pipeline:
        return Layout(float(tensor or 1), float(expert or 1), float(pipeline))  # `check` says what is wrong
    choices = degrees.layouts(shape, op.chip, op.chips, tensor=tensor, expert=expert, pipeline=pipeline)
    if len(choices) == 1:
        return choices[0]
    found, _ = _best(shape, op, degrees.stack(choices))
    return next(choice for choice in choices if choice.tensor == float(found.tensor))


def _needs_network(layout: Layout, chip: Accelerator) -> str | None:
    widest = max(layout.tensor, layout.expert)
    if widest > 1 and math.isnan(chip.scale_up_bytes_per_s):
        return "scale_up_bytes_per_s"
    if widest > chip.scale_up_chips and math.isnan(chip.scale_out_bytes_per_s):
        return "scale_out_bytes_per_s"
    return None


def _too_little(shape: Shape, op: Operation, layout: Layout, dtype: str, stated: dict[str, float | None]) -> str:
    """What to say where not even one sequence fits."""
    weights, usable = float(weight_bytes_per_chip(shape, op, layout)), op.chip.hbm_bytes * op.usable_memory
    why = f"weights alone take {weights / 1e9:.1f} of {usable / 1e9:.1f} usable GB a chip"
    if weights <= usable:
        single = eqx.tree_at(lambda o: o.batch, op, 1.0)
        why = (f"one sequence of {op.context:,.0f} tokens does not fit beside {weights / 1e9:.1f} GB of weights; the "
               f"longest that does has {largest_context(shape, single, layout):,}")  # fmt: skip
    least = _fewest_chips(shape, op, layout.pipeline)
    given = [f"{name} {value:g}" for name, value in stated.items() if value is not None]
    if given and least is not None and least <= op.chips:
        name = given[0].split()[0]
        return (
            f"roofline.{name}: got {getattr(layout, name):g}; {why}; with degrees not stated {least} chips are enough"
        )
    enough = f"no number up to {MOST_CHIPS:,} is enough" if least is None else f"at least {least} are needed"
    return f"roofline.chips: got {op.chips:g}; {enough} in {dtype}: {why}"


def _fewest_chips(shape: Shape, op: Operation, stages: float) -> int | None:
    """Fewest chips on which one sequence fits, its layout chosen."""
    least = float(shape.total_bytes(op.bytes_per_weight)) / (op.chip.hbm_bytes * op.usable_memory)
    step = int(stages)
    for chips in range(max(math.ceil(least / step), 1) * step, MOST_CHIPS + 1, step):
        more = eqx.tree_at(lambda o: o.chips, op, float(chips))
        choices = degrees.layouts(shape, op.chip, chips, pipeline=stages)
        if any(float(fitting_batch(shape, more, layout)) >= 1 for layout in reversed(choices)):
            return chips
    return None


def _warnings(
    shape: Shape, op: Operation, record: catalog.Record | None, chip: str, model: str
) -> Iterator[dict[str, Any]]:
    attention = float(shape.attention_flop_per_token(jnp.asarray(op.context, float)))
    share = attention / (attention + 2 * float(shape.n_compute))
    if share > 0.1:
        yield {"code": "attention_flop", "path": "context", "value": share,
               "message": f"attention takes {share:.0%} of a decoded token's FLOP, which 2 N leaves out"}  # fmt: skip
    status = "" if record is None else str(record.fields.get("status") or "")
    if status and not re.match(r"verified\b", status):  # a remark may follow
        yield {"code": "unverified_chip", "path": "hardware", "value": None, "message": f"{chip}: {status}"}
    outside = [name for name, known in ((chip, SERVING.chips), (model, SERVING.models)) if name not in known]
    if outside:
        told = " and ".join(f"the {name} {what}" if name == OWN else name for name, what in
                            ((chip, "chip"), (model, "model")) if name in outside)  # fmt: skip
        yield {"code": "outside_calibration", "path": "band", "value": None,
               "message": f"no measured row is of {told}: expected times carry constants over"}  # fmt: skip


def _copies(shape: Shape, op: Operation, layout: Layout) -> Iterator[dict[str, Any]]:
    """Where the chosen layout cuts into fewer parts than there are chips, only because their number does not divide."""
    stage, inside = int(op.chips / layout.pipeline), int(op.chip.scale_up_chips)
    if float(shape.dimensions.experts):
        what, cut, most, parts = "experts", layout.expert, stage, int(shape.dimensions.experts)
        now = degrees.expert_degree(shape, stage)
    else:
        what, cut, most, parts = "weights", layout.tensor, min(stage, inside), int(shape.dimensions.query_heads)
        now = max(degrees.tensor_degrees(shape, op.chip, stage))
    ways = max(n for n in range(1, min(parts, most) + 1) if parts % n == 0)
    better = stage // ways * ways
    if cut < now or cut >= most or ways <= now:
        return
    pipeline = int(layout.pipeline)
    yield {"code": "weights_copied", "path": "chips", "value": stage / cut,
           "message": f"{stage:,} chips cut the {what} {cut:g} ways only, so each lies on {stage / cut:g} of them; "
                      f"{better * pipeline:,} chips cut them {ways} ways"}  # fmt: skip
