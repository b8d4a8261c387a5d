"""Tables of measurements as users write them: what is refused, what is left out, and how large the chart gets."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from allocator.errors import CatalogError
from allocator.roofline_charts import MOST_MARKS, measured
from allocator.roofline_checks import check
from allocator.roofline_pages import check_files

ROW = {"id": "a", "source_kind": "mine", "hardware": "H100 SXM", "n_chips": 8, "model": "llama-3.1-70b",
       "precision": "fp8", "mode": "agg", "concurrency": 64, "input_len": 1000, "output_len": 500, "tpot_ms": 20.0,
       "ttft_ms": 500.0}  # fmt: skip
HEADER, CELLS = ",".join(ROW), ",".join(map(str, ROW.values()))


def rows(**changed) -> pd.DataFrame:
    return pd.DataFrame([{**ROW, **changed}])


def written(folder: Path, *lines: str) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model": "deepseek-v3", "n_chips": 1}, "memory of 1 chip does not hold the weights in any layout: 671 GB of "
                                                 "weights in fp8, 72 GB usable"),
        ({"n_chips": 1, "input_len": 130000}, "memory of 1 chip does not hold the weights and one sequence's cache in "
                                              "any layout: 71 GB of weights in fp8, 72 GB usable"),
        ({"n_chips": 1.5}, "chips: got 1.5; must be a whole number"),
        ({"mode": "disagg", "n_decode_chips": 2.5}, "chips: got 2.5; must be a whole number"),
        ({"concurrency": 2.5}, "concurrency: got 2.5; must be a whole number"),
        ({"input_len": 130573}, "input and output: got 131,073 tokens; llama-3.1-70b takes at most 131,072"),
        ({"output_len": 130073}, "input and output: got 131,073 tokens; llama-3.1-70b takes at most 131,072"),
    ],
)  # fmt: skip
def test_runs_that_cannot_have_been_are_left_out(changed, why: str):
    done = check(rows(**changed))
    assert not done.rows
    assert [row["why"] for row in done.unused] == [why]


def test_rows_that_fit_stay_beside_one_that_does_not():
    both = pd.concat([rows(id="large", model="deepseek-v3", n_chips=1), rows()])
    done = check(both)
    assert [row["id"] for row in done.rows] == ["a"]
    assert [row["id"] for row in done.unused] == ["large"]
    assert done.rows == check(rows()).rows


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((HEADER, CELLS + ","), "row 1: got 13 cells; must be 12, as many as there are column names"),
        ((HEADER, CELLS, CELLS + ",9,9"), "row 2: got 14 cells; must be 12"),
        ((HEADER, CELLS.rpartition(",")[0]), "row 1: got 11 cells; must be 12"),
        ((HEADER + ",tpot_ms", CELLS + ",30"), "tpot_ms: more than one column has this name"),
        ((HEADER + ",note,note", CELLS + ",x,y"), "note: more than one column has this name"),
    ],
)
def test_ragged_rows_and_columns_of_one_name_are_refused(tmp_path: Path, lines: tuple[str, ...], said: str):
    with pytest.raises(CatalogError) as caught:
        check(written(tmp_path, *lines))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trailing_comma_everywhere_is_an_unnamed_column(tmp_path: Path):
    plain = check(rows()).rows
    assert check(written(tmp_path, HEADER + ",", CELLS + ",")).rows == plain
    assert check(written(tmp_path, "\ufeff" + HEADER, "", CELLS, "")).rows == plain


def test_columns_of_one_name_in_a_frame_are_refused():
    frame = pd.concat([rows(), pd.DataFrame({"concurrency": [32]})], axis=1)
    with pytest.raises(CatalogError, match=r"^data frame: concurrency: more than one column has this name$"):
        check(frame)


def test_missing_cells_of_every_kind_are_blank():
    for blank in (pd.NA, None, math.nan, np.float64("nan"), pd.NaT, ""):
        (told,) = check(rows(concurrency=blank)).unused
        assert told["why"] == "concurrency not stated"
    nullable = rows(ttft_ms=pd.NA).convert_dtypes()
    assert check(nullable).rows == check(rows(ttft_ms=None)).rows


@pytest.mark.parametrize("text", ["3_2", "\uff11\uff12", "0x20", "1e", "inf", "nan", "1,000", "+-3"])
def test_what_is_no_number_is_refused(text: str):
    with pytest.raises(CatalogError, match="concurrency: got "):
        check(rows(concurrency=text))


@pytest.mark.parametrize("text", ["64", " 64 ", "64.0", "6.4e1", "+64", "64."])
def test_forms_of_a_number(text: str):
    assert check(rows(concurrency=text)).rows == check(rows()).rows


def test_the_chart_of_many_rows_stays_small():
    many = pd.concat([rows()] * 20000, ignore_index=True)
    many["tpot_ms"] = np.geomspace(1.0, 100.0, len(many))
    many["id"] = [f"r{i}" for i in range(len(many))]
    done = check(many)
    assert len(done.rows) == 20000
    chart = measured(done.to_frame(), "many")
    assert f"{MOST_MARKS:,} of 20,000 rows drawn" in " ".join(chart.to_dict()["title"]["subtitle"])
    assert len(check_files(done)["check.svg"]) < 2e6
    few = measured(check(rows()).to_frame(), "one").to_dict()
    assert "drawn" not in " ".join(few["title"]["subtitle"])
