"""Coverage of nominal 90% intervals for N* on simulated runs, as a Markdown table."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from allocator.fitting.simulations import Design, coverage


def main(simulations: int | None = None) -> None:
    """Print a row a case of interval_coverage.toml; fewer simulations for a quick look."""
    plan = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    print("| runs | law | loss | noise | simulations | covered | bias of log N* | spread of log N* |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for case in plan["case"]:
        design = Design(_points(case["n_active"]), _points(case["tokens_per_param"]))
        shared = {key: plan[key] for key in ("draws", "level", "at_flop", "seed")}
        done = coverage(design, case["truth"], law=case["law"], loss=case["loss"], noise=case["noise"],
                        simulations=simulations or plan["simulations"], **shared)  # fmt: skip
        print(f"| {case['title']} | {case['law']} | {case['loss']} | {case['noise']:.1%} | {done.simulations} | "
              f"{done.covered:.1%} ± {done.standard_error:.1%} | {done.bias:+.3f} | {done.spread:.3f} |",
              flush=True)  # fmt: skip


def _points(ends: dict[str, Any]) -> list[float]:
    return list(np.geomspace(ends["from"], ends["to"], ends["count"]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
