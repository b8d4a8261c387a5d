"""Rows of cases/law_cases.csv that belong to the laws, each at its tolerance; and every law against mpmath.

A row is answered by this package's public functions, or named with the reason why nothing here answers it.
"""

import csv
import math
import re
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize_scalar

from allocator import catalog
from allocator.costs import Costs, PhaseCost
from allocator.laws.additive import Additive
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.coverage import Coverage
from allocator.laws.gadre import Gadre
from allocator.laws.joint import JointFactor
from allocator.laws.law import Law, Point
from allocator.laws.loss_to_error import ErrorLaw, LossToError
from allocator.laws.pass_at_k import PassAtK, log_fail_at_k
from allocator.laws.presets import pretraining_law
from allocator.laws.product import Product
from allocator.laws.repetition import R_STAR, Repeated
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.laws.shared import Shared
from allocator.laws.test_time import TestTime
from allocator.laws.user import UserLaw
from allocator.optimum.solving import optimise
from allocator.problem import make_problem

Row = dict[str, str]

with (Path(__file__).parent / "cases" / "law_cases.csv").open(encoding="utf-8", newline="") as file:
    ROWS = {row["id"]: row for row in csv.DictReader(file) if row["issue"] == "laws"}

SCALE_RL = "ScaleRL's sigmoid of reward against GPU hours: a learning curve of one run, not a factor on reducible loss"
TAN = "slope of RL compute against size, Kmax/(1 + N0/N): where the assumed range of rho comes from, not a law here"
ELSEWHERE = {
    "RL-01": SCALE_RL,
    "RL-02": SCALE_RL,
    "RL-TAN-Base-C-intra": TAN,
    "RL-TAN-Base-D-intra": TAN,
    "RL-TAN-Instruct-C-intra": TAN,
    "RL-11": f"a bound on the same slope in another parametrisation; {TAN}",
    "LL-01": "Llama 3's D* = .299 C^.537 is a fitted optimum and no loss law: it cannot be planned with",
}


def tolerance(row: Row) -> float:
    """Relative tolerance, the first number of the column; `exact` leaves room for rounding alone."""
    text = row["tolerance"].removeprefix("rel ").split()[0]
    if text == "exact":
        return 1e-12
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def numbers(text: str) -> list[float]:
    return [float(part) for part in re.findall(r"(?<![\w.])\d*\.?\d+(?:e-?\d+)?(?![\w.])", text)]


def inputs(row: Row) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"(\w+)=(\d*\.?\d+(?:e\d+)?)", row["inputs"])}


def costs(lifetime_tokens: float = 1.0) -> Costs:
    """6 N D + 2 N R + 2 N k T."""
    return Costs(PhaseCost(6.0, 1.0), PhaseCost(2.0, 1.0), PhaseCost(2.0, 1.0), PhaseCost(2.0, 1.0), lifetime_tokens)


def random_t2_laws(count: int):
    """t2-loss is the additive form without RL."""
    rng = np.random.default_rng(20260429)
    for _ in range(count):
        alpha, beta, gamma = rng.uniform(0.1, 0.6, 3)
        base = Chinchilla(e=rng.uniform(0, 2), a=10 ** rng.uniform(1, 3.5), b=10 ** rng.uniform(1, 3.5),
                          alpha=alpha, beta=beta)  # fmt: skip
        yield Additive(base, test_time=TestTime(gamma, None, 10 ** rng.uniform(-2, 1))), 10 ** rng.uniform(18, 25)


def t2_samples(row: Row) -> list[float]:
    """Samples that a budget per query pays for: C_inf over the price of one."""
    given = inputs(row)
    return [given["C_inf"] / float(costs().rates(math.log(given["N"])).k)]


def t2_grid(row: Row) -> list[float]:
    given = inputs(row)
    return [given["C_train"] / float(costs().rates(math.log(given["N"])).d) / given["N"]]


def t2_10(row: Row) -> None:
    """alpha A N^-alpha = beta B D^-beta + gamma G k^-gamma at the best N of fixed C_train and C_inf."""

    @jax.jit
    def log_loss(law, log_n, log_train, log_serve):
        log_d, log_k = log_train - math.log(6) - log_n, log_serve - math.log(2) - log_n
        return law.log_reducible(Point(log_n, log_d, 0.0, log_k))

    slope = jax.jit(jax.grad(log_loss, argnums=1))
    for law, train in random_t2_laws(20):
        base, time = law.pretraining, law.test_time
        serve = train * 1e-6
        budgets = math.log(train), math.log(serve)
        found = minimize_scalar(
            lambda x, law=law, budgets=budgets: float(log_loss(law, x, *budgets)), bounds=(0.0, 60.0), method="bounded"
        )
        # A minimum is known to half the digits only; bisection of the slope gives the rest.
        low, high = found.x - 0.1, found.x + 0.1
        assert slope(law, low, *budgets) < 0 < slope(law, high, *budgets)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(law, middle, *budgets) < 0 else (low, middle)
        n = math.exp(low)
        d, k = train / (6 * n), serve / (2 * n)
        left = base.alpha * base.a * n**-base.alpha
        right = base.beta * base.b * d**-base.beta + time.exponent * time.scale * k**-time.exponent
        assert left == pytest.approx(right, rel=tolerance(row))
        # N* < N* of Chinchilla at the same C_train: from N = the root of log_optimal_tokens at 6 N D = C_train.
        alpha, beta = base.size_exponents()
        chinchilla = (alpha * base.a / (beta * base.b) * (train / 6) ** beta) ** (1 / (alpha + beta))
        tokens = float(base.log_optimal_tokens(jnp.log(chinchilla)))
        assert tokens == pytest.approx(math.log(train / 6 / chinchilla), rel=1e-12)
        assert n < chinchilla


def t2_11(row: Row) -> None:
    for law, train in random_t2_laws(5):
        n = d = math.sqrt(train / 6)
        base, scale = law.pretraining, law.test_time.scale
        want = base.e + scale + base.a * n**-base.alpha + base.b * d**-base.beta
        got = law.floor + math.exp(float(law.log_reducible(Point(math.log(n), math.log(d), 0.0, 0.0))))
        assert got == pytest.approx(want, rel=tolerance(row))


def t2_12(row: Row) -> list[float]:
    given = numbers(row["inputs"].replace("=", " "))
    return [-math.expm1(float(log_fail_at_k(*given[:2], k))) for k in given[2:]]


def t2_14(row: Row) -> None:
    for mean in (1e-3, 0.1, 0.5, 0.95):
        for spread in (0.1, 5.0, 100.0):
            for k in (1.0, 2.0, 10.0, 1e3):
                naive, beta = k * math.log1p(-mean), float(log_fail_at_k(mean, spread, k))  # logs of the misses
                assert naive <= beta + 1e-9 * abs(beta)


def ep_01(row: Row) -> None:
    """Training share alpha/(alpha + beta) where loss goes as C_train^-alpha C_inf^-beta."""
    assert row["expected"].startswith("alpha/(alpha+beta)")
    for alpha, beta in ((0.3, 0.3), (0.2, 0.5), (0.4, 0.1)):
        law = UserLaw(Powers(alpha, beta), rl_scale_tokens=1.0)
        problem = make_problem(law, costs(1e12), budget=1e24, fixed={"n_active": 1e10, "d_rl": 0.0})
        share = 6 * 1e10 * optimise(problem).decision.d_pretrain / 1e24
        assert share == pytest.approx(alpha / (alpha + beta), rel=1e-9)


class Powers(eqx.Module):
    """d^-alpha k^-beta."""

    alpha: float
    beta: float

    def __call__(self, n, d, r, k):
        return d**-self.alpha * k**-self.beta


def rl_12(row: Row) -> None:
    """C = N D phi: at one size the slope in RL compute is that in RL tokens."""
    log_n, rl = 25.0, PowerRl(0.1, 1e9)

    def log_loss(log_flop):
        tokens = jnp.exp(log_flop) / costs().rates(log_n).r
        return rl.log_factor(rl.coordinate(tokens))

    by_tokens = jax.grad(lambda log_r: rl.log_factor(rl.coordinate(jnp.exp(log_r))))(30.0)
    assert float(jax.grad(log_loss)(55.0)) == pytest.approx(float(by_tokens), rel=tolerance(row))


def ga_10(row: Row) -> list[float]:
    record = catalog.law_record("gadre-2024-redpajama")
    law = pretraining_law(record.name, record.content["kind"], record.content["parameters"])
    n = inputs(row)["N"]
    return [law.floor + math.exp(float(law.log_reducible(math.log(n), math.log(640 * n))))]


def sch_01(row: Row) -> list[float]:
    """Compute-optimal envelope: slope of log(L - E) along D_c(N), far from and near to the data."""
    law = Chinchilla(e=1.7, a=400.0, b=2000.0, alpha=0.35, beta=0.37)

    def along(log_n: float) -> tuple[float, float]:
        log_d = law.log_optimal_tokens(jnp.asarray(log_n))
        return float(log_n + log_d), float(law.log_reducible(log_n, log_d))

    (c0, l0), (c1, l1) = along(15.0), along(30.0)
    # E0 unchanged: the envelope is a pure power over the same floor.
    (c2, l2) = along(22.0)
    assert (l2 - l0) / (c2 - c0) == pytest.approx((l1 - l0) / (c1 - c0), rel=1e-12)
    return [-(l1 - l0) / (c1 - c0)]


def lm_01(row: Row) -> list[float]:
    """Slope of the log of the share missed between 1e5 and 1e6 samples."""
    missed = [float(log_fail_at_k(0.1, 5.0, k)) for k in (1e5, 1e6)]
    return [-(missed[1] - missed[0]) / math.log(10)]


EXPECTED: dict[str, Callable[[str], list[float]]] = {  # where the column holds more than the answers
    "GA-10": lambda text: numbers(text)[:1],
    "SCH-01": lambda text: numbers(text)[-1:],
    "LM-01": lambda text: numbers(text)[-1:],
}
NUMBERS = {
    "T2-01": t2_samples, "T2-02": t2_samples, "T2-grid-37M": t2_grid, "T2-grid-84M": t2_grid, "T2-grid-149M": t2_grid,
    "T2-grid-347M": t2_grid, "T2-grid-455M": t2_grid, "T2-grid-611M": t2_grid, "T2-grid-901M": t2_grid,
    "T2-12": t2_12, "GA-10": ga_10, "SCH-01": sch_01, "LM-01": lm_01,
}  # fmt: skip
IDENTITIES = {"T2-10": t2_10, "T2-11": t2_11, "T2-14": t2_14, "EP-01": ep_01, "RL-12": rl_12}


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ELSEWHERE])
def test_row_of_law_cases(name: str):
    row = ROWS[name]
    if name in IDENTITIES:
        IDENTITIES[name](row)
        return
    if name not in NUMBERS:
        pytest.fail(f"{name} is marked `laws`, but nothing here answers it and no reason is given")
    want = EXPECTED.get(name, numbers)(row["expected"])
    answers = NUMBERS[name](row)
    assert len(answers) == len(want) > 0
    assert answers == pytest.approx(want, rel=tolerance(row))


def test_no_answer_and_no_reason_is_left_over():
    assert {*NUMBERS, *IDENTITIES, *ELSEWHERE} == set(ROWS)
    assert len(NUMBERS) + len(IDENTITIES) + len(ELSEWHERE) == len(ROWS)


# What rows say, read by eye, so that the reading of the table is itself tested.
@pytest.mark.parametrize(
    ("name", "want", "relative"),
    [
        ("T2-01", [27.027], 1e-3),
        ("T2-02", [1.0], 1e-12),
        ("T2-grid-37M", [3116.6], 5e-3),
        ("T2-12", [0.1, 0.453455, 0.797918, 0.934890], 1e-5),
        ("GA-10", [2.5198], 1e-3),
        ("SCH-01", [0.17986], 1e-5),
        ("LM-01", [0.49999], 1e-3),
    ],
)
def test_table_is_read_as_written(name: str, want: list[float], relative: float):
    assert EXPECTED.get(name, numbers)(ROWS[name]["expected"]) == want
    assert tolerance(ROWS[name]) == pytest.approx(relative, rel=1e-12)


# --- every law: value, gradient and Hessian against mpmath, slopes in its parameters against differences ---

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
RED_PAJAMA = Gadre(e=1.837, p=212.2, q=366.7, h=0.1364)  # mlfoundations/scaling @ a003c491
LINK = LossToError(epsilon=0.8570, kappa=2.2065, gamma=0.7146)  # likewise
REPEATED = Repeated(BESIROGLU, 1e12, R_STAR)
RL, POWER = SaturatingRl(0.11, 1e9, 0.4), PowerRl(0.12, 1e9, 0.3)
TIME, FLOOR = TestTime(0.09, None, 0.2), TestTime(0.15, 0.1, 0.2)


class Toy(eqx.Module):
    """A user's loss: a n^-b + c d^-b + (1 + r)^-b / k."""

    a: float
    b: float
    c: float

    def __call__(self, n, d, r, k):
        return self.a * n**-self.b + self.c * d**-self.b + (1 + r / 1e9) ** -self.b / k


LAWS: dict[str, Law] = {
    "product": Product(BESIROGLU, RL, TIME),
    "product, pure power, floor": Product(BESIROGLU, POWER, FLOOR),
    "product, overlap": Product(BESIROGLU, RL, TIME, 1.7),
    "product, Gadre": Product(RED_PAJAMA, RL, FLOOR),
    "product, repeated": Product(REPEATED, RL, TIME),
    "product, error": Product(ErrorLaw(BESIROGLU, LINK), RL, TIME),
    "additive": Additive(BESIROGLU, RL, FLOOR),
    "additive, pure power": Additive(RED_PAJAMA, POWER, TIME),
    "t2-loss": Additive(BESIROGLU, None, TIME),
    "shared": Shared(BESIROGLU, JointFactor(RL, FLOOR), 0.5),
    "shared, overlap": Shared(RED_PAJAMA, JointFactor(RL, FLOOR, 2.3), 0.5),
    "coverage": Coverage(ErrorLaw(RED_PAJAMA, LINK), JointFactor(RL, TIME), 0.1, 0.6),
    "coverage, overlap": Coverage(ErrorLaw(REPEATED, LINK), JointFactor(RL, FLOOR, 1.2), 0.1, 0.6),
    "pass-at-k": PassAtK(BESIROGLU, 2.1, 6.0, 0.8, 2.0, -0.3),
    "pass-at-k, RL": PassAtK(RED_PAJAMA, 2.1, 6.0, 0.8, 2.0, -0.3, rl=RL),
    "user": UserLaw(Toy(400.0, 0.34, 1500.0), floor=0.0, rl_scale_tokens=1e9),
}
FAST = {"xla_backend_optimization_level": 0}  # ready soon rather than fast: each is called once
POINTS = [(25.3, 33.0, 6.0, 2.0), (22.0, 26.0, 0.1, 0.05), (26.0, 28.7, 2.0, 5.0)]


def exact_pretraining(law, n, d):
    """Loss above the floor, and the floor."""
    if isinstance(law, ErrorLaw):
        link = law.link
        above, floor = exact_pretraining(law.law, n, d)
        eps, kappa, gamma = (mpmath.mpf(x) for x in (link.epsilon, link.kappa, link.gamma))
        low = eps - kappa * mpmath.exp(-gamma * floor)
        return eps - kappa * mpmath.exp(-gamma * (floor + above)) - low, low
    if isinstance(law, Repeated):
        unique, star = mpmath.mpf(law.unique_tokens), mpmath.mpf(law.r_star)
        worth = d if d <= unique else unique + unique * star * (1 - mpmath.exp(-(d / unique - 1) / star))
        return exact_pretraining(law.law, n, worth)
    if isinstance(law, Gadre):
        p, q, h = (mpmath.mpf(x) for x in (law.p, law.q, law.h))
        return (p * (d / n) ** h + q * (d / n) ** -h) * (6 * n * d) ** -h, mpmath.mpf(law.e)
    a, b, alpha, beta = (mpmath.mpf(x) for x in (law.a, law.b, law.alpha, law.beta))
    return a * n**-alpha + b * d**-beta, mpmath.mpf(law.e)


def exact_rl(term, r):
    if term is None:
        return mpmath.mpf(1)
    if isinstance(term, PowerRl):
        return (r / mpmath.mpf(term.unit_tokens)) ** -mpmath.mpf(term.exponent)
    return (1 + r / mpmath.mpf(term.scale_tokens)) ** -mpmath.mpf(term.exponent)


def exact_time(term, k):
    if term is None:
        return mpmath.mpf(1)
    s = mpmath.mpf(term.floor_share or 0)
    return s + (1 - s) * k ** -mpmath.mpf(term.exponent)


def exact_joint(joint: JointFactor, r, k):
    f, g = exact_rl(joint.rl, r), exact_time(joint.test_time, k)
    if joint.overlap is None:
        return f * g
    om = mpmath.mpf(joint.overlap)
    return (f**-om + g**-om - 1) ** (-1 / om)


def exact(law: Law, n, d, r, k):
    """log(L - floor) from decisions, as model.md, section 2, writes each form."""
    if isinstance(law, UserLaw):
        a, b, c = (mpmath.mpf(x) for x in (law.function.a, law.function.b, law.function.c))
        return mpmath.log(a * n**-b + c * d**-b + (1 + r / mpmath.mpf(1e9)) ** -b / k)
    base, floor = exact_pretraining(law.pretraining, n, d)
    if isinstance(law, PassAtK):
        th0, th1, th2, th3, th4 = (mpmath.mpf(getattr(law, f"th{i}")) for i in range(5))
        mu, nu = th2 / (1 + mpmath.exp(th1 * (floor + base - th0))), mpmath.exp(th3 + th4 * (floor + base))
        odds = mu / (1 - mu) / exact_rl(law.rl, r)
        mu = odds / (1 + odds)
        missed = mpmath.beta(mu * nu, (1 - mu) * nu + k) / mpmath.beta(mu * nu, (1 - mu) * nu)
        return mpmath.log(-mpmath.log(1 - missed))
    if isinstance(law, Product):
        return mpmath.log(base * exact_joint(law.joint, r, k))
    if isinstance(law, Shared):
        return mpmath.log(base + mpmath.mpf(law.scale) * exact_joint(law.joint, r, k))
    if isinstance(law, Coverage):
        sampling = mpmath.mpf(law.guess) + mpmath.mpf(law.slope) * (floor + base)
        error = 1 - (1 - floor - base) * (1 - sampling * exact_joint(law.joint, r, k))
        return mpmath.log(error - floor)
    assert isinstance(law, Additive)
    for term, factor in ((law.rl, exact_rl(law.rl, r)), (law.test_time, exact_time(law.test_time, k))):
        base += mpmath.mpf(term.scale) * factor if term is not None else 0
    return mpmath.log(base)


def exact_at(law: Law):
    """The same from the solver's coordinates."""

    def f(*z):
        axis = law.rl_axis
        r = mpmath.expm1(z[2]) * axis.scale_tokens if axis.allows_zero else mpmath.exp(z[2]) * axis.unit_tokens
        return exact(law, mpmath.exp(z[0]), mpmath.exp(z[1]), r, mpmath.exp(z[3]))

    return f


@pytest.mark.parametrize("name", LAWS)
def test_every_law_matches_mpmath_and_passes_through_jit_vmap_and_grad(name: str):
    law = LAWS[name]
    parameters, rebuild = ravel_pytree(law)
    assert parameters.size == len(jax.tree.leaves(law))

    def value(parameters, z):
        return rebuild(parameters).log_reducible(Point(*z))

    @jax.vmap
    def everything(parameters, z):
        return (*jax.value_and_grad(value, argnums=(0, 1))(parameters, z), jax.hessian(value, argnums=1)(parameters, z))

    # Points first, then one step up and one down in each parameter at the first point.
    step = 1e-6
    scaled = step * np.diag(parameters)
    shifts = np.concatenate([np.zeros((len(POINTS), parameters.size)), scaled, -scaled])
    places = np.concatenate([np.array(POINTS), np.tile(POINTS[0], (2 * parameters.size, 1))])
    compiled = jax.jit(everything, compiler_options=FAST)
    answers = compiled(jnp.asarray(np.asarray(parameters) + shifts), jnp.asarray(places))
    values, (slopes, gradients), hessians = jax.tree.map(np.asarray, answers)
    assert law.floor == pytest.approx(float(exact_floor(law)), rel=1e-14)
    count = len(POINTS)
    with mpmath.workdps(40):
        f, unit = exact_at(law), np.eye(4, dtype=int)
        for z, v, g, h in zip(POINTS, values[:count], gradients[:count], hessians[:count], strict=True):
            assert v == pytest.approx(float(f(*z)), rel=1e-9 if isinstance(law, PassAtK) else 1e-12)
            assert float(law.log_reducible(Point(*z))) == pytest.approx(v, rel=1e-12)  # unjitted, plain numbers
            want = [float(mpmath.diff(f, z, tuple(row))) for row in unit.tolist()]
            assert g == pytest.approx(want, rel=1e-8, abs=1e-11)
            bends = [[float(mpmath.diff(f, z, tuple((p + q).tolist()))) for p in unit] for q in unit]
            assert h == pytest.approx(np.array(bends), rel=1e-6, abs=1e-9)
    # Slopes in each parameter, by central differences of a relative step.
    up, down = np.split(values[count:], 2)
    differences = (up - down) / (2 * step)
    assert slopes[0] * np.asarray(parameters) == pytest.approx(differences, rel=1e-6, abs=1e-8)


def exact_floor(law: Law):
    if isinstance(law, UserLaw | PassAtK):
        return 0
    return exact_pretraining(law.pretraining, mpmath.mpf(1e9), mpmath.mpf(1e9))[1]
