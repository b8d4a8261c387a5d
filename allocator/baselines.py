"""Rules of thumb on the same scenario, and the extra budget that each needs to match the optimum.

- equal_cost: the free phases share equally what the fixed ones leave, at the best N for that.
- chinchilla: D = 20 N, no RL (`unit_tokens` of it under a pure power), k = 1, N from what serving leaves.
- lecture: D = k T and R = D / 1.5 at the scenario's N, scaled to the budget; with N free, N is scaled instead.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq, minimize_scalar

from allocator.errors import AllocatorError, NoPlanError
from allocator.laws.rl import PowerRl
from allocator.optimum.accounts import account
from allocator.optimum.result import Baseline, Plan, PlannedDecision
from allocator.optimum.starts import whole_range
from allocator.problem import DECISIONS, LARGEST, SMALLEST, Decision, Problem, to_coordinates, to_decision
from allocator.regrets import least_cost, planned_coordinates
from allocator.units import short_count

LECTURE_PRETRAIN_OVER_RL = 1.5  # lecture, 01:27
ROUNDING = 1e-9
CHINCHILLA_TOKENS_PER_PARAM = 20.0  # lecture, 01:31


class _NotApplicableError(Exception):
    """Why a rule of thumb has no answer on a scenario."""


def with_baselines(plan: Plan) -> Plan:
    """The same plan with its baselines; one that cannot be made is there with a reason."""
    if plan.problem is None or plan.decision is None or plan.status == "evaluated":
        raise AllocatorError(f"baselines: the plan has no decision to compare with ({plan.status})")
    problem = plan.problem
    names = {"equal_cost": _equal_cost, "chinchilla": _chinchilla, "lecture": _lecture}
    return dataclasses.replace(plan, baselines=tuple(_baseline(plan, problem, *item) for item in names.items()))


def _baseline(plan: Plan, problem: Problem, name: str, rule: Callable[[Problem, float], Decision[float]]) -> Baseline:
    try:
        if float(problem.minimise_cost) > 0.5:
            decision = _at_target(problem, rule)
        else:
            decision = rule(problem, float(np.exp(problem.log_limit)))
        low, high = (math.exp(float(end[0])) for end in (problem.lower, problem.upper))
        if low < high and not low * (1 - 1e-9) <= decision.n_active <= high * (1 + 1e-9):
            raise _NotApplicableError(f"it wants {short_count(decision.n_active)} parameters, beyond the bounds on N")
        z = to_coordinates(problem, decision)
        figures = account(problem, z)
        cost = figures.cost
        if not (math.isfinite(figures.log_reducible) and math.isfinite(figures.cost)):
            raise _NotApplicableError("its loss or cost is beyond what numbers hold")
        start = planned_coordinates(problem, plan)
        regret = cost / least_cost(problem, figures.log_reducible, start) - 1
    except _NotApplicableError as error:
        return Baseline(name, None, math.nan, math.nan, math.nan, str(error))
    except NoPlanError:
        reason = "no budget brings the best plan within the scenario's bounds to the loss of this one"
        return Baseline(name, None, math.nan, math.nan, math.nan, reason)
    broken = _broken_ends(problem, z)
    if regret < -ROUNDING and broken:
        reason = f"it does not keep what the scenario says of {', '.join(broken)}, so the costs do not compare"
        return Baseline(name, None, math.nan, math.nan, math.nan, reason)
    planned = PlannedDecision.of(decision, float(problem.costs.lifetime_tokens))
    return Baseline(name, planned, figures.loss, cost, regret)


def _broken_ends(problem: Problem, z: np.ndarray) -> list[str]:
    """Decisions outside what the scenario fixes or allows."""
    outside = (z < problem.lower - ROUNDING) | (z > problem.upper + ROUNDING)
    return [name for name, broken in zip(DECISIONS, outside, strict=True) if broken]


def _at_target(problem: Problem, rule: Callable[[Problem, float], Decision[float]]) -> Decision[float]:
    """Scale a rule's budget until it reaches the target loss."""

    def excess(log_budget: float) -> float:
        try:
            decision = rule(problem, math.exp(log_budget))
        except _NotApplicableError:
            return 1e3  # too small a budget for the rule
        reached = float(_log_reducible(problem, to_coordinates(problem, decision)))
        return min(reached - float(problem.log_limit), 1e3)

    low, high = math.log(1e-30), math.log(LARGEST)
    rule(problem, math.exp(high))  # a rule that no budget helps says why
    if excess(high) > 0:
        raise _NotApplicableError("this rule reaches the target loss at no budget")
    return rule(problem, math.exp(_root(excess, low, high)))


def _equal_cost(problem: Problem, budget: float) -> Decision[float]:
    log_budget = math.log(budget)
    log_n = whole_range(problem)
    merit = np.asarray(_equal_splits(problem, log_n, log_budget)[1])
    if not np.isfinite(merit).any():
        raise _NotApplicableError("the budget does not pay for what the decisions and the demand fix")
    best = log_n[np.argmin(merit)]
    if len(log_n) > 1:
        step = log_n[1] - log_n[0]
        found: Any = minimize_scalar(
            lambda x: min(float(np.asarray(_equal_splits(problem, np.array([x]), log_budget)[1])[0]), 1e300),
            bounds=(max(log_n[0], best - step), min(log_n[-1], best + step)),
            method="bounded",
            options={"xatol": 1e-10},
        )
        best = float(found.x)
    tokens = np.asarray(_equal_splits(problem, np.array([best]), log_budget)[0])
    return Decision(math.exp(best), *tokens[0].tolist())


def _equal_split(problem: Problem, log_n, log_budget):
    """Tokens of an equal split; a phase whose equal share breaks a bound is held there, the others share the rest."""
    low = jnp.stack(problem.decision(jnp.asarray(problem.lower))[1:])
    high = jnp.stack(problem.decision(jnp.asarray(problem.upper))[1:])
    rates = problem.costs.rates(log_n, problem.currency)
    rate = jnp.stack([rates.d, rates.r, rates.k])
    base = jnp.stack([jnp.zeros_like(rates.fixed), jnp.zeros_like(rates.fixed), rates.fixed])
    held = low == high
    tokens = low
    for _ in range(3):  # each round can hold one more phase
        left = jnp.exp(log_budget) - jnp.sum(jnp.where(held, rate * tokens + base, 0.0))
        share = left / jnp.maximum(jnp.sum(~held), 1)
        wanted = (share - base) / jnp.where(rate > 0, rate, 1.0)
        tokens = jnp.where(held, tokens, jnp.clip(wanted, low, high))
        held = held | (tokens != jnp.where(held, tokens, wanted))
    cost = jnp.sum(rate * tokens + base)
    return jnp.where(cost <= jnp.exp(log_budget) * (1 + 1e-9), tokens, jnp.nan)


@jax.jit
def _equal_splits(problem: Problem, log_n, log_budget):
    """Tokens of an equal split and log of the reducible loss (inf where the budget does not suffice) at each size."""

    def at(x):
        tokens = _equal_split(problem, x, log_budget)
        reached = problem.log_reducible(problem.coordinates(Decision(jnp.exp(x), tokens[0], tokens[1], tokens[2])))
        return tokens, jnp.where(jnp.isfinite(reached), reached, jnp.inf)

    return jax.vmap(at)(log_n)


def _chinchilla(problem: Problem, budget: float) -> Decision[float]:
    axis = problem.law.rl_axis
    rl = float(axis.unit_tokens) if isinstance(axis, PowerRl) else 0.0

    def decision(log_n: float) -> Decision[float]:
        n = math.exp(log_n)
        return Decision(n, CHINCHILLA_TOKENS_PER_PARAM * n, rl, 1.0)

    return decision(_log_size_for(problem, budget, decision))


def _lecture(problem: Problem, budget: float) -> Decision[float]:
    if float(problem.costs.lifetime_tokens) == 0:
        raise _NotApplicableError("nothing is served, so the lecture's rule has no tokens to go by")
    if problem.law.rl_axis.allows_zero and float(problem.upper[2]) == 0:
        raise _NotApplicableError("the scenario has no RL, which the lecture's rule buys")
    at, top = to_decision(problem, problem.lower), to_decision(problem, problem.upper)
    n = at.n_active if at.n_active == top.n_active else None
    k = at.k if at.k == top.k else None

    def at_size(n: float, k: float, scale: float = 1.0) -> Decision[float]:
        d = scale * k * float(problem.costs.lifetime_tokens)
        return Decision(n, d, d / LECTURE_PRETRAIN_OVER_RL, k)

    if n is None:
        return at_size(math.exp(_log_size_for(problem, budget, lambda x: at_size(math.exp(x), k or 1.0))), k or 1.0)
    rate_d, rate_r, rate_k, fixed = (float(x) for x in _rates(problem, math.log(n)))
    one = at_size(n, 1.0)
    training = rate_d * one.d_pretrain + rate_r * one.d_rl
    if k is None:  # D, R and k all in proportion
        k, scale = (budget - fixed) / (training + rate_k), 1.0
    else:
        scale = (budget - fixed - rate_k * k) / (training * k)
    if scale <= 0 or k <= 0:
        raise _NotApplicableError("serving alone takes the whole budget")
    return at_size(n, k, scale)


def _log_size_for(problem: Problem, budget: float, decision: Callable[[float], Decision[float]]) -> float:
    """Log N at which a family of decisions costs exactly the budget."""

    def excess(log_n: float) -> float:
        _, d, r, k = decision(log_n)
        rate_d, rate_r, rate_k, fixed = (float(x) for x in _rates(problem, log_n))
        return math.log(rate_d * d + rate_r * r + rate_k * k + fixed) - math.log(budget)

    low, high = math.log(SMALLEST), math.log(LARGEST)
    if excess(low) > 0 or excess(high) < 0:
        raise _NotApplicableError("no size makes this rule cost the budget")
    return _root(excess, low, high)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-13, rtol=np.float64(1e-14), full_output=False))  # pyright: ignore


@jax.jit
def _rates(problem: Problem, log_n):
    return tuple(problem.costs.rates(log_n, problem.currency))


@jax.jit
def _log_reducible(problem: Problem, z):
    return problem.log_reducible(z)
