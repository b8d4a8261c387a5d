"""Tables of runs from known laws, written out in NumPy, for fits that have to find the law again."""

import numpy as np
import pandas as pd
from scipy.special import betaln, expit

Values = dict[str, float]
Columns = dict[str, np.ndarray]


def _chinchilla(p: Values, c: Columns) -> np.ndarray:
    return p["A"] * c["n_active"] ** -p["alpha"] + p["B"] * c["d_tokens"] ** -p["beta"]


def _gadre(p: Values, c: Columns) -> np.ndarray:
    m, flop = c["d_tokens"] / c["n_active"], 6 * c["n_active"] * c["d_tokens"]
    return p["E"] + (p["p"] * m ** p["h"] + p["q"] * m ** -p["h"]) * flop ** -p["h"]


def _data_constrained(p: Values, c: Columns) -> np.ndarray:
    d, unique = c["d_tokens"], c["unique_tokens"]
    repeats = np.maximum(d / unique - 1, 0)
    worth = np.minimum(d, unique) + unique * p["r_star"] * -np.expm1(-repeats / p["r_star"])
    return p["E"] + _chinchilla(p, c | {"d_tokens": worth})


def _rl_power(p: Values, c: Columns) -> np.ndarray:
    level = np.select([c["n_active"] == size for size in (5e8, 3e9, 1.4e10)], [p["E_500M"], p["E_3.00B"], p["E_14.0B"]])
    return 10**level * c["rl_amount"] ** -(p["Kmax"] / (1 + p["N0"] / c["n_active"]))


def _rl_sigmoid(p: Values, c: Columns) -> np.ndarray:
    raised = c["rl_amount"] ** p["B"]
    return p["R0"] + (p["A"] - p["R0"]) * raised / (raised + p["mid"] ** p["B"])


def _beta_pass(mu, nu, k) -> np.ndarray:
    return -np.log(-np.expm1(betaln(mu * nu, (1 - mu) * nu + k) - betaln(mu * nu, (1 - mu) * nu)))


def _pass_at_k(p: Values, c: Columns) -> np.ndarray:
    mu = p["th2"] * expit(-p["th1"] * (c["pretraining_loss"] - p["th0"]))
    return _beta_pass(mu, np.exp(p["th3"] + p["th4"] * c["pretraining_loss"]), c["k"])


def factors(p: Values, c: Columns) -> tuple[np.ndarray, np.ndarray]:
    """What RL and what samples leave of a loss."""
    return (1 + c["d_rl"] / p["R0"]) ** -p["rho"], c["k"] ** -p["gamma"]


def _joined(p: Values, c: Columns) -> np.ndarray:
    f, g = factors(p, c)
    overlap = p.get("overlap", 0.0)
    return (f**-overlap + g**-overlap - 1) ** (-1 / overlap) if overlap else f * g


def _coverage(p: Values, c: Columns) -> np.ndarray:
    reached = p["E"] + _chinchilla(p, c)
    return 1 - (1 - reached) * (1 - (p["guess"] + p["slope"] * reached) * _joined(p, c))


LAWS = {
    "chinchilla": lambda p, c: p["E"] + _chinchilla(p, c),
    "gadre": _gadre,
    "data-constrained": _data_constrained,
    "rl-power": _rl_power,
    "rl-sigmoid": _rl_sigmoid,
    "rl-saturating": lambda p, c: p["E"] + p["S"] * (1 + c["d_rl"] / p["R0"]) ** -p["rho"],
    "pass-at-k-power": lambda p, c: p["a"] * c["k"] ** -p["b"],
    "pass-at-k": _pass_at_k,
    "t2-loss": lambda p, c: p["E"] + _chinchilla(p, c) + p["G"] * c["k"] ** -p["gamma"],
    "loss-to-error": lambda p, c: p["epsilon"] - p["kappa"] * np.exp(-p["gamma"] * c["loss"]),
    "product": lambda p, c: p["E"] + _chinchilla(p, c) * _joined(p, c),
    "additive": lambda p, c: p["E"] + _chinchilla(p, c) + p["G_R"] * factors(p, c)[0] + p["G_k"] * factors(p, c)[1],
    "shared": lambda p, c: p["E"] + _chinchilla(p, c) + p["G"] * _joined(p, c),
    "coverage": _coverage,
}
LAWS |= {f"{name}-overlap": LAWS[name] for name in ("product", "shared", "coverage")}

SURFACE = {"E": 1.82, "A": 482.0, "B": 2085.0, "alpha": 0.348, "beta": 0.366}
LEVERS = {"rho": 0.3, "R0": 1e9, "gamma": 0.2}
SAMPLING = {"guess": 0.2, "slope": 0.5}
ERRORS = {"E": 0.05, "A": 60.0, "B": 200.0, "alpha": 0.3, "beta": 0.3} | LEVERS | SAMPLING
TRUTHS: dict[str, Values] = {
    "chinchilla": SURFACE,
    "gadre": {"E": 1.5, "p": 140.0, "q": 190.0, "h": 0.12},
    "data-constrained": SURFACE | {"r_star": 15.0},
    "rl-power": {"E_500M": -0.02, "E_3.00B": -0.1, "E_14.0B": -0.25, "Kmax": 0.05, "N0": 5e9},
    "rl-sigmoid": {"R0": 0.05, "A": 0.7, "B": 1.3, "mid": 300.0},
    "rl-saturating": {"E": 0.4, "S": 1.1, "rho": 0.5, "R0": 2e9},
    "pass-at-k-power": {"a": 2.5, "b": 0.35},
    "pass-at-k": {"th0": 2.4, "th1": 4.0, "th2": 0.7, "th3": 3.0, "th4": -0.8},
    "t2-loss": SURFACE | {"G": 0.6, "gamma": 0.3},
    "loss-to-error": {"epsilon": 0.85, "kappa": 2.1, "gamma": 0.7},
    "product": SURFACE | LEVERS,
    "additive": SURFACE | LEVERS | {"G_R": 0.5, "G_k": 0.4},
    "shared": SURFACE | LEVERS | {"G": 0.7},
    "coverage": ERRORS,
    "product-overlap": SURFACE | LEVERS | {"overlap": 1.5},
    "shared-overlap": SURFACE | LEVERS | {"G": 0.7, "overlap": 1.5},
    "coverage-overlap": ERRORS | {"overlap": 1.5},
}
TARGETS = {"rl-power": "error_rate", "rl-sigmoid": "pass_rate", "loss-to-error": "error_rate",
           "coverage": "error_rate", "coverage-overlap": "error_rate"}  # fmt: skip


def crossed(**levels) -> Columns:
    """Every combination of the levels."""
    return {name: part.ravel() for name, part in zip(levels, np.meshgrid(*levels.values()), strict=True)}


def grid(sizes=(5e7, 2e8, 6e8, 2e9, 7e9), ratios=(3.0, 10.0, 30.0, 100.0, 300.0)) -> Columns:
    """Sizes crossed with tokens per parameter."""
    made = crossed(n_active=np.array(sizes), ratio=np.array(ratios))
    return {"n_active": made["n_active"], "d_tokens": made["n_active"] * made["ratio"]}


def four_levers() -> Columns:
    """Sizes, tokens per parameter, RL tokens (also none) and samples: three in five of all combinations."""
    made = crossed(n_active=np.array([1e8, 1e9, 2e10]), ratio=np.array([5.0, 40.0, 300.0]),
                   d_rl=np.array([0.0, 3e8, 2e9, 3e10]), k=np.array([1.0, 8.0, 64.0]))  # fmt: skip
    made = {name: values[np.arange(len(values)) % 5 < 3] for name, values in made.items()}  # as good, and faster
    return {"n_active": made["n_active"], "d_tokens": made["n_active"] * made.pop("ratio"),
            "d_rl": made["d_rl"], "k": made["k"]}  # fmt: skip


def design(law: str) -> Columns:
    """Columns that determine the law."""
    match law:
        case "data-constrained":
            made = grid()
            return made | {"unique_tokens": made["d_tokens"] / np.resize([0.5, 1.0, 4.0, 20.0], len(made["d_tokens"]))}
        case "rl-power":
            return crossed(n_active=np.array([5e8, 3e9, 1.4e10]), rl_amount=np.geomspace(1e2, 1e5, 8))
        case "rl-sigmoid":
            return {"rl_amount": np.array([0.0, *np.geomspace(5, 3e4, 24)])}
        case "rl-saturating":
            return {"d_rl": np.array([0.0, *np.geomspace(1e7, 1e12, 24)])}
        case "pass-at-k-power":
            return {"k": 2.0 ** np.arange(12)}
        case "pass-at-k":
            return crossed(pretraining_loss=np.linspace(1.9, 3.4, 8), k=np.array([1.0, 4.0, 16.0, 64.0]))
        case "loss-to-error":
            return {"loss": np.linspace(2.2, 4.5, 25)}
        case "t2-loss":
            made = crossed(n_active=np.array([5e7, 2e8, 6e8, 2e9]), ratio=np.array([3.0, 20.0, 100.0, 500.0]),
                           k=np.array([1.0, 8.0, 64.0]))  # fmt: skip
            return {"n_active": made["n_active"], "d_tokens": made["n_active"] * made["ratio"], "k": made["k"]}
        case "chinchilla" | "gadre":
            return grid()
        case _:
            return four_levers()


def table(law: str = "chinchilla", noise: float = 0.0, seed: int = 0, columns: Columns | None = None,
          **changed: float) -> pd.DataFrame:  # fmt: skip
    """Runs of a law with its `TRUTHS` (or others), the target times exp(noise z), z standard normal."""
    columns = design(law) if columns is None else columns
    target = LAWS[law](TRUTHS[law] | changed, columns)
    errors = np.random.default_rng(seed).standard_normal(len(target))
    return pd.DataFrame(columns | {TARGETS.get(law, "loss"): target * np.exp(noise * errors)})


def counts(a: float, b: float, problems: int, samples: int, seed: int = 0) -> pd.DataFrame:
    """Correct samples of problems whose success rates are beta-distributed."""
    rng = np.random.default_rng(seed)
    correct = rng.binomial(samples, rng.beta(a, b, problems))
    return pd.DataFrame({"n_samples": np.full(problems, samples), "n_correct": correct})
