"""Rows of cases/roofline_book_cases.csv beyond one chip's memory and compute: see test_roofline.py for the others."""

from collections.abc import Callable

import jax.numpy as jnp
import pytest
from case_rows import case_rows

from allocator import catalog
from allocator.roofline.accelerator import Accelerator
from allocator.roofline.architecture import Architecture
from allocator.roofline.collectives import all_to_all_s
from allocator.roofline.operation import Operation
from allocator.roofline.parallelism import (
    TrainingState,
    best_data_degree,
    data_parallel_limit,
    fewest_chips,
    gather_s,
    generation_tensor_limit,
    mixed_critical_tokens,
    prefill_over_decode_servers,
    tensor_parallel_limit,
)
from allocator.roofline.shape import Dimensions, Shape
from allocator.roofline.step import StepTime, decode_step

BOOK = case_rows("roofline_book_cases")
PLAIN = Dimensions(1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0)


def exchange(bytes_per_s: float) -> float:
    """One all-to-all of 32 tokens to 9 places at 7,000 wide, fp8 out and bf16 back."""
    chip = Accelerator(1e15, 80e9, 3e12, scale_up_chips=72.0, scale_up_bytes_per_s=bytes_per_s)
    return float(all_to_all_s(chip, 64.0, jnp.asarray(32.0), 9.0, 7000.0, 3.0))


def step(n: float, batch: float, chips: float, *, weight: float, kv: float = 1e-9) -> StepTime:
    """A decode step on TPU v5e."""
    model = Shape(n, n, 0.0, 1.0, kv, 0.0, 0.0, 0.0, 0.0, n, PLAIN)
    chip = Accelerator(1.97e14, 16e9, 8.1e11)
    return decode_step(model, Operation(chip, chips, batch, 8192.0, weight, 1.0))


def egress() -> float:
    """Bytes/s that leave a rack of 72 at 400 Gb/s a chip; the catalogue's GB200 has the 800 Gb/s of other sources."""
    return 72 * 400e9 / 8


INVENTED = Architecture(64.0, 4096.0, 32.0, 8.0, 256.0, 16384.0, 32128.0, tied=True)
MATRIX = 8192.0 * 28672.0
ANSWERS: dict[str, Callable] = {
    "A9": lambda: 4 * 1024**2 / 8960,
    "A10": lambda: data_parallel_limit(4.59e14, 1.8e11),
    "A12": lambda: mixed_critical_tokens(28672.0, 4.59e14, 1.8e11),
    "A13": lambda: best_data_degree(4.19e6, 8960.0, 28672.0),
    "A15": lambda: tensor_parallel_limit(28672.0, 4.59e14, 1.8e11),
    "I5": lambda: step(30e9, 256.0, 16.0, weight=1.0, kv=100e3).total_s("book"),
    "I6": lambda: INVENTED.n_total,
    "I8": lambda: generation_tensor_limit(16384.0, 32.0, 8.0),
    "S12": lambda: prefill_over_decode_servers(0.91, 0.019, 32.0, 512.0),
    "S13": lambda: gather_s(2 * 64 * 8192.0, 9e10),
    "S14": lambda: step(MATRIX, 64.0, 32.0, weight=2.0).weights_s,
    "S15": lambda: step(MATRIX, 64.0, 32.0, weight=2.0).linear_s,
    "U2": lambda: data_parallel_limit(990e12, 400e9),
    "U3": lambda: data_parallel_limit(990e12, 300e9),
    "U4": lambda: data_parallel_limit(990e12, 400e9, experts=128.0, experts_active=4.0),
    "U5": lambda: tensor_parallel_limit(28000.0, 2475.0, 1.0),
    "U7": lambda: data_parallel_limit(2250e12, 900e9),
    "U8": lambda: fewest_chips(70e9 * TrainingState(gradient_bytes=0.0, optimiser_bytes=8.0).bytes_per_parameter, 80e9),
    "U12": egress,
    "Z1": lambda: exchange(50e9),
    "Z2": lambda: 2 * exchange(50e9),
    "Z4": lambda: 1 / (2 * 61 * exchange(50e9)),
    "Z5": lambda: 2 * 61 * exchange(900e9),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_row_of_the_book(name: str):
    row, found = BOOK[name], float(ANSWERS[name]())
    assert found == pytest.approx(float(row["expected"]), rel=max(float(row["tol_rel"]), 1e-12))
    assert found == pytest.approx(float(row["recomputed"]), rel=2e-3)


def test_the_batch_of_a9_is_too_small_for_data_parallelism_alone():
    """468 tokens a chip against 2,550: so the book mixes in tensor parallelism, which needs 454."""
    tokens = float(ANSWERS["A9"]())
    assert float(ANSWERS["A12"]()) < tokens < float(ANSWERS["A10"]())


def test_there_are_49_rows_and_these_are_23_of_them():
    assert len(BOOK) == 49
    assert len(ANSWERS) == 23
    assert {*ANSWERS} <= {*BOOK}


def test_scale_out_of_a_gb200_rack_is_a_known_conflict():
    """800 Gb/s a chip in the catalogue, 400 Gb/s in the book: twice U12; data/hardware says so in its notes."""
    chip = catalog.find("hardware", "gb200-nvl72").fields
    assert 72 * float(str(chip["scale_out_bytes_per_s"])) == pytest.approx(2 * egress(), rel=1e-12)
