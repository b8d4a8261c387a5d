"""Optima on a grid, so that a page can move a plan without solving: a few groups of assumptions are all that matters.

Where overheads do not depend on N, cost is N (c_d D + c_r R + c_k k + c_f), and the optimum hangs on three groups:
budget over c_d, serving over c_d, and c_r over c_d; at a fixed N and k on N, on what serving leaves of the budget per
parameter, and on c_r over c_d. A page interpolates the solver's coordinates in logs of these groups.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import tomli_w
from jaxtyping import Float

from allocator import catalog
from allocator.costs import PhaseCost
from allocator.errors import AllocatorError
from allocator.feedback import depends_on_size
from allocator.laws.rl import SaturatingRl
from allocator.optimum.batches import Plans, solve_batch
from allocator.optimum.result import Plan
from allocator.problem import DECISIONS, Problem
from allocator.scenario.reading import set_value, with_values
from allocator.scenario.schema import Bounds, Scenario

STARTS = 3
REACH = 10.0  # of budget and demand, either way
OVERHEADS = (1.0, 10.0)
DAYS = (7.0, 730.0)
DERATE = (0.05, 1.0)
SIZES = 5.0  # of N, either way
LEAST_LEFT, MOST_LEFT = 1e-3, 60.0  # what serving leaves, over the scenario's whole budget per parameter
COUNTS = {"budget": 12, "serving": 28, "rl": 9, "size": 9, "left": 30}
OUTPUTS = 5  # z and log of the reducible loss
CHECKS = 64
OTHER_LAWS = ("besiroglu-2024", "hoffmann-2022", "chinchilla-epoch")
BOUND, LOSS_BOUND = 5e-3, 1e-4  # relative, of decisions and of the loss


@dataclass(frozen=True)
class Axis:
    """One group: log of its ratio to the scenario's own."""

    name: str  # budget, serving, rl, size or left
    low: float
    high: float
    count: int

    @property
    def points(self) -> Float[np.ndarray, " count"]:
        """Where the grid has points."""
        return np.linspace(self.low, self.high, self.count)


@dataclass(frozen=True)
class Grid:
    """Optima in the solver's coordinates, and log reducible loss, over a regular grid of groups; NaN without a plan."""

    axes: tuple[Axis, ...]
    values: Float[np.ndarray, "... outputs"]
    error: Mapping[str, float]  # largest relative error met at random points between: decisions, loss

    def to_dict(self) -> dict[str, Any]:
        """Axes, and the values as float32 in base64, the last axis fastest."""
        data = np.ascontiguousarray(self.values, dtype="<f4").tobytes()
        axes = [{"name": a.name, "low": a.low, "high": a.high, "count": a.count} for a in self.axes]
        return {"axes": axes, "outputs": OUTPUTS, "data": base64.b64encode(data).decode(), "error": dict(self.error)}


def interpolate(grid: Grid, at: Float[np.ndarray, "points axes"]) -> Float[np.ndarray, "points outputs"]:
    """Cubic interpolation (Catmull and Rom's) along each axis; beyond the ends it continues straight."""
    values: Any = np.asarray(grid.values, np.float32).astype(float)
    rows = np.arange(len(at))
    for i, axis in enumerate(grid.axes):
        padded = values if i else np.broadcast_to(values, (len(at), *values.shape))
        place = np.clip((at[:, i] - axis.low) / (axis.high - axis.low) * (axis.count - 1), 0, axis.count - 1)
        cell = np.minimum(place.astype(int), axis.count - 2)
        t = (place - cell)[:, *([None] * (padded.ndim - 2))]
        p1, p2 = padded[rows, cell], padded[rows, cell + 1]
        first, last = cell == 0, cell == axis.count - 2
        wide = (slice(None), *([None] * (padded.ndim - 2)))
        p0 = np.where(first[wide], 2 * p1 - p2, padded[rows, np.maximum(cell - 1, 0)])
        p3 = np.where(last[wide], 2 * p2 - p1, padded[rows, np.minimum(cell + 2, axis.count - 1)])
        slope = (p2 - p0) / 2, (p3 - p1) / 2
        step = p2 - p1
        values = p1 + t * (slope[0] + t * (3 * step - 2 * slope[0] - slope[1] + t * (slope[0] + slope[1] - 2 * step)))
    return values


@dataclass(frozen=True)
class Coefficients:
    """Cost in the objective's currency is N (c_d D + c_r R + c_k k + c_f), if overheads do not depend on N."""

    d: float
    r: float
    k: float
    f: float


def live_planner(plan: Plan, *, seed: int = 0) -> dict[str, Any]:
    """Everything a page needs to move a plan: grids by law and mode, sliders, and the scenario as a template.

    Raises `AllocatorError` where the plan has no scenario of its own.
    """
    scenario, problem = plan.scenario, plan.problem
    if scenario is None or problem is None or plan.decision is None or plan.status == "evaluated" or plan.user_law:
        raise AllocatorError("live planner: needs a solved plan made from a scenario")
    moving = depends_on_size(problem.costs)
    sliders = _sliders(plan, moving)
    laws = []
    for name in _laws(scenario):
        own = with_values(scenario, {"law.pretraining": name})
        grids, reasons = {}, {}
        for mode in ("free", "fixed"):
            try:
                grids[mode] = _grid(own, plan, mode, sliders, seed).to_dict()
            except AllocatorError as error:
                reasons[mode] = " ".join(str(error).split())
        laws.append({"name": name, "floor": _floor(own, plan), "grids": grids, "reasons": reasons})
    axis = problem.law.rl_axis
    saturating = isinstance(axis, SaturatingRl)
    return {
        "laws": laws,
        "sliders": sliders,
        "law": scenario.law.pretraining,
        "mode": "fixed" if _fixed(scenario, "n_active") is not None else "free",
        "kind": plan.objective.kind,
        "unit": plan.objective.unit,
        "loss_unit": plan.loss_unit,
        "title": scenario.title,
        "k": _fixed_k(problem),
        "n_active": plan.decision.n_active,
        "rl": {"saturating": saturating, "scale": float(axis.scale_tokens if saturating else axis.unit_tokens),  # pyright: ignore
               "none": bool(np.asarray(problem.upper)[2] == np.asarray(problem.lower)[2])},
        "base": _base(plan, moving),
        "plan": _exact(plan, moving),
        "moving": moving,
        "bound": {"decisions": BOUND, "loss": LOSS_BOUND},
        "toml": _toml(scenario, sliders),
        "free_size": _inline(_free(scenario)),
    }  # fmt: skip


def _laws(scenario: Scenario) -> list[str]:
    own = catalog.law_record(scenario.law.pretraining, folder=scenario.folder)
    names = [scenario.law.pretraining]
    for name in OTHER_LAWS:
        record = catalog.law_record(name)
        alike = all(record.content[key] == own.content[key] for key in ("unit", "kind"))
        if alike and record.name != own.name and scenario.objective.target_loss is None:
            names.append(name)
    return names


def _floor(scenario: Scenario, plan: Plan) -> float:
    assert plan.problem is not None
    if scenario.law.pretraining == (plan.scenario.law.pretraining if plan.scenario else None):
        return float(plan.problem.law.floor)
    content = catalog.law_record(scenario.law.pretraining, folder=scenario.folder).content
    own = (
        catalog.law_record(plan.scenario.law.pretraining, folder=scenario.folder).content if plan.scenario else content
    )
    # A form may raise the floor by terms of its own, which are the same under each law.
    return float(plan.problem.law.floor) - float(own["parameters"]["E"]) + float(content["parameters"]["E"])


def _fixed(scenario: Scenario, name: str) -> float | None:
    value = getattr(scenario.decisions, name)
    return value if isinstance(value, float) else None


def _fixed_k(problem: Problem) -> float | None:
    low, high = float(np.asarray(problem.lower)[3]), float(np.asarray(problem.upper)[3])
    return math.exp(low) if low == high else None


def _coefficients(problem: Problem) -> Coefficients:
    """At one parameter; right only where overheads do not depend on N."""
    rates = problem.costs.rates(jnp.zeros(()), problem.currency)
    return Coefficients(*(float(x) for x in rates))


def _overhead(phase: PhaseCost) -> float:
    """Of a phase whose overhead does not depend on N."""
    return float(phase.overhead(jnp.zeros(())))


def _base(plan: Plan, moving: bool) -> dict[str, Any]:
    """The scenario's own numbers, from which sliders are told as ratios."""
    assert plan.problem is not None
    costs = plan.problem.costs
    phases = {"pretrain": costs.pretrain, "rl": costs.rl, "decode": costs.decode, "prefill": costs.prefill}
    flop = {} if moving else {name: _overhead(phase) for name, phase in phases.items()}
    cost = None if moving else vars(_coefficients(plan.problem))
    return {
        "overheads": flop,
        "cost": cost,
        "kappa": float(costs.rl.flop_per_param_token),
        "lifetime_tokens": float(costs.lifetime_tokens),
        "prompt_tokens": float(costs.prompt_tokens),
        "limit": float(plan.objective.value),
    }


def _exact(plan: Plan, moving: bool) -> dict[str, Any]:
    """The plan itself, as the page tells one."""
    assert plan.decision is not None
    assert plan.phases is not None
    assert plan.total is not None
    d = plan.decision
    amounts = {name: getattr(d, name) for name in (*DECISIONS, "d_inference")}
    told = amounts | {"loss": plan.loss, "tokens_per_param": d.d_pretrain / d.n_active}
    return told if moving else told | {"flop": plan.total.flop, "shares": [p.share for p in plan.phases.values()]}


def _sliders(plan: Plan, moving: bool) -> list[dict[str, Any]]:
    """What can be moved: id, words, unit, range on a log scale, the scenario's own value, its key."""
    scenario, problem = plan.scenario, plan.problem
    assert scenario is not None
    assert problem is not None
    kind, value = plan.objective.kind, plan.objective.value
    found = []

    def add(name: str, label: str, unit: str, key: str, value: float, low: float, high: float) -> None:
        ends = (min(low, value), max(high, value))
        found.append({"id": name, "label": label, "unit": unit, "key": key, "value": value,
                      "low": ends[0], "high": ends[1]})  # fmt: skip

    if kind == "target_loss":
        gap = value - float(problem.law.floor)
        low, high = (float(problem.law.floor) + gap * factor for factor in (0.5, 2.0))
        add("budget", "target loss", plan.loss_unit, "objective.target_loss", value, low, high)
    else:
        add("budget", "budget", plan.objective.unit, f"objective.{kind}", value, value / REACH, value * REACH)
    deployment = scenario.deployment
    if deployment is not None:
        for name, label, unit in (("tokens_per_second", "traffic", "output tokens/s"),
                                  ("lifetime_tokens", "demand over the lifetime", "output tokens")):  # fmt: skip
            own = getattr(deployment, name)
            if own is not None:
                add("traffic", label, unit, f"deployment.{name}", own, own / REACH, own * REACH)
        if deployment.lifetime_days is not None:
            add("days", "lifetime", "days", "deployment.lifetime_days", deployment.lifetime_days, *DAYS)
        add("derate", "derating: share of the demand to count on", "", "deployment.derate", deployment.derate, *DERATE)
        prompts_and_k = float(problem.costs.prompt_tokens) > 0 and _fixed_k(problem) is None
        if not moving and not prompts_and_k:
            decode = _overhead(problem.costs.decode)
            add("decode", "decode overhead", "pre-training MFU / decode MFU", "inference.overhead", decode, *OVERHEADS)
    if scenario.law.rl is not None and not moving and np.asarray(problem.upper)[2] > np.asarray(problem.lower)[2]:
        rl = _overhead(problem.costs.rl)
        add("rl", "RL overhead", "pre-training MFU / RL MFU", "rl.overhead", rl, *OVERHEADS)
    if _sizes_move(plan, moving):
        assert plan.decision is not None
        n = plan.decision.n_active
        add("size", "active parameters", "", "decisions.n_active", n, n / SIZES, n * SIZES)
    return found


def _sizes_move(plan: Plan, moving: bool) -> bool:
    """Whether a fixed N can be moved: then k must be fixed and a budget asked for, so that three groups are enough."""
    assert plan.problem is not None
    return not moving and _fixed_k(plan.problem) is not None and plan.objective.kind != "target_loss"


def _ends(sliders: Sequence[Mapping[str, Any]], *names: str) -> tuple[float, float]:
    """Log range of a product of sliders, relative to their own values."""
    chosen = [slider for slider in sliders if slider["id"] in names]
    return (sum(math.log(s["low"] / s["value"]) for s in chosen), sum(math.log(s["high"] / s["value"]) for s in chosen))


def _grid(scenario: Scenario, plan: Plan, mode: str, sliders: Sequence[Mapping[str, Any]], seed: int) -> Grid:
    problem = plan.problem
    assert problem is not None
    assert plan.decision is not None
    moving, n, k = depends_on_size(problem.costs), plan.decision.n_active, _fixed_k(problem)
    own = with_values(scenario, {"decisions.n_active": n if mode == "fixed" else _free(scenario)})
    rl = [Axis("rl", *_ends(sliders, "rl"), COUNTS["rl"])] if any(s["id"] == "rl" for s in sliders) else []
    if mode == "fixed" and _sizes_move(plan, moving):
        axes = [Axis("size", *_ends(sliders, "size"), COUNTS["size"]),
                Axis("left", math.log(LEAST_LEFT), math.log(MOST_LEFT), COUNTS["left"]), *rl]  # fmt: skip
    else:
        target = plan.objective.kind == "target_loss"
        floor = float(problem.law.floor) if target else 0.0
        budget = next(slider for slider in sliders if slider["id"] == "budget")
        low, high = (math.log((budget[end] - floor) / (budget["value"] - floor)) for end in ("low", "high"))
        serving = [Axis("serving", *_ends(sliders, "traffic", "days", "derate", "decode"), COUNTS["serving"])]
        axes = [Axis("budget", low, high, COUNTS["budget"]), *(serving if scenario.deployment else []), *rl]
    shape = tuple(axis.count for axis in axes)
    at = np.stack(np.meshgrid(*(axis.points for axis in axes), indexing="ij"), axis=-1).reshape(-1, len(axes))
    plans = _solved(own, plan, axes, at, k, seed)
    if plans.solved.mean() < 0.5:
        reasons = [str(reason) for reason in plans.reason if reason is not None]
        raise AllocatorError(reasons[0] if reasons else "no plan over most of the sliders' range")
    grid = Grid(tuple(axes), _told(plans).reshape(*shape, OUTPUTS), {})
    random = np.random.default_rng(seed).random((CHECKS, len(axes)))
    between = np.array([axis.low for axis in axes]) + random * np.array([axis.high - axis.low for axis in axes])
    return Grid(grid.axes, grid.values, _error(grid, between, _solved(own, plan, axes, between, k, seed), scenario))


def _free(scenario: Scenario) -> Any:
    choice = scenario.decisions.n_active
    return choice.stated() if isinstance(choice, Bounds) else "free"


def _solved(scenario: Scenario, plan: Plan, axes: Sequence[Axis], at: np.ndarray, k: float | None, seed: int) -> Plans:
    """Plans at points of the groups, through the numbers of the scenario that stand for them."""
    assert plan.problem is not None
    assert plan.decision is not None
    names = [axis.name for axis in axes]
    group = {name: np.exp(at[:, i]) for i, name in enumerate(names)}
    value, values = plan.objective.value, {}
    if "left" in group:
        cost = _coefficients(plan.problem)
        n = plan.decision.n_active * group["size"]
        serving = cost.k * (k or 0.0) + cost.f
        values["decisions.n_active"] = n
        values[f"objective.{plan.objective.kind}"] = n * (value / plan.decision.n_active * group["left"] + serving)
    else:
        floor = float(plan.problem.law.floor) if plan.objective.kind == "target_loss" else 0.0
        values[f"objective.{plan.objective.kind}"] = floor + (value - floor) * group["budget"]
        if "serving" in group:
            deployment = scenario.deployment
            assert deployment is not None
            key = "lifetime_tokens" if deployment.lifetime_tokens is not None else "tokens_per_second"
            values[f"deployment.{key}"] = getattr(deployment, key) * group["serving"]
    if "rl" in group:
        values["rl.flop_per_param_token"] = float(plan.problem.costs.rl.flop_per_param_token) * group["rl"]
    return solve_batch(scenario, values, starts=STARTS, seed=seed)


def _told(plans: Plans) -> Float[np.ndarray, "plans outputs"]:
    return np.column_stack([plans.z, plans.figures.log_reducible])


def _error(grid: Grid, at: np.ndarray, exact: Plans, scenario: Scenario) -> dict[str, float]:
    """Largest relative error of N, D, R, k and of the loss at points between, where there is a plan."""
    told, want = interpolate(grid, at), _told(exact)
    known = np.isfinite(told).all(axis=1) & np.isfinite(want).all(axis=1)
    if not known.any():
        return {"decisions": math.nan, "loss": math.nan}
    difference = np.abs(told - want)[known]
    # The RL coordinate is log(1 + R/R0), whose own error is R's wherever RL is bought at all.
    floor = float(np.asarray(exact.figures.loss)[known][0] - np.exp(want[known][0, 4]))
    loss = floor + np.exp(want[known][:, 4])
    error = np.abs(np.exp(told[known][:, 4]) - np.exp(want[known][:, 4])) / loss
    return {"decisions": float(difference[:, :4].max()), "loss": float(error.max())}


def _inline(choice: Any) -> str:
    """A free or bounded decision as a value of TOML."""
    if isinstance(choice, str):
        return f'"{choice}"'
    return "{ " + ", ".join(f"{end} = {float(value)!r}" for end, value in choice.items()) + " }"


def _toml(scenario: Scenario, sliders: Sequence[Mapping[str, Any]]) -> str:
    """The scenario with a mark in place of each number that the page sets."""
    marked = scenario
    values = marked.to_values()
    for slider in sliders:
        if slider["id"] != "size":
            values = _set(values, slider["key"], f"@@{slider['id']}@@")
    values = _set(values, "law.pretraining", "@@law@@")
    values = _set(values, "decisions.n_active", "@@size@@")
    return tomli_w.dumps(values)


def _set(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    set_value(values, path, value)
    return values
