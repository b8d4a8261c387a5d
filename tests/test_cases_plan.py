"""Rows of cases/law_cases.csv that belong to the plan: papers' numbers and derived identities, each at its tolerance.

A row is answered by this package's public functions. One that is marked `plan` and has no answer here fails.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import allocator
from allocator import catalog
from allocator.costs import Constant, Costs, PhaseCost
from allocator.errors import SolveError
from allocator.laws.additive import Additive
from allocator.laws.chinchilla import Chinchilla, equal_cost_exponent
from allocator.laws.law import Law, Point
from allocator.laws.presets import pretraining_law
from allocator.laws.product import Product
from allocator.laws.repetition import R_STAR, log_effective_tokens
from allocator.laws.rl import PowerRl
from allocator.laws.test_time import TestTime
from allocator.optimum.solving import optimise
from allocator.problem import Decision, Problem, make_problem
from allocator.scenario.reading import with_values

CASES = Path(__file__).parent / "cases"
Row = dict[str, str]

with (CASES / "law_cases.csv").open(encoding="utf-8", newline="") as file:
    ROWS = {row["id"]: row for row in csv.DictReader(file) if row["issue"] == "plan"}


def tolerance(row: Row) -> float:
    """Relative tolerance: `0.1%`, `1e-4`, `rel 1e-4`; `exact` leaves room for rounding alone."""
    text = row["tolerance"].removeprefix("rel ")
    if text == "exact":
        return 1e-12
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def expected(row: Row) -> list[float]:
    """Numbers and fractions of the column `expected`, without what stands in parentheses."""
    text, count = row["expected"], 1
    while count:
        text, count = re.subn(r"\([^()]*\)", "", text)
    found = re.findall(r"(?<![\w/.-])(\d+/\d+|\d*\.?\d+(?:e-?\d+)?)(%?)(?![\w/.])", text)
    return [float(Fraction(number)) / (100 if percent else 1) for number, percent in found]


def inputs(row: Row) -> dict[str, float]:
    """Plain numbers of the column `inputs`, M and B meaning millions and billions."""
    units = {"": 1.0, "M": 1e6, "B": 1e9}
    found = re.findall(r"(\w+)=(\d*\.?\d+(?:e\d+)?)([MB]?)(?![\w.(])", row["inputs"])
    return {name: float(value) * units[unit] for name, value, unit in found}


# --- ways to ask ---


def preset(name: str):
    record = catalog.law_record(name)
    return pretraining_law(record.name, record.content["kind"], record.content["parameters"])


def costs(lifetime_tokens=0.0, *, kappa=2.0, rl_overhead=1.0, serve_overhead=1.0) -> Costs:
    one = Constant(1.0)
    return Costs(
        PhaseCost(6.0, one),
        PhaseCost(kappa, Constant(rl_overhead)),
        PhaseCost(2.0, Constant(serve_overhead)),
        PhaseCost(2.0, one),
        lifetime_tokens,
    )


def training_plan(law: str, flop: float):
    """Pre-training alone: no RL, nothing served."""
    changes = {"law.pretraining": law, "objective.compute_flop": flop}
    return allocator.solve(with_values(allocator.load("gopher-budget"), changes))


def paid(prices: Costs, decision: Decision) -> np.ndarray:
    """Cost of the three phases in FLOP."""
    return np.array([float(cost) for cost in prices.phase_costs(jnp.log(decision.n_active), *decision[1:])])


def shares(problem: Problem) -> np.ndarray:
    """Shares of cost at the optimum."""
    phases = paid(problem.costs, optimise(problem).decision)
    return phases / phases.sum()


def elasticities(law: Law, decision: Decision) -> np.ndarray:
    """-dlog(L - E)/dlog x of N, D, R and k."""

    def log_reducible(logs):
        return law.log_reducible(Point(logs[0], logs[1], law.rl_axis.coordinate(jnp.exp(logs[2])), logs[3]))

    return -np.asarray(jax.grad(log_reducible)(jnp.log(jnp.array(decision))))


def optimal_tokens(law: Chinchilla, n_active: float) -> float:
    return float(jnp.exp(law.log_optimal_tokens(jnp.log(n_active))))


def cheapest(law: Chinchilla, loss: float, lifetime_tokens: float) -> Decision:
    """Decision of least cost at a loss when so many tokens are served at k = 1, without RL."""
    fixed = {"d_rl": 0.0, "k": 1.0}
    return optimise(make_problem(Product(law), costs(lifetime_tokens), target_loss=loss, fixed=fixed)).decision


def slope(law: str, read: Callable) -> float:
    """d log(what `read` takes from a plan) / d log C, between two solved budgets."""
    low, high = (training_plan(law, budget) for budget in (1e21, 1e25))
    return math.log(read(high) / read(low)) / math.log(1e25 / 1e21)


def equal_cost_plan(law: str, budget: float, **terms):
    """The lecture's deployment with all four decisions free and the exponents of equal cost."""
    exponent = equal_cost_exponent(*preset(law).size_exponents())
    changes = {
        "law.pretraining": law,
        "law.rl.exponent": exponent,
        "law.test_time.exponent": exponent,
        "objective.compute_flop": budget,
        "decisions.n_active": "free",
        "decisions.k": "free",
    }
    return allocator.solve(with_values(allocator.load("lecture"), changes | terms))


def random_laws(count: int) -> Iterator[tuple[Chinchilla, Product | Additive, Costs, float]]:
    """Pure powers with an optimum inside, product and additive by turns, with costs and a budget."""
    rng = np.random.default_rng(20260429)
    for i in range(count):
        alpha, beta = rng.uniform(0.2, 0.5, 2)
        base = Chinchilla(e=1.7, a=10 ** rng.uniform(2, 3.5), b=10 ** rng.uniform(2, 3.5), alpha=alpha, beta=beta)
        rho, gamma = rng.uniform(0.05, 0.45, 2) * alpha
        scales = (None, None) if i % 2 else rng.uniform(0.1, 1.0, 2)
        law = (Product if i % 2 else Additive)(base, PowerRl(rho, 1e9, scales[0]), TestTime(gamma, 0.0, scales[1]))
        kappa, rl_overhead, serve_overhead = rng.uniform(2, 6, 3)
        demand, budget = 10 ** rng.uniform(11, 15), 10 ** rng.uniform(22, 27)
        yield base, law, costs(demand, kappa=kappa, rl_overhead=rl_overhead, serve_overhead=serve_overhead), budget


# --- rows with numbers: the answers in the row's order ---


def chinchilla_optimum(law: str, flop: float) -> dict[str, float]:
    plan = training_plan(law, flop)
    return {"N": plan.decision.n_active, "D": plan.decision.d_pretrain, "D/N": plan.overtraining.tokens_per_param,
            "L": plan.loss}  # fmt: skip


def ch_01(row: Row) -> Sequence[float]:
    answer = chinchilla_optimum("hoffmann-2022", inputs(row)["C"])
    return answer["N"], answer["D"]


def ch_03(row: Row) -> Sequence[float]:
    answer = chinchilla_optimum("hoffmann-2022-rounded", inputs(row)["C"])
    return answer["N"], answer["D/N"]


def ch_04(row: Row) -> Sequence[float]:
    return (slope("hoffmann-2022", lambda plan: plan.decision.n_active),)


def ch_05(row: Row) -> Sequence[float]:
    law = preset("hoffmann-2022-rounded")  # the row: "printed constants"
    sizes = ((280e9, 300e9), (70e9, 1.4e12))
    return [law.floor + float(jnp.exp(law.log_reducible(jnp.log(n), jnp.log(d)))) for n, d in sizes]


def ch_t3(row: Row) -> Sequence[float]:
    """Tokens that make 6 N D / C = 1."""
    given = inputs(row)
    per_token, _, _ = costs().model_flop(given["N"], 1.0, 0.0, 1.0)
    return (given["C"] / float(per_token),)


def be_01(row: Row) -> Sequence[float]:
    return tuple(chinchilla_optimum("besiroglu-2024", inputs(row)["C"]).values())


def be_03(row: Row) -> Sequence[float]:
    return (slope("besiroglu-2024", lambda plan: plan.decision.n_active),)


def be_05(row: Row) -> Sequence[float]:
    return (-slope("besiroglu-2024", lambda plan: plan.reducible_loss),)


def sa_01(row: Row) -> Sequence[float]:
    given = inputs(row)
    scenario = with_values(allocator.load("gopher-budget"), {"law.pretraining": "sardana-2024"})
    return (allocator.evaluate(scenario, n_active=given["N"], d_pretrain=given["D"], d_rl=0.0, k=1.0).loss,)


def with_and_without_serving(loss: float, demand: float) -> tuple[Decision, Decision, float, float]:
    """Cheapest model that serves, Chinchilla's model of the same loss, and what both cost with serving."""
    law = preset("sardana-2024")
    best, reference = cheapest(law, loss, demand), cheapest(law, loss, 0.0)
    return best, reference, paid(costs(demand), best).sum(), paid(costs(demand), reference).sum()


def sa_02(row: Row) -> Sequence[float]:
    plan = allocator.solve(allocator.load("serve-two-trillion"))
    reference = with_and_without_serving(inputs(row)["loss"], inputs(row)["T_inf"])[3]
    return plan.decision.n_active, plan.decision.d_pretrain, plan.total.flop, plan.total.flop / reference


def sa_03(row: Row) -> Sequence[float]:
    _, reference, _, total = with_and_without_serving(1.947, 2e12)  # as SA-02
    return reference.n_active, reference.d_pretrain, total


def sa_06(row: Row) -> Sequence[float]:
    answer = chinchilla_optimum("sardana-2024", inputs(row)["C"])
    return answer["N"], answer["D"], answer["L"]


def quality_of(n_active: float) -> float:
    """Loss of the compute-optimal model of so many parameters."""
    law = preset("sardana-2024")
    log_n = jnp.log(n_active)
    return law.floor + float(jnp.exp(law.log_reducible(log_n, law.log_optimal_tokens(log_n))))


def served(row: Row) -> tuple[Decision, Decision, float, float]:
    size = float(re.search(r"Chinchilla-(\d+)B", row["inputs"])[1]) * 1e9
    return with_and_without_serving(quality_of(size), inputs(row)["D_inf"])


def sa_10(row: Row) -> Sequence[float]:
    best, reference, _, _ = served(row)
    return best.n_active, best.d_pretrain / reference.d_pretrain


def sa_11(row: Row) -> Sequence[float]:
    best, _, least, total = served(row)
    return best.n_active, total - least, 1 - least / total


def sa_13(row: Row) -> Sequence[float]:
    best, reference, least, total = served(row)
    return best.n_active, best.d_pretrain / reference.d_pretrain, 1 - least / total


def dc_epochs(row: Row) -> Sequence[float]:
    """Worth of D seen tokens over D, at so many epochs of a trillion unique tokens."""
    epochs, unique = inputs(row)["epochs"], 1e12
    log_worth = log_effective_tokens(jnp.log(epochs * unique), jnp.log(unique), R_STAR)
    return (float(jnp.exp(log_worth)) / (epochs * unique),)


def dc_10(row: Row) -> Sequence[float]:
    """Worth of endless repetition over U."""
    return (float(jnp.exp(log_effective_tokens(jnp.log(1e20), jnp.log(1e12), R_STAR))) / 1e12,)


def k_03(row: Row) -> Sequence[float]:
    """Pre-training's share in the plan that over-trains 100-fold; RL and test time are as strong as that takes."""
    answers = []
    for name in ("besiroglu-2024", "hoffmann-2022"):
        law = preset(name)

        def strength_of(share, alpha=law.alpha, beta=law.beta):  # rho + gamma at which a share is optimal: model.md, 4
            w = beta / (alpha * share + beta)
            return w * (alpha + beta) - beta

        exponent = strength_of(100**-law.beta) / 2
        problem = make_problem(Product(law, PowerRl(exponent, 1e9), TestTime(exponent)), costs(1e13), budget=1e26)
        n, d, _, _ = optimise(problem).decision
        assert d / optimal_tokens(law, n) == pytest.approx(100, rel=tolerance(row))
        answers.append(shares(problem)[0])
    return answers


def k_05(row: Row) -> Sequence[float]:
    """Shares, farthest from equal over budgets and laws, and the exponents."""
    names = ("besiroglu-2024", "hoffmann-2022")
    plans = [
        equal_cost_plan(name, budget, **{"law.rl.unit_tokens": 1e9}) for name in names for budget in (1e22, 1e25, 1e28)
    ]
    found = np.array([[phase.share for phase in plan.phases.values()] for plan in plans])
    worst = found[np.argmax(np.abs(found - 1 / 3).max(axis=1))]
    return *worst, *(equal_cost_exponent(*preset(name).size_exponents()) for name in names)


def k_12(row: Row) -> Sequence[float]:
    plan = equal_cost_plan("hoffmann-2022", inputs(row)["C"])
    return plan.decision.n_active, plan.decision.d_pretrain, plan.overtraining.vs_20


# --- rows with an identity: they check themselves ---


def sa_15(row: Row) -> None:
    for demand in (1e10, 2e12, 1e15):
        plan = allocator.solve(
            with_values(allocator.load("serve-two-trillion"), {"deployment.lifetime_tokens": demand})
        )
        ratio = plan.elasticities["n_active"] / plan.elasticities["d_pretrain"]  # alpha A N^-alpha / (beta B D^-beta)
        assert ratio == pytest.approx(1 + demand / (3 * plan.decision.d_pretrain), rel=tolerance(row))
        assert ratio == pytest.approx(plan.total.flop / plan.phases["pretrain"].flop, rel=tolerance(row))


def k_01(row: Row) -> None:
    for _, law, prices, budget in random_laws(6):
        problem = make_problem(law, prices, budget=budget)
        slopes = elasticities(law, optimise(problem).decision)
        assert slopes[0] == pytest.approx(slopes[1:].sum(), rel=tolerance(row))
        assert shares(problem) == pytest.approx(slopes[1:] / slopes[1:].sum(), rel=tolerance(row))


def k_02(row: Row) -> None:
    for base, law, prices, budget in random_laws(6):
        problem = make_problem(law, prices, budget=budget)
        n, d, _, _ = optimise(problem).decision
        want = shares(problem)[0] ** (-1 / base.beta)
        assert d / optimal_tokens(base, n) == pytest.approx(want, rel=tolerance(row))
    # The row's note, in its digits: s = 1/3.
    for name, want in (("besiroglu-2024", "20.15"), ("hoffmann-2022", "47.3")):
        assert want in row["note"]
        plan = equal_cost_plan(name, 1e26, **{"law.rl.unit_tokens": 1e9})
        assert f"{plan.overtraining.vs_chinchilla:.{len(want) - 1}g}" == want


def k_07(row: Row) -> None:
    law = preset("besiroglu-2024")
    for share in (0.5, 0.6, 2.0):  # rho + gamma = alpha at the first
        terms = PowerRl(law.alpha * share, 1e9), TestTime(law.alpha * share)
        with pytest.raises(SolveError, match="no interior optimum") as caught:
            optimise(make_problem(Product(law, *terms), costs(1e13), budget=1e25))
        assert caught.value.status == "no_interior_optimum"


def k_08(row: Row) -> None:
    law, demand = preset("besiroglu-2024"), 1e13
    beta, budget = law.beta, 1e27
    # At 1e27 FLOP with a third of it for each term: equal elasticities make the prefactors, whatever N is. With
    # tokens = C/(3 c N), beta G tokens^-beta is the same for D, R and k once G is proportional to c^-beta.
    rl_scale, k_scale = (law.b * (unit / 6.0) ** -beta for unit in (9.0, 6.0 * demand))
    prices = costs(demand, kappa=3.0, rl_overhead=3.0, serve_overhead=3.0)
    additive = Additive(law, PowerRl(beta, 1.0, rl_scale), TestTime(beta, 0.0, k_scale))
    for flops in (1e22, 1e25, budget, 1e29):
        problem = make_problem(additive, prices, budget=flops)
        assert shares(problem) == pytest.approx(1 / 3, rel=tolerance(row))


def k_10(row: Row) -> None:
    """Loss of the equal split, and the least budget that reaches it: the row's tolerance is in percentage points."""
    n, budget, prices = 1e9, 1e22, costs(1e12)
    cost_rates = [float(rate) for rate in prices.rates(jnp.log(n))[:3]]
    for split, want in zip(((0.5, 0.3, 0.2), (0.7, 0.15, 0.15)), expected(row), strict=True):
        law = allocator.UserLaw(lambda n, d, r, k, s=split: d ** -s[0] * r ** -s[1] * k ** -s[2])
        best = make_problem(law, prices, budget=budget, fixed={"n_active": n})
        assert shares(best) == pytest.approx(split, rel=1e-6)
        equal = [budget / 3 / rate for rate in cost_rates]
        loss = math.prod(x**-s for x, s in zip(equal, split, strict=True))
        same_loss = make_problem(law, prices, target_loss=loss, fixed={"n_active": n})
        least = paid(prices, optimise(same_loss).decision).sum()
        assert budget / least - 1 == pytest.approx(want, abs=tolerance(row))


def k_11(row: Row) -> None:
    for pretrain, serve, demand in ((1.0, 3.0, 2.592e14), (1.3, 7.0, 1e12)):
        one = Constant(1.0)
        decode, train = PhaseCost(2.0, Constant(serve)), PhaseCost(6.0, Constant(pretrain))
        prices = Costs(train, PhaseCost(2.0, one), decode, PhaseCost(2.0, one), demand)
        for n in (1e9, 1e11, 1e13):
            d = demand * serve / (3 * pretrain)
            trained, _, inference = prices.phase_costs(math.log(n), d, 0.0, 1.0)
            assert float(trained) == pytest.approx(float(inference), rel=tolerance(row))
    rates = costs(1.0, serve_overhead=3.0).rates(math.log(1e11))
    assert float(rates.k / rates.d) == pytest.approx(1, rel=tolerance(row))  # the note: D = T


NUMBERS = {
    "CH-01": ch_01, "CH-03": ch_03, "CH-04": ch_04, "CH-05": ch_05,
    "CH-T3-400M": ch_t3, "CH-T3-1B": ch_t3, "CH-T3-10B": ch_t3, "CH-T3-67B": ch_t3, "CH-T3-280B": ch_t3,
    "BE-01": be_01, "BE-03": be_03, "BE-05": be_05,
    "SA-01": sa_01, "SA-02": sa_02, "SA-03": sa_03, "SA-06": sa_06, "SA-10": sa_10, "SA-11": sa_11, "SA-13": sa_13,
    "DC-ep2": dc_epochs, "DC-ep4": dc_epochs, "DC-ep16": dc_epochs, "DC-ep40": dc_epochs, "DC-10": dc_10,
    "K-03": k_03, "K-05": k_05, "K-12": k_12,
}  # fmt: skip
IDENTITIES = {
    "SA-15": sa_15, "K-01": k_01, "K-02": k_02, "K-07": k_07, "K-08": k_08, "K-10": k_10, "K-11": k_11,
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_row_of_law_cases(name: str):
    row = ROWS[name]
    if name in IDENTITIES:
        IDENTITIES[name](row)
        return
    if name not in NUMBERS:
        pytest.fail(f"{name} is marked `plan`, but nothing here answers it")
    answers = NUMBERS[name](row)
    assert len(answers) == len(expected(row)) > 0
    assert list(answers) == pytest.approx(expected(row), rel=tolerance(row))


def test_no_answer_is_left_over():
    assert {*NUMBERS, *IDENTITIES} <= set(ROWS)


# What each row says, read by eye, so that the reading of the table is itself tested.
@pytest.mark.parametrize(
    ("name", "numbers", "relative"),
    [
        ("SA-02", [2.418e10, 2.657e12, 4.823e23, 0.9522], 1e-3),
        ("SA-11", [6.97e9, 1.69e22, 0.174], 5e-3),
        ("BE-01", [7.225e10, 1.329e12, 18.39, 1.9744], 2e-3),
        ("BE-03", [0.5126], 1e-3),
        ("K-03", [0.1855, 0.2693], 1e-3),
        ("K-05", [1 / 3, 1 / 3, 1 / 3, 0.08803, 0.08094], 1e-4),
        ("K-10", [0.071, 0.323], 1e-3),
        ("K-12", [4.426e10, 1.255e14, 141.8], 5e-3),
        ("CH-T3-280B", [5.9e12], 0.03),
    ],
)
def test_table_is_read_as_written(name: str, numbers: list[float], relative: float):
    assert expected(ROWS[name]) == pytest.approx(numbers, rel=1e-12)
    assert tolerance(ROWS[name]) == pytest.approx(relative, rel=1e-12)


@pytest.mark.parametrize(
    ("law", "row"),
    [("hoffmann-2022-rounded", "CH-03"), ("besiroglu-2024", "BE-01"), ("sardana-2024", "SA-01")],
)
def test_preset_has_the_row_s_constants(law: str, row: str):
    given = inputs(ROWS[row])
    names = ("E", "A", "B", "alpha", "beta")
    assert {name: given[name] for name in names} == catalog.law_record(law).content["parameters"]


def test_hoffmann_preset_has_the_constants_of_row_ch_01():
    logs = dict(re.findall(r"(\w)=exp\(([\d.]+)\)", ROWS["CH-01"]["inputs"]))
    parameters = catalog.law_record("hoffmann-2022").content["parameters"]
    assert {name: parameters[name] for name in logs} == pytest.approx(
        {name: math.exp(float(value)) for name, value in logs.items()}, rel=1e-14
    )
    assert inputs(ROWS["CH-01"])["alpha"] == parameters["alpha"]
