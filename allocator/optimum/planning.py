"""A plan from a scenario: solve for the optimum, or evaluate given decisions."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import scipy

import allocator
from allocator.errors import NoPlanError, ScenarioError
from allocator.laws.law import Law
from allocator.optimum.accounts import PHASES, Account, account, chinchilla_tokens
from allocator.optimum.notices import notices
from allocator.optimum.result import (
    Certificate,
    Notice,
    Objective,
    Overtraining,
    Phase,
    Plan,
    PlannedDecision,
    ShadowPrice,
    Total,
)
from allocator.optimum.solving import Solution, optimise
from allocator.precision import require_float64
from allocator.problem import DECISIONS, LARGEST, SMALLEST, Decision, to_coordinates
from allocator.scenario.building import Built, build, objective_of
from allocator.scenario.forms import least_k
from allocator.scenario.schema import Scenario

UNITS = {"compute_flop": "FLOP", "chip_hours": "chip-hour", "usd": "USD", "energy_joule": "J"}


def solve(scenario: Scenario, *, law: Law | None = None, throw: bool = True, seed: int = 0) -> Plan:
    """Find the decisions of least loss under the budget, or of least cost at the target loss.

    `law` (say a `UserLaw`) replaces the scenario's own. Where there is no plan, raises `InfeasibleError` or
    `SolveError`; with `throw=False` returns a plan without figures that carries status and reason.
    """
    try:
        built = build(scenario, law)
        if set(built.fixed) == set(DECISIONS):
            raise ScenarioError(["decisions: nothing is left free; free one, or use evaluate for given decisions"])
        solution = optimise(built.problem, seed=seed)
    except NoPlanError as error:
        if throw:
            raise
        return failed_plan(scenario, law, error)
    return plan_of(scenario, built, solution)


def evaluate(
    scenario: Scenario, *, n_active: float, d_pretrain: float, d_rl: float, k: float, law: Law | None = None
) -> Plan:
    """Score given decisions (parameters, tokens, tokens, samples) against a scenario, whatever its own decisions say.

    The plan's status is `evaluated`; going over the budget or missing the target is a warning, not an error.
    """
    require_float64()
    given = {"n_active": n_active, "d_pretrain": d_pretrain, "d_rl": d_rl, "k": k}
    built = build(scenario, law, limit=False)
    zero_rl = built.problem.law.rl_axis.allows_zero
    zero = "0 or " if zero_rl else ""
    faults = [
        f"{name}: got {value!r}; must be {zero if name == 'd_rl' else ''}from {SMALLEST:g} to {LARGEST:g}"
        for name, value in given.items()
        if not (SMALLEST <= value <= LARGEST or (value == 0 and name == "d_rl" and zero_rl))
    ]
    least = None if law is not None else least_k(scenario.law.model_dump())
    if least is not None and k < least:
        faults.append(f"k: got {k!r}; must be >= {least:g}, below which form, overlap or floor_share have no meaning")
    if faults:
        raise ScenarioError(faults)
    z = to_coordinates(built.problem, Decision(n_active, d_pretrain, d_rl, k))
    figures = account(built.problem, z)
    if not (math.isfinite(figures.loss) and math.isfinite(figures.cost) and sum(figures.flop) > 0):
        raise ScenarioError(["decisions: their loss or cost is beyond what numbers hold"])
    figures = replace(figures, decision=Decision(n_active, d_pretrain, d_rl, k))  # as given, not through logs
    status: dict[str, str] = dict.fromkeys(DECISIONS, "fixed")
    return _plan(scenario, built, figures, status, status="evaluated", extra=_limit_notices(built, figures))


def plan_of(scenario: Scenario, built: Built, solution: Solution) -> Plan:
    """Tell a verified optimum in the scenario's terms."""
    figures = account(solution.problem, solution.point.z)
    status = _decision_status(built, solution)
    certificate = Certificate(
        solution.certificate, solution.starts, solution.kkt_residual, solution.constraint_residual
    )
    target = built.objective_kind == "target_loss"
    price = ShadowPrice(
        float(solution.point.multiplier),
        f"objective.{built.objective_kind}",
        "-dlog cost / dlog reducible loss" if target else "-dlog reducible loss / dlog budget",
    )
    extra = () if solution.point.binding else (
        Notice("limit_slack", f"objective.{built.objective_kind}", None,
               "the bounds on decisions bind before the objective's limit does, so part of it stays unused"),
    )  # fmt: skip
    at_memory = built.memory_limit is not None and math.isclose(
        figures.decision.n_active, built.memory_limit, rel_tol=1e-9
    )
    if at_memory and status["n_active"] == "at_max":
        text = f"{built.memory_limit:.4g} parameters are all that the rooflines' chips hold at their batch and context"
        extra = (*extra, Notice("memory_bound", "decisions.n_active", built.memory_limit, text))
    return _plan(
        scenario, built, figures, status, status=solution.status, certificate=certificate, price=price, extra=extra
    )


def _plan(
    scenario: Scenario,
    built: Built,
    figures: Account,
    decision_status: dict[str, str],
    *,
    status: str,
    certificate: Certificate | None = None,
    price: ShadowPrice | None = None,
    extra: tuple[Notice, ...] = (),
) -> Plan:
    decision = figures.decision if status == "evaluated" else figures.decision._replace(**built.fixed)
    d_c = math.nan if built.pretraining is None else chinchilla_tokens(built.pretraining, decision.n_active)
    per_param = decision.d_pretrain / decision.n_active
    phases = _phases(built, figures)
    return Plan(
        title=scenario.title,
        objective=_objective(scenario, built),
        law=_law_names(scenario, built),
        assumed=built.assumed,
        status=status,
        provenance=_provenance(scenario, built),
        certificate=certificate,
        decision=PlannedDecision.of(decision, float(built.problem.costs.lifetime_tokens)),
        decision_status=decision_status,
        loss=figures.loss,
        loss_unit=loss_unit(scenario, built),
        reducible_loss=figures.reducible_loss,
        phases=phases,
        total=_total(phases),
        elasticities=figures.elasticities._asdict(),
        shadow_price=price,
        overtraining=Overtraining(per_param, per_param / 20, decision.d_pretrain / d_c),
        warnings=(*extra, *notices(scenario, built, figures, decision_status)),
        scenario=scenario,
        problem=built.problem,
        user_law=built.problem.law if built.law_record is None else None,
    )


def _phases(built: Built, figures: Account) -> dict[str, Phase]:
    flop, costs = figures.flop, built.problem.costs
    log_n = math.log(figures.decision.n_active)
    mfu = math.nan if costs.pretrain_mfu is None else float(costs.pretrain_mfu(jnp.asarray(log_n)))
    machines = costs.pretrain.machine, costs.rl.machine, costs.decode.machine
    return {
        name: Phase(
            model_flop=figures.model_flop[i],
            flop=flop[i],
            share=flop[i] / sum(flop),
            # Pre-training's overhead is waste, not slowness: its MFU is that of the run itself.
            mfu=mfu if name == "pretrain" else mfu / figures.overheads[i],
            overhead=figures.overheads[i],
            chip_hours=flop[i] * float(costs.price_of_flop(machines[i], "chip_hours", log_n)),
            usd=flop[i] * float(costs.price_of_flop(machines[i], "usd", log_n)),
            energy_joule=flop[i] * float(costs.price_of_flop(machines[i], "energy_joule", log_n)),
        )
        for i, name in enumerate(PHASES)
    }


def _total(phases: Mapping[str, Phase]) -> Total:
    return Total(*(sum(getattr(phase, name) for phase in phases.values()) for name in Total.__dataclass_fields__))


def _decision_status(built: Built, solution: Solution) -> dict[str, str]:
    words = {-1: "at_min", 0: "free", 1: "at_max"}
    return {
        name: "fixed" if name in built.fixed else words[int(solution.point.active[i])]
        for i, name in enumerate(DECISIONS)
    }


def _limit_notices(built: Built, figures: Account) -> tuple[Notice, ...]:
    if built.objective_kind == "target_loss":
        excess = figures.loss / built.objective_value - 1
        code, text = "misses_target", "the loss is above the target"
    else:
        excess = figures.cost / built.objective_value - 1
        code, text = "over_budget", "the cost is above the budget"
    if excess <= 1e-9:
        return ()
    return (Notice(code, f"objective.{built.objective_kind}", excess, f"{text} by {100 * excess:.3g} %"),)


def failed_plan(scenario: Scenario, law: Law | None, error: NoPlanError) -> Plan:
    """A plan without figures that carries status and reason."""
    return Plan(
        title=scenario.title,
        objective=_objective(scenario, None),
        law=_law_names(scenario, None) if law is None else {"pretraining": None, "form": "user"},
        assumed=(),
        status=error.status,
        provenance=_provenance(scenario, None),
        reason=error.reason,
        nearest=error.nearest,
        scenario=scenario,
    )


def _objective(scenario: Scenario, built: Built | None) -> Objective:
    kind, value, _ = objective_of(scenario)
    return Objective(kind, value, loss_unit(scenario, built) if kind == "target_loss" else UNITS[kind])


def loss_unit(scenario: Scenario, built: Built | None) -> str:
    """Unit of the loss that a scenario's plan has."""
    if built is not None and built.law_record is None:
        return "the unit of the user's law"
    if scenario.law.form == "pass-at-k":
        return "nats, -log pass@k"
    if scenario.law.link is not None:
        return "error rate"
    return "nats/token" if built is None or built.law_record is None else str(built.law_record.content["unit"])


def _law_names(scenario: Scenario, built: Built | None) -> dict[str, str | None]:
    if built is not None and built.law_record is None:
        return {"pretraining": None, "form": "user"}
    name = scenario.law.pretraining if built is None or built.law_record is None else built.law_record.name
    return {"pretraining": name, "form": scenario.law.form}


def _provenance(scenario: Scenario, built: Built | None) -> dict[str, Any]:
    record = None if built is None else built.law_record
    return {
        "allocator": allocator.__version__,
        "jax": jax.__version__,
        "scipy": scipy.__version__,
        "law_sha256": None if record is None else record.sha256,
        "scenario": scenario.to_values(),
    }
