"""Fit the three constants of the serving calibration, and say what they miss on a model that they were not fitted to.

python scripts/fit_serving.py

Prints what allocator/roofline/calibration.py holds: the constants, the spread of measured over predicted time where the
same chips read the prompts and where others do, the chips and the models. The loss is the mean of |log(predicted /
measured)|, so that twice and half count alike and a few odd rows do not decide.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from allocator.roofline.calibration import SERVING
from allocator.roofline_checks import predictor

START = (1e-4, 0.65, 0.4)  # seconds a layer, efficiencies of memory and of compute


class Fit(NamedTuple):
    """Constants and the loss at them."""

    layer_latency_s: float
    memory_efficiency: float
    compute_efficiency: float
    loss: float


class Serving:
    """Measured rows and their predictions."""

    def __init__(self, table: str = "serving_measurements"):
        self.rows, self._predicted = predictor(table)
        self.measured = np.asarray([row["measured_tpot_ms"] for row in self.rows]) / 1e3
        self.models = np.asarray([row["model"] for row in self.rows])
        self.modes = np.asarray([row["mode"] for row in self.rows])

    def predicted(self, constants) -> np.ndarray:
        """Predicted seconds per output token."""
        latency, memory, compute = (float(value) for value in constants)
        return self._predicted(replace(SERVING, layer_latency_s=latency, memory_efficiency=memory,
                                       compute_efficiency=compute))  # fmt: skip

    def fit(self, kept: np.ndarray | None = None) -> Fit:
        """Constants of least loss on the rows that are kept."""
        rows = np.ones(len(self.rows), bool) if kept is None else kept

        def loss(logs) -> float:
            return float(np.mean(np.abs(np.log(self.predicted(np.exp(logs)) / self.measured)[rows])))

        found = minimize(loss, np.log(START), method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-9})
        latency, memory, compute = (float(value) for value in np.exp(found.x))
        return Fit(latency, memory, compute, float(found.fun))

    def median_error(self, constants, rows: np.ndarray) -> float:
        """Median of |predicted/measured - 1|."""
        return float(np.median(np.abs(self.predicted(constants) / self.measured - 1)[rows]))


def main() -> None:
    serving = Serving()
    fit = serving.fit()
    print(f"{len(serving.rows):,} rows: t0 {1e3 * fit.layer_latency_s:.4f} ms a layer, "
          f"e_m {fit.memory_efficiency:.4f}, e_c {fit.compute_efficiency:.4f}; loss {fit.loss:.4f}")  # fmt: skip
    rounded = (round(fit.layer_latency_s, 5), round(fit.memory_efficiency, 2), round(fit.compute_efficiency, 2))
    ratios = serving.measured / serving.predicted(rounded)
    for mode in ("agg", "disagg"):
        low, high = np.quantile(ratios[serving.modes == mode], [0.1, 0.9])
        print(f"{mode}: {(serving.modes == mode).sum():,} rows, measured over predicted {low:.3f} to {high:.3f}")
    print("chips", sorted({row["hardware"] for row in serving.rows}), "models", sorted({*serving.models}))
    print(
        f"{'model left out':18} {'rows':>6} {'t0 ms':>7} {'e_m':>6} {'e_c':>6}  {'median error':>12} {'fitted to':>12}"
    )
    for model in sorted({*serving.models}):
        out = serving.models == model
        other = serving.fit(~out)
        print(f"{model:18} {out.sum():6,} {1e3 * other.layer_latency_s:7.3f} {other.memory_efficiency:6.2f} "
              f"{other.compute_efficiency:6.2f}  {serving.median_error(other[:3], out):12.0%} "
              f"{serving.median_error(fit[:3], out):12.0%}")  # fmt: skip


if __name__ == "__main__":
    main()
