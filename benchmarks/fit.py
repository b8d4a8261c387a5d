"""Fits of Chinchilla's 240 and 245 runs: the whole fit with its refits, and the ratio to the package `chinchilla`.

    pip install chinchilla
    ALLOCATOR_DATA_MIRROR=... python benchmarks/fit.py          # --alone leaves the other package out

The other package fits the 245 runs once from the grid of its README (it has no bootstrap); the same process times both.
"""

import sys
import tempfile
import time

import numpy as np
import pandas as pd

STARTS, DRAWS = 512, 4000


def main(alone: bool) -> None:
    """Print seconds and ratios."""
    began = time.perf_counter()
    from allocator.downloads import fetch
    from allocator.fitting.estimation import fit

    frame = pd.read_csv(fetch("chinchilla_epoch")["svg_extracted_data.csv"])
    columns = {"n_active": "Model Size", "compute_flop": "Training FLOP"}
    loaded = time.perf_counter() - began
    order = np.argsort(frame["Training FLOP"] / frame["Model Size"] ** 2, kind="stable")
    first = _timed(lambda: fit(frame.iloc[order[5:]], columns=columns, starts=STARTS, bootstrap=DRAWS))
    again = _timed(lambda: fit(frame.iloc[order[5:]], columns=columns, starts=STARTS, bootstrap=DRAWS, seed=1))
    print(f"import {loaded:.1f} s; 240 runs, {STARTS} starts and {DRAWS} refits: {first:.1f} s with compilation, "
          f"{again:.1f} s after it")  # fmt: skip
    once = _timed(lambda: fit(frame, columns=columns, starts=STARTS, bootstrap=0))
    both = _timed(lambda: fit(frame, columns=columns, starts=STARTS, bootstrap=DRAWS, seed=1))
    print(f"245 runs: {STARTS} starts alone {once:.1f} s with compilation; with {DRAWS} refits {both:.1f} s after it")
    if alone:
        return
    other = _timed(lambda: _chinchilla(frame))
    print(f"package chinchilla, 245 runs once: {other:.1f} s; ratio {other / once:.0f} to one, {other / both:.0f} to "
          f"one with {DRAWS} refits")  # fmt: skip


def _timed(function) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _chinchilla(frame: pd.DataFrame) -> None:
    import chinchilla

    # The grid that its README shows.
    grid = {"E": np.linspace(1, 2, 5), "a": np.linspace(1, 10, 5), "b": np.linspace(1, 10, 5),
            "alpha": np.linspace(0.1, 0.7, 5), "beta": np.linspace(0.1, 0.7, 5)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        flop, size = frame["Training FLOP"], frame["Model Size"]
        runs = pd.DataFrame({"C": flop, "N": size, "D": flop / (6 * size), "loss": frame["loss"]})
        runs.to_csv(f"{folder}/df.csv", index=False)
        chinchilla.Chinchilla(folder, param_grid=grid).fit()


if __name__ == "__main__":
    main("--alone" in sys.argv)
