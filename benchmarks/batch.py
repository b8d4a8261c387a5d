"""Time batches of plans: pure powers, the lecture's law, laws with overlap; against one at a time by other solvers.

    python benchmarks/batch.py [--count 100000] [--agree 0]

`--agree N` also solves N random problems with overlap by the single path and counts those where the batch's best of
starts is as good. Figures are of one run on one machine; ratios are what carries over to another.
"""

import argparse
import time

import cvxpy as cp
import numpy as np
from scipy.optimize import minimize

import allocator
from allocator.optimum.batches import STARTS
from allocator.scenario.reading import from_values, load, with_values

PURE = {
    "objective": {"compute_flop": 1e24},
    "law": {"rl": {"exponent": 0.05, "unit_tokens": 1e9}, "test_time": {"exponent": 0.05}},
    "deployment": {"lifetime_tokens": 1e13},
    "rl": {"overhead": 3.0},
    "inference": {"overhead": 3.0},
}


def pure_values(count: int, seed: int) -> dict[str, np.ndarray]:
    """Random pure-power problems with an optimum inside, every number varied."""
    rng = np.random.default_rng(seed)
    alpha, beta = rng.uniform(0.15, 0.6, (2, count))
    rho, gamma = rng.uniform(0.01, 0.49, (2, count)) * alpha
    return {
        "law.pretraining.A": 10 ** rng.uniform(1, 4, count),
        "law.pretraining.B": 10 ** rng.uniform(1, 4, count),
        "law.pretraining.alpha": alpha,
        "law.pretraining.beta": beta,
        "law.rl.exponent": rho,
        "law.test_time.exponent": gamma,
        "law.rl.unit_tokens": 10 ** rng.uniform(6, 12, count),
        "rl.flop_per_param_token": rng.uniform(2, 6, count),
        "rl.overhead": rng.uniform(1, 10, count),
        "inference.overhead": rng.uniform(1, 10, count),
        "deployment.lifetime_tokens": 10 ** rng.uniform(9, 16, count),
        "objective.compute_flop": 10 ** rng.uniform(18, 28, count),
    }


def lecture_values(count: int, seed: int) -> dict[str, np.ndarray]:
    """The lecture's saturating law around the lecture's numbers."""
    rng = np.random.default_rng(seed)
    return {
        "law.pretraining.alpha": rng.uniform(0.3, 0.4, count),
        "law.pretraining.beta": rng.uniform(0.3, 0.4, count),
        "law.rl.exponent": rng.uniform(0.02, 0.2, count),
        "law.rl.scale_tokens": 10 ** rng.uniform(8, 11, count),
        "rl.overhead": rng.uniform(1, 7, count),
        "inference.overhead": rng.uniform(1, 7, count),
        "deployment.tokens_per_second": 10 ** rng.uniform(6, 7.5, count),
        "objective.compute_flop": 10 ** rng.uniform(26.6, 28, count),
    }


def overlap_values(count: int, seed: int) -> dict[str, np.ndarray]:
    """Laws with overlap, k free from 1 on."""
    rng = np.random.default_rng(seed)
    return {
        "law.overlap": rng.uniform(0.2, 4, count),
        "law.rl.exponent": rng.uniform(0.05, 0.33, count),
        "law.test_time.exponent": rng.uniform(0.05, 0.33, count),
        "law.rl.scale_tokens": 10 ** rng.uniform(8, 13, count),
        "deployment.tokens_per_second": 10 ** rng.uniform(3, 9, count),
        "objective.compute_flop": 10 ** rng.uniform(23, 28, count),
    }


def timed(name: str, scenario: allocator.Scenario, values, starts: int = STARTS) -> tuple[float, allocator.Plans]:
    """Seconds of the second call, since the first one compiles."""
    allocator.solve_batch(scenario, values, starts=starts)
    begun = time.perf_counter()
    plans = allocator.solve_batch(scenario, values, starts=starts)
    took = time.perf_counter() - begun
    worst = float(np.nanmax(plans.kkt_residual))
    print(f"{name:44} {took:8.2f} s  {len(plans) / took:10,.0f}/s  {int(plans.solved.sum()):,} solved, "
          f"worst KKT residual {worst:.1e}, {int(plans.starts.max())} starts")  # fmt: skip
    return took, plans


def slsqp(values: dict[str, np.ndarray], i: int) -> np.ndarray:
    """One pure-power problem by SLSQP alone, as one would write it by hand."""
    x = {path.rpartition(".")[2] if "pretraining" in path else path: float(v[i]) for path, v in values.items()}
    rates = (6.0, x["rl.flop_per_param_token"] * x["rl.overhead"],
             2 * x["inference.overhead"] * x["deployment.lifetime_tokens"])  # fmt: skip
    rho, gamma, unit = x["law.rl.exponent"], x["law.test_time.exponent"], x["law.rl.unit_tokens"]

    def loss(z):
        base = np.logaddexp(np.log(x["A"]) - x["alpha"] * z[0], np.log(x["B"]) - x["beta"] * z[1])
        share = np.exp(np.log(x["A"]) - x["alpha"] * z[0] - base)
        slope = np.array([-x["alpha"] * share, -x["beta"] * (1 - share), -rho, -gamma])
        return base - rho * (z[2] - np.log(unit)) - gamma * z[3], slope

    def left(z):
        return np.log(x["objective.compute_flop"]) - np.logaddexp.reduce(np.log(rates) + z[1:]) - z[0]

    def left_slope(z):
        parts = np.exp(np.log(rates) + z[1:] - np.logaddexp.reduce(np.log(rates) + z[1:]))
        return -np.array([1.0, *parts])

    third = np.log(x["objective.compute_flop"] / 3)
    start = np.array([third / 2, *(third / 2 - np.log(rates))])
    found = minimize(loss, start, jac=True, method="SLSQP", options={"ftol": 1e-15, "maxiter": 500},
                     constraints={"type": "ineq", "fun": left, "jac": left_slope})  # fmt: skip
    return found.x


def dgp() -> tuple[cp.Problem, list[cp.Parameter], list[cp.Variable]]:
    """The same problem as a disciplined geometric program with parameters, compiled once by cvxpy."""
    n, d, r, k = (cp.Variable(pos=True) for _ in range(4))
    names = ("A", "B", "c_d", "c_r", "c_k")
    a, b, c_d, c_r, c_k = (cp.Parameter(pos=True, name=name, value=1.0) for name in names)
    alpha, beta, rho, gamma = (cp.Parameter(value=0.1) for _ in range(4))
    base = a * cp.power(1 / n, alpha) + b * cp.power(1 / d, beta)
    objective = base * cp.power(1 / r, rho) * cp.power(1 / k, gamma)
    problem = cp.Problem(cp.Minimize(objective), [c_d * n * d + c_r * n * r + c_k * n * k <= 1])
    return problem, [a, b, c_d, c_r, c_k, alpha, beta, rho, gamma], [n, d, r, k]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--agree", type=int, default=0)
    given = arguments.parse_args()
    values = pure_values(given.count, 0)
    took, plans = timed("pure powers, four decisions", from_values(PURE), values)
    timed(
        "lecture, N fixed", with_values(load("lecture"), {"decisions.n_active": 5e10}), lecture_values(given.count, 1)
    )
    timed("lecture, N free, 4 starts", load("lecture-free"), lecture_values(given.count, 1), 4)
    overlap = with_values(load("lecture-free"), {"law.overlap": 1.0, "decisions.k": "free"})
    runs = STARTS + 1  # the last is from the optimum of one problem of the batch
    many, _ = timed(f"overlap, {runs} starts", overlap, overlap_values(given.count, 2))
    print(f"{'':44} {many / runs:8.2f} s a start, with what was solved alone")

    begun, some = time.perf_counter(), 200
    zs = np.array([slsqp(values, i) for i in range(some)])
    slow = (time.perf_counter() - begun) / some
    error = np.abs(zs[:, 0] - np.log(plans.figures.decision.n_active[:some]))
    each = took / given.count
    print(f"SLSQP in a loop, ftol 1e-15: {1e3 * slow:.2f} ms each, {slow / each:,.0f} x a problem of the "
          f"batch; N differs by more than 1e-6 in {np.mean(~(error < 1e-6)):.0%}")  # fmt: skip
    problem, parameters, variables = dgp()
    tried, failed, begun = 20, 0, time.perf_counter()
    for i in range(tried):
        x = {path: float(v[i]) for path, v in values.items()}
        budget = x["objective.compute_flop"]
        unit = x["law.rl.unit_tokens"] ** x["law.rl.exponent"]  # a product of two parameters would not be DPP
        numbers = [x["law.pretraining.A"] * unit, x["law.pretraining.B"] * unit, 6 / budget,
                   x["rl.flop_per_param_token"] * x["rl.overhead"] / budget,
                   2 * x["inference.overhead"] * x["deployment.lifetime_tokens"] / budget,
                   x["law.pretraining.alpha"], x["law.pretraining.beta"], x["law.rl.exponent"],
                   x["law.test_time.exponent"]]  # fmt: skip
        for parameter, number in zip(parameters, numbers, strict=True):
            parameter.value = number
        try:
            problem.solve(gp=True)
            failed += not np.isclose(np.log(variables[0].value), np.log(plans.figures.decision.n_active[i]), atol=1e-3)
        except (cp.error.SolverError, cp.error.DPPError):
            failed += 1
    slow = (time.perf_counter() - begun) / tried
    print(f"cvxpy, DGP with parameters: {1e3 * slow:.1f} ms each, {slow / each:,.0f} x a problem of the "
          f"batch; {failed} of {tried} fail or differ by more than 1e-3 in log N")  # fmt: skip

    if given.agree:
        chosen = overlap_values(given.agree, 3)
        plans, behind = allocator.solve_batch(overlap, chosen), 0
        for i in range(given.agree):
            alone = allocator.solve(with_values(overlap, {p: float(v[i]) for p, v in chosen.items()}), throw=False)
            behind += bool(plans.figures.loss[i] > alone.loss + 1e-9 * alone.reducible_loss)
        print(f"best of {STARTS} starts is behind the single path in {behind} of {given.agree} problems with overlap")


if __name__ == "__main__":
    main()
