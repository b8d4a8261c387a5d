"""Charts of a roofline: the marks that the tables promise, titles with units, labels that do not touch."""

import re

import numpy as np
import pandas as pd
import pytest

from allocator import roofline_charts, roofline_curves, roofline_pages
from allocator.charts import pictures
from allocator.roofline_checks import check
from allocator.rooflines import roofline


@pytest.fixture(scope="module")
def llama():
    return roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=64, context=1024)


@pytest.fixture(scope="module")
def tables(llama) -> dict[str, pd.DataFrame]:
    return {"roof": roofline_curves.roof_points(llama), "batches": roofline_curves.batch_curve(llama)}


@pytest.fixture(scope="module")
def drawn(llama, tables) -> dict[str, str]:
    charts = roofline_pages.charts_of(llama, tables)
    return {name: str(pictures({name: chart})[f"{name}.svg"]) for name, chart in charts.items()}


def test_axes_say_what_and_in_which_unit(drawn):
    for name, words in {
        "roofline": ["arithmetic intensity (FLOP per byte of memory)", "FLOP/s per chip", "dense peak: 989 TFLOP/s",
                     "memory: 3.35 TB/s", "295 FLOP/byte", "batch 64 (asked)"],
        "batches": ["batch (sequences in a step)", "time per output token (ms)", "USD per million output tokens",
                    "largest that fits: 1,296", "critical: "],
    }.items():  # fmt: skip
        assert "NaN" not in drawn[name]
        assert "llama-3.1-70b on 8 x h100-sxm, bf16; context 1,024, cut by tensor 8" in drawn[name]
        for word in words:
            assert word in drawn[name], word


def test_no_point_is_above_the_roof(llama, tables):
    """Not above the peak, nor above intensity x bandwidth."""
    chip, points = llama.operation.chip, tables["roof"]
    roof = np.minimum(chip.peak_flop_per_s, points["intensity"] * chip.hbm_bytes_per_s)
    assert (points["flop_per_s"] <= roof * (1 + 1e-12)).all()
    bound = points[points["phase"] == "decode, bound"]
    assert np.allclose(bound["flop_per_s"], roof[bound.index])  # memory binds, so on the slope


def test_intensity_of_prefill_by_hand(tables):
    """T tokens in bf16: T (2 N + a T/2) FLOP over 2 N_total bytes."""
    point = tables["roof"][tables["roof"]["phase"] == "prefill of 1,024 tokens, bound"].iloc[-1]
    flop = 1024 * (2 * 69501714432 + 4 * 128 * 64 * 80 * 512.5)
    assert point["intensity"] == pytest.approx(flop / (2 * 70552387584), rel=1e-9)


def test_curve_starts_and_ends_at_its_floors(llama, tables):
    curve = tables["batches"]
    assert float(curve["batch"].iloc[0]) == 1
    assert curve["fits"].sum() < len(curve)
    assert float(curve[curve["fits"]]["batch"].max()) == llama.max_batch
    floor = 2.95 / 3600 * 1e6 * (2 * 69501714432 + 4 * 128 * 64 * 80 * 1024) / 989e12
    cache = 2.95 / 3600 * 1e6 * 1024 * 327680 / 3.35e12
    assert float(curve["cost"].min()) >= max(floor, cache) * (1 - 1e-12)
    assert (np.diff(curve["tpot_ms"]) >= 0).all()
    assert (np.diff(curve["cost"]) <= 1e-12).all()


def test_a_chip_without_a_price_counts_chip_seconds():
    found = roofline("gb200-nvl72", "deepseek-v3", chips=8, batch=64, dtype="fp8")
    tables = {"roof": roofline_curves.roof_points(found), "batches": roofline_curves.batch_curve(found)}
    picture = str(pictures(roofline_pages.charts_of(found, tables))["batches.svg"])
    assert "chip-seconds per million output tokens" in picture


def test_labels_that_would_touch_are_one_label():
    points = pd.DataFrame({"phase": "decode, bound", "label": ["batch 9 (asked)", "batch 10 (largest)", ""],
                           "intensity": [9.0, 10.0, 90.0], "flop_per_s": [2.7e13, 3e13, 2.7e14]})  # fmt: skip
    picture = str(pictures({"r": roofline_charts.roof(points, 1e15, 3e12, "about")})["r.svg"])
    assert picture.count("batch 9 (asked), batch 10 (largest)<") == 2  # the ink and its halo
    points["flop_per_s"], points["intensity"] = [2.7e12, 3e13, 2.7e14], [0.9, 10.0, 90.0]
    apart = str(pictures({"r": roofline_charts.roof(points, 1e15, 3e12, "about")})["r.svg"])
    assert apart.count("batch 9 (asked)<") == apart.count("batch 10 (largest)<") == 2


def test_labels_of_batches_stand_above_the_frame(llama, tables):
    """Where there is no curve, no other line and no frame."""
    picture = str(pictures(roofline_pages.charts_of(llama, tables))["batches.svg"])
    heights = re.findall(
        r'<text[^>]*transform="translate\([-\d.]+,(-[\d.]+)\)"[^>]*>(largest that fits|critical): ', picture
    )
    assert sorted({float(height) for height, _ in heights}) == [-17, -4]  # pixels, of the feet of the letters


def test_one_row_spans_a_factor_of_four():
    frame = check("serving_measurements").to_frame().head(1)
    chart = roofline_charts.measured(frame, "1 row").to_dict()
    low, high = chart["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert high / low >= 4 * (1 - 1e-12)
    assert low < min(frame["measured_tpot_ms"].iloc[0], frame["predicted_tpot_ms"].iloc[0])


def test_measured_against_predicted_has_a_point_a_row_and_rings_what_beats_the_bound():
    frame = check("serving_measurements").to_frame()
    odd = frame[frame["beats"] != ""]
    some = pd.concat([odd, frame[frame["beats"] == ""].head(20)])
    picture = str(pictures({"c": roofline_charts.measured(some, "about")})["c.svg"])
    assert len(re.findall(r'aria-roledescription="(?:point|circle)"', picture)) == len(some) + len(odd)
    assert "predicted time per output token (ms)" in picture
    assert "ringed: rows that beat the bound" in picture
