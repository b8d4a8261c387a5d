"""Time the roofline: one compiled call, a million configurations at once, and other estimators if installed.

    python benchmarks/roofline.py

llm-analysis and genz-llm (both on PyPI) are compared if this Python has them. Figures are medians of one run on one
machine; the ratios are what carries over to another.
"""

import contextlib
import io
import logging
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from timing import median_ms

from allocator import roofline_checks
from allocator.roofline.step import decode_step
from allocator.rooflines import roofline

MANY = 1_000_000


def llm_analysis_call() -> Callable[[], object] | None:
    """One inference estimate of llm-analysis, or nothing where it is not installed."""
    try:
        from llm_analysis.analysis import LLMAnalysis  # pyright: ignore[reportMissingImports]
        from llm_analysis.config import (  # pyright: ignore[reportMissingImports]
            ModelConfig,
            ParallelismConfig,
            get_dtype_config_by_name,
            get_gpu_config_by_name,
        )
    except ImportError as error:
        print(f"llm-analysis: not compared ({error})")
        return None
    logging.disable(logging.CRITICAL)
    model = ModelConfig("llama-3.1-70b", 80, 64, 8192, 128256, 131072, 8, ffn_embed_dim=28672, expansion_ratio=3.5)
    analysis = LLMAnalysis(model, get_gpu_config_by_name("a100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"),
                           ParallelismConfig(tp_size=8))  # fmt: skip
    return lambda: analysis.inference(batch_size_per_gpu=8, seq_len=512, num_tokens_to_generate=32)


def genz_call() -> Callable[[], object] | None:
    """One decode estimate of GenZ, or nothing where it is not installed."""
    try:
        from GenZ import decode_moddeling  # pyright: ignore[reportMissingImports]
    except (ImportError, AttributeError) as error:  # its own dependencies may not fit together
        print(f"GenZ: not compared ({error})")
        return None
    system = {"Flops": 989, "Memory_size": 80, "Memory_BW": 3350, "ICN": 450, "real_values": True}

    def call() -> object:
        with contextlib.redirect_stdout(io.StringIO()):
            return decode_moddeling(model="meta-llama/Llama-3.1-70B", batch_size=64, input_tokens=4096,
                                    output_tokens=1, system_name=system, bits="bf16", tensor_parallel=8)  # fmt: skip

    return call


def main() -> None:
    drawn = roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=64)
    step = eqx.filter_jit(lambda shape, op, layout: decode_step(shape, op, layout).step_s)
    single = median_ms(lambda: float(step(drawn.shape, drawn.operation, drawn.layout)), 500)

    def one(batch, context, chips, bandwidth):
        fields = lambda op: (op.batch, op.context, op.chips, op.chip.hbm_bytes_per_s)  # noqa: E731
        return decode_step(drawn.shape, eqx.tree_at(fields, drawn.operation, (batch, context, chips, bandwidth))).step_s

    draws = np.random.default_rng(0)
    grid = [jnp.asarray(draws.uniform(low, high, MANY)) for low, high in ((1, 512), (1, 1e5), (8, 64), (2e12, 8e12))]
    whole = jax.jit(jax.vmap(one))
    many = median_ms(lambda: whole(*grid).block_until_ready(), 10)
    rows = median_ms(lambda: roofline_checks.check("serving_measurements"), 3)
    by_name = median_ms(lambda: roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=64), 5)
    print(f"{'':62} {'ms':>10}")
    print(f"{'one decode step, compiled, called from Python':62} {single:10.3f}")
    print(f"{'a million decode steps in one vmapped, jitted call':62} {many:10.1f}")
    print(f"{'allocator.rooflines.roofline by name, layout chosen':62} {by_name:10.1f}")
    print(f"{'check of the shipped serving measurements':62} {rows:10.1f}")
    for name, call in (("llm-analysis, one inference estimate", llm_analysis_call()),
                       ("GenZ, one decode estimate", genz_call())):  # fmt: skip
        if call is None:
            continue
        try:
            took = median_ms(call, 20)
        except Exception as error:  # another package's failure is no reason to lose the figures above
            print(f"{name}: failed ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})")
        else:
            print(f"{name:62} {took:10.3f}   {took / single:,.0f} x the compiled call")


if __name__ == "__main__":
    main()
