"""Decisions that are made before the state of the world is known: N, D and R shared by many problems, k adapting.

Each state of the world is a `Problem` with one budget. Once N, D and R are paid for, what is left buys k, up to its
bound, so only N, D and R are unknowns, whatever the number of states. What is minimised has the form

    f0 + sum over i of w_i max over j of g_ij,   subject to c_a <= 0

with a g for each state and each way of ending up with k. An expected loss is that without f0; its tail is t plus the
mean of what exceeds t, over the tail's probability, with t a further unknown; a worst case is t plus more than all that
exceeds t. Maxima are smoothed and constraints kept off by a barrier whose strength goes to zero,
each time with exact Newton steps; the ties and constraints that are left are then solved for as equations.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import nnls

from allocator.laws.law import RlAxis
from allocator.problem import Problem, Vector

SMOOTHINGS = tuple(10.0**-i for i in range(1, 10))  # strength of barrier and smoothing, relative to the objective
MAX_NEWTON = 60  # steps at each strength
DECREMENT = 1e-12  # gain of a step, over the strength, below which the next strength follows
SHORTEN, SHORTEST = 0.3, 1e-13  # backtracking
TIE, NEAR = 1e-8, 3e-5  # weight of a piece that counts as tied; distance at which a constraint counts as active
CHECK = 1e-8  # distance within which pieces are tied and constraints active when the residual is recomputed


class Stage(NamedTuple):
    """All states of the world and what is asked of the decision; a pytree whose leaves may be replaced."""

    problems: Problem  # with a leading axis of states, rows beyond the last state repeated
    axis: RlAxis  # of the shared RL coordinate
    weight: Float[Vector, " states"]  # of each state in the sum, 0 where a row does not count
    lower: Float[Vector, "3"]
    upper: Float[Vector, "3"]
    shift: Float[Array, ""] | np.float64  # budgets are divided by exp(shift)
    scale: Float[Array, ""] | np.float64  # reducible loss that counts as 1
    offset: Float[Array, ""] | np.float64  # loss that counts as 0, for the tail
    threshold: (
        Float[Array, ""] | np.float64
    )  # 1: only what exceeds the threshold v[3] counts; 0: all of it, and v[3] is idle
    in_logs: (
        Float[Array, ""] | np.float64
    )  # 1: what counts is log regret, (log reducible loss - target) / price; 0: loss
    target: Float[Vector, " states"]  # log reducible loss from which regret is counted
    price: Float[Vector, " states"]  # -dlog reducible loss / dlog budget of each state's own optimum


class Outcome(NamedTuple):
    """What a committed decision leads to in each state."""

    z: Float[Array, "states 4"]  # in each state's own coordinates, k as the budget allows
    log_reducible: Float[Array, " states"]
    excess: Float[Array, " states"]  # log of what the least k costs in all over the budget; > 0: cannot be served
    log_cost: Float[Array, " states"]


class Committed(NamedTuple):
    """A verified decision."""

    v: Float[np.ndarray, "4"]
    value: float  # of the criterion, in the stage's scaled terms
    residual: float  # of the first-order conditions, over the largest elasticity
    excess: float  # by which the worst state exceeds its budget, relative


def _state(problem: Problem, axis: RlAxis, shift, x):
    """(log reducible loss of both ways of ending up with k, which of them exist, excess)."""
    tokens = axis.tokens(x[2])
    rates = problem.costs.rates(x[0], problem.currency)
    limit = jnp.exp(problem.log_limit - shift)
    spent = rates.d * jnp.exp(x[1]) + rates.r * tokens + rates.fixed
    low, high = problem.lower[3], problem.upper[3]
    excess = jnp.log((spent + rates.k * jnp.exp(low)) / limit)
    bought = (low < high) & (rates.k > 0)
    left = jnp.where(bought & (limit > spent), limit - spent, 1.0)
    by_budget = jnp.where(bought & (limit > spent), jnp.log(left) - jnp.log(jnp.where(bought, rates.k, 1.0)), low)
    capped = ~bought | ~problem.open_upper[3]
    by_bound = jnp.where(capped, high, by_budget)
    rl = problem.law.rl_axis.coordinate(tokens)

    def loss(log_k):
        return problem.log_reducible(jnp.stack([x[0], x[1], rl, log_k]))

    return jnp.stack([loss(by_budget), loss(by_bound)]), jnp.stack([bought, capped]), excess


def parts(stage: Stage, v: Float[Array, "4"]):
    """(f0, pieces g, which pieces exist, constraints c) at v."""
    log_loss, exist, excess = jax.vmap(_state, in_axes=(0, None, None, None))(
        stage.problems, stage.axis, stage.shift, v[:3]
    )
    counted = stage.weight > 0
    exist = exist & counted[:, None]
    log_loss = jnp.where(exist, log_loss, 0.0)
    free = stage.lower < stage.upper
    box = [jnp.where(free, side, -1.0) for side in (stage.lower - v[:3], v[:3] - stage.upper)]
    constraints = jnp.concatenate([jnp.where(counted, excess, -1.0), *box])
    regret = (log_loss - stage.target[:, None]) / stage.price[:, None]
    floor = jnp.broadcast_to(jnp.asarray(stage.problems.law.floor), counted.shape)
    loss = (jnp.exp(log_loss) + (floor - stage.offset)[:, None]) / stage.scale
    pieces = jnp.where(stage.in_logs > 0, regret, loss) - stage.threshold * v[3]
    nothing = jnp.zeros_like(pieces[:, :1])
    pieces = jnp.concatenate([pieces, nothing], axis=1)
    exist = jnp.concatenate([exist, (nothing == 0) & (stage.threshold > 0)], axis=1)
    return stage.threshold * v[3], pieces, exist, constraints


def _smooth(stage: Stage, v, strength):
    first, pieces, exist, constraints = parts(stage, v)
    maxima = strength * jax.nn.logsumexp(jnp.where(exist, pieces / strength, 0.0), axis=1, b=exist.astype(float))
    counted = jnp.any(exist, axis=1)
    total = first + jnp.sum(jnp.where(counted, stage.weight * jnp.where(counted, maxima, 0.0), 0.0))
    return total - strength * jnp.sum(jnp.log(-constraints))


def _unknown(stage: Stage):
    return jnp.append(stage.lower < stage.upper, stage.threshold > 0)


@jax.jit
def _descend(stage: Stage, v: Float[Array, "starts 4"]) -> Float[Array, "starts 4"]:
    """Follow the smoothed minimum from each strictly feasible start to the weakest smoothing."""
    free = _unknown(stage).astype(float)

    def step(strength, state):
        v, steps, _ = state
        value = partial(_smooth, stage, strength=strength)

        def both(v):
            here, gradient = jax.value_and_grad(value)(v)
            return gradient, (here, gradient)

        hessian, (here, gradient) = jax.jacfwd(both, has_aux=True)(v)  # one pass, which halves the compilation
        gradient = gradient * free
        hessian = hessian * jnp.outer(free, free) + jnp.diag(1 - free)
        lawful = jnp.isfinite(gradient).all() & jnp.isfinite(hessian).all()
        gradient = jnp.where(lawful, gradient, 0.0)
        size, vectors = jnp.linalg.eigh(jnp.where(lawful, hessian, jnp.eye(len(v))))
        size = jnp.maximum(jnp.abs(size), 1e-10 * jnp.max(jnp.abs(size)))  # downhill also where not convex
        move = -(vectors @ ((vectors.T @ gradient) / size)) * free
        move = move / jnp.maximum(1.0, jnp.max(jnp.abs(move)) / 3)  # the model is good for a few logs at most
        slope = gradient @ move

        def shorten(tried):
            length = tried[0] * SHORTEN
            return length, value(v + length * move) <= here + 1e-4 * length * slope

        # Whether a length is enough is carried, since a batch would judge it twice, and rounding could go either way.
        tried = jnp.asarray(1 / SHORTEN), jnp.asarray(False)
        length, enough = jax.lax.while_loop(lambda tried: ~tried[1] & (tried[0] > SHORTEST), shorten, tried)
        length = jnp.where(enough, length, 0.0)
        done = (length == 0) | (-slope < DECREMENT * strength)
        return v + length * move, steps + 1, done

    def one(v):
        def at(v, strength):
            start = v, jnp.asarray(0), jnp.asarray(False)
            go_on = lambda state: ~state[2] & (state[1] < MAX_NEWTON)  # noqa: E731
            return jax.lax.while_loop(go_on, partial(step, strength), start)[0], None

        return jax.lax.scan(at, v, jnp.asarray(SMOOTHINGS))[0]

    return jax.vmap(one)(v)


class _Expansion(NamedTuple):
    """Parts at a point, their gradients, and the Hessian of the Lagrangian."""

    first: Any
    pieces: Any
    exist: Any
    constraints: Any
    slopes: Any  # of first, pieces and constraints
    hessian: Any


@jax.jit
def _expand(stage: Stage, v, weights, multipliers):
    def told(v):
        whole = parts(stage, v)
        return (whole[0], whole[1], whole[3]), whole

    def lagrangian(v):
        first, pieces, exist, constraints = parts(stage, v)
        return first + jnp.sum(jnp.where(exist, weights * pieces, 0.0)) + multipliers @ constraints

    slopes, whole = jax.jacfwd(told, has_aux=True)(v)
    first, pieces, exist, constraints = whole
    return _Expansion(first, pieces, exist, constraints, slopes, jax.hessian(lagrangian)(v))


def _expansion(stage: Stage, v, weights=None, multipliers=None) -> _Expansion:
    count = len(np.asarray(stage.weight))
    weights = np.zeros((count, 3)) if weights is None else weights
    multipliers = np.zeros(count + 6) if multipliers is None else multipliers
    return jax.tree.map(np.asarray, _expand(stage, v, weights, multipliers))


@jax.jit
def outcome(stage: Stage, v: Float[Array, "4"]) -> Outcome:
    """What a decision leads to in each state, whether or not it can be served there."""

    def at(problem: Problem):
        tokens = stage.axis.tokens(v[2])
        log_loss, exist, excess = _state(problem, stage.axis, stage.shift, v[:3])
        rates = problem.costs.rates(v[0], problem.currency)
        spent = rates.d * jnp.exp(v[1]) + rates.r * tokens + rates.fixed
        left = jnp.exp(problem.log_limit - stage.shift) - spent
        bought = (left > 0) & (rates.k > 0)
        affordable = jnp.log(jnp.where(bought, left, 1.0)) - jnp.log(jnp.where(bought, rates.k, 1.0))
        log_k = jnp.where(rates.k > 0, jnp.where(bought, affordable, problem.lower[3]), problem.upper[3])
        log_k = jnp.clip(log_k, problem.lower[3], problem.upper[3])
        z = jnp.stack([v[0], v[1], problem.law.rl_axis.coordinate(tokens), log_k])
        return z, jnp.max(jnp.where(exist, log_loss, -jnp.inf)), excess, jnp.log(spent + rates.k * jnp.exp(log_k))

    return Outcome(*jax.vmap(at)(stage.problems))


@jax.jit
def _elasticity(stage: Stage, z):
    """Largest elasticity of each state's loss in any decision, all else fixed."""
    return jax.vmap(lambda problem, z: jnp.max(jnp.abs(jax.grad(problem.log_reducible)(z))))(stage.problems, z)


def interior(stage: Stage, v: Float[np.ndarray, "4"], *, margin: float = 1e-3) -> Float[np.ndarray, "4"] | None:
    """The decision moved inside its box and shrunk until every state that counts can be served; None if none can."""
    lower, upper = (np.asarray(side, float) for side in (stage.lower, stage.upper))
    room = np.minimum(margin, (upper - lower) / 4)
    inside = np.clip(v[:3], lower + room, upper - room)
    counted = np.asarray(stage.weight) > 0
    least = lower + room
    for step in (0.0, 0.01, 0.03, *np.geomspace(0.1, 300, 60)):
        for shrinks in ([0, 1, 1], [1, 1, 1]):
            x = np.maximum(inside - step * np.array(shrinks), np.minimum(inside, least))
            at = np.append(x, v[3])
            excess = np.asarray(outcome(stage, at).excess)[counted]
            if (excess < -1e-6).all():
                return at
    return None


def minimise(stage: Stage, starts: Float[np.ndarray, "starts 4"]) -> Committed | None:
    """The best verified decision from strictly feasible starts, or None where none verifies."""
    found = np.asarray(_descend(stage, starts))
    best: Committed | None = None
    seen: list[np.ndarray] = []
    for v in found:
        if not np.isfinite(v).all() or any(np.abs(v - other).max() < 1e-6 for other in seen):
            continue
        seen.append(v)
        for candidate in (_polished(stage, v), v):
            told = verified(stage, candidate)
            if told is not None:
                best = told if best is None or told.value < best.value else best
                break
    return best


def lowest(stage: Stage, starts: Float[np.ndarray, "starts 4"]) -> float:
    """Least expected loss, scaled, that is found from strictly feasible starts; not verified, to 8 digits or so."""
    values = [
        float(np.asarray(stage.weight)[counted] @ np.exp(told.log_reducible[counted])) / float(stage.scale)
        for v in (*np.asarray(_descend(stage, starts)), *starts)
        for told in (jax.tree.map(np.asarray, outcome(stage, v)),)
        for counted in (np.asarray(stage.weight) > 0,)
        if (told.excess[counted] < 1e-9).all() and np.isfinite(told.log_reducible[counted]).all()
    ]
    return min(values, default=float("inf"))


def verified(stage: Stage, v: Float[np.ndarray, "4"], *, tolerance: float = 1e-7) -> Committed | None:
    """The point with its recomputed residuals, or None if it is no first-order optimum within its constraints."""
    first, pieces, exist, constraints, slopes, _ = _expansion(stage, v)
    weight = np.asarray(stage.weight)
    if not all(np.isfinite(x).all() for x in (v, pieces, constraints)):
        return None
    excess = max(float(np.expm1(constraints).max()), 0.0)
    tops = np.where(exist, pieces, -np.inf).max(axis=1)
    counted = np.isfinite(tops) & (weight > 0)
    value = float(first + weight[counted] @ tops[counted])
    free = np.asarray(_unknown(stage))
    tied = exist & counted[:, None] & (pieces >= np.where(counted, tops, 0.0)[:, None] - CHECK)
    gradient = slopes[0][free]
    columns, sums, totals = [], [], []
    for i in np.flatnonzero(counted):
        some = np.flatnonzero(tied[i])
        if len(some) == 1:
            gradient = gradient + weight[i] * slopes[1][i, some[0]][free]
            continue
        columns += [slopes[1][i, j][free] for j in some]
        sums += [len(totals)] * len(some)
        totals.append(weight[i])
    active = np.flatnonzero(constraints > -CHECK)
    columns += [slopes[2][a][free] for a in active]
    scale = _scale(stage, v)
    residual = _least_residual(gradient / scale, np.array(columns).reshape(-1, free.sum()) / scale, sums, totals)
    if residual > tolerance or excess > 1e-9:
        return None
    return Committed(np.asarray(v), value, residual, excess)


def _scale(stage: Stage, v) -> float:
    """What residuals are relative to: the mean of the states' largest elasticities, in the objective's unit."""
    told = jax.tree.map(np.asarray, outcome(stage, v))
    weight = np.asarray(stage.weight)
    counted = weight > 0
    elasticity = np.asarray(_elasticity(stage, told.z))[counted]
    if float(stage.in_logs) > 0:
        size = elasticity / np.asarray(stage.price)[counted]
    else:
        size = elasticity * np.exp(told.log_reducible[counted]) / float(stage.scale)
    return max(float(weight[counted] @ size / weight.sum()), 1e-300)


def _least_residual(gradient, columns, sums, totals) -> float:
    """Least residual of stationarity over multipliers >= 0; those of tied pieces sum to the weight of their maximum."""
    if not len(columns):
        return float(np.abs(gradient).max()) if len(gradient) else 0.0
    heavy = 1e3 / max(max(totals, default=1.0), 1e-300)
    rows = np.zeros((len(totals), len(columns)))
    rows[sums, np.arange(len(sums))] = heavy
    matrix = np.vstack([columns.T, rows])
    right = np.concatenate([-gradient, heavy * np.array(totals)])
    size = np.linalg.norm(matrix, axis=0)
    size[size == 0] = 1.0
    multipliers = nnls(matrix / size, right, maxiter=50 * len(columns) + 100)[0] / size
    return float(np.abs(matrix @ multipliers - right)[: len(gradient)].max())


def _polished(stage: Stage, v) -> Float[np.ndarray, "4"]:
    """Newton on the conditions of an optimum, with the ties and constraints that the smoothed minimum shows."""
    free = np.flatnonzero(np.asarray(_unknown(stage)))
    _, pieces, exist, constraints, *_ = _expansion(stage, v)
    weight = np.asarray(stage.weight)
    strength = SMOOTHINGS[-1]
    tops = np.where(exist, pieces, -np.inf).max(axis=1)
    counted = np.isfinite(tops) & (weight > 0)
    share = np.exp(np.minimum((pieces - np.where(counted, tops, 0.0)[:, None]) / strength, 0.0)) * exist
    share = share / np.maximum(share.sum(axis=1, keepdims=True), 1e-300)
    tied = (share > TIE) & counted[:, None]
    active = constraints > -NEAR
    for _ in range(12):  # changes of the active set
        solved = _with_active(stage, v, free, tied, active)
        if solved is None:
            return v
        at, wrong_tie, wrong_active, broken = solved
        if wrong_tie is not None:
            tied[wrong_tie] = False
        elif wrong_active is not None:
            active[wrong_active] = False
        elif broken.any():
            active = active | broken
        else:
            return at
    return v


def _with_active(stage: Stage, v, free, tied, active) -> Any:
    """(where Newton ends, a tied piece of negative weight, a constraint of negative multiplier, broken constraints)."""
    v = np.array(v)
    keys: list[tuple[int, int]] = []
    base = np.argmax(tied, axis=1)
    for i in np.flatnonzero(tied.any(axis=1)):
        keys += [(int(i), int(j)) for j in np.flatnonzero(tied[i]) if j != base[i]]
    rows = np.flatnonzero(active)
    items, others = np.array([k[0] for k in keys], int), np.array([k[1] for k in keys], int)
    weight = np.asarray(stage.weight)
    with_base = np.flatnonzero(tied.any(axis=1))
    weights, of_constraints = np.zeros(tied.shape), np.zeros(len(active))
    multipliers = np.zeros(0)
    for step in range(15):
        _, pieces, _, constraints, slopes, hessian = _expansion(stage, v, weights, of_constraints)
        if not (np.isfinite(pieces).all() and np.isfinite(constraints).all()):
            return None
        gradient = slopes[0] + (weight[with_base][:, None] * slopes[1][with_base, base[with_base]]).sum(axis=0)
        differences = slopes[1][items, others] - slopes[1][items, base[items]]
        normals = np.vstack([differences, slopes[2][rows]])[:, free]
        errors = np.concatenate([pieces[items, others] - pieces[items, base[items]], constraints[rows]])
        n, m = len(free), len(errors)
        if step == 0:  # only multipliers, which the Hessian needs
            multipliers = np.linalg.lstsq(normals.T, -gradient[free], rcond=1e-12)[0] if m else np.zeros(0)
        else:
            matrix = np.block([[hessian[np.ix_(free, free)], normals.T], [normals, np.zeros((m, m))]])
            solution = np.linalg.lstsq(matrix, np.concatenate([-gradient[free], -errors]), rcond=1e-13)[0]
            move, multipliers = solution[:n], solution[n:]
            if np.abs(move).max(initial=0.0) > 0.1:
                return None
            v[free] += move
            if np.abs(move).max(initial=0.0) < 1e-13:
                break
        weights, of_constraints = np.zeros(tied.shape), np.zeros(len(active))
        weights[with_base, base[with_base]] = weight[with_base]
        np.add.at(weights, (items, others), multipliers[: len(keys)])
        np.add.at(weights, (items, base[items]), -multipliers[: len(keys)])
        of_constraints[rows] = multipliers[len(keys) :]
    constraints = _expansion(stage, v).constraints
    of_ties, of_rows = multipliers[: len(keys)], multipliers[len(keys) :]
    wrong_tie = wrong_active = None
    if len(keys):
        relative = of_ties / weight[items]
        left = np.ones(len(weight))
        np.add.at(left, items, -relative)
        if relative.min() < -1e-9:
            wrong_tie = keys[int(np.argmin(relative))]
        elif left[items].min() < -1e-9:
            i = int(items[np.argmin(left[items])])
            wrong_tie = (i, int(base[i]))
    if wrong_tie is None and len(rows) and of_rows.min() < -1e-9:
        wrong_active = rows[int(np.argmin(of_rows))]
    broken = (constraints > 1e-10) & ~active
    return v, wrong_tie, wrong_active, broken
