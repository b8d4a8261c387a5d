"""Time a warm solve beside a plain SciPy loop, and the commands from a cold start.

    python benchmarks/solve.py

Figures are medians of one run on one machine; the ratio is what carries over to another.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from timing import median_ms

import allocator
from allocator.optimum.solving import optimise
from allocator.problem import Problem
from allocator.scenario.building import build

REPEATS = 50
COLD_REPEATS = 5


def plain_slsqp(problem: Problem) -> np.ndarray:
    """What one writes first: SLSQP on logs with finite differences at a tight tolerance, in NumPy."""
    law, costs = problem.law, problem.costs
    pre, rl, test = law.pretraining, law.joint.rl, law.joint.test_time
    c_d = 6.0 * costs.pretrain.overhead.value
    c_r = costs.rl.flop_per_param_token * costs.rl.overhead.value
    c_k = 2.0 * costs.decode.overhead.value * costs.lifetime_tokens

    def loss(x):
        base = np.logaddexp(np.log(pre.a) - pre.alpha * x[0], np.log(pre.b) - pre.beta * x[1])
        return base - rl.exponent * (x[2] - np.log(rl.unit_tokens)) - test.exponent * x[3]

    def budget(x):
        return np.log(np.exp(x[0]) * (c_d * np.exp(x[1]) + c_r * np.exp(x[2]) + c_k * np.exp(x[3]))) - problem.log_limit

    start = np.log([1e10, 1e13, 1e13, 0.1])
    options = {"ftol": 1e-15, "maxiter": 1000}
    return minimize(loss, start, constraints={"type": "eq", "fun": budget}, method="SLSQP", options=options).x


def cold_s(*arguments: str) -> float:
    command = [str(Path(sys.executable).with_name("allocator")), *arguments]
    times = []
    for _ in range(COLD_REPEATS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    free = ["decisions.n_active=free", "decisions.k=free", "objective.compute_flop=1e26"]
    power = build(allocator.load("lecture", overrides=[*free, "law.rl.unit_tokens=1e9"])).problem
    saturating = build(allocator.load("lecture", overrides=free)).problem
    fixed = build(allocator.load("lecture")).problem
    plain = median_ms(lambda: plain_slsqp(power), 20)
    print(f"{'warm solve':58} {'ms':>8} {'plain / this':>14}")
    for label, problem in (
        ("4 free variables, pure powers", power),
        ("4 free variables, saturating RL (scan over 151 sizes)", saturating),
        ("lecture: N and k fixed", fixed),
    ):
        took = median_ms(lambda problem=problem: optimise(problem), REPEATS)
        print(f"{label:58} {took:8.2f} {plain / took:14.1f}")
    print(f"{'plain SLSQP, finite differences, ftol 1e-15 (first row)':58} {plain:8.2f} {1.0:14.1f}")
    print(f"\n{'cold command':58} {'s':>8}")
    for arguments in (("plan",), ("--help",)):
        print(f"{'allocator ' + ' '.join(arguments):58} {cold_s(*arguments):8.2f}")


if __name__ == "__main__":
    main()
