"""Commands beyond one plan: frontiers, sensitivities, uncertainty, demand."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from allocator.console import Json, Out, Overrides, ScenarioName, Seed, answer, load, number, write
from allocator.errors import AllocatorError, NoPlanError
from allocator.outputs import check_folder

From = Annotated[float | None, typer.Option("--from", parser=number, metavar="NUMBER", help="First value.")]
To = Annotated[float | None, typer.Option("--to", parser=number, metavar="NUMBER", help="Last value.")]
Linear = Annotated[bool, typer.Option("--linear", help="Evenly spaced in the number itself.")]
Ranges = Annotated[
    list[str] | None,
    typer.Option("--range", metavar="KEY=RANGE", help="LOW,MID,HIGH, lognormal:MEDIAN,SIGMA or uniform:LOW,HIGH."),
]


def frontier(
    scenario: ScenarioName = "lecture",
    vary: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="A number of the scenario, tpot_s, usd_per_mtok, training_cost, serving_cost or training-serving.",
        ),
    ] = "",
    low: From = None,
    high: To = None,
    points: Annotated[int, typer.Option(min=1, max=100_000, help="How many, evenly spaced in logs.")] = 60,
    linear: Linear = False,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Show what more of one thing buys: the best plans along a budget, a demand, a speed, or between two costs."""
    loaded = load(scenario, sets)
    from allocator import decision_report, frontiers

    vary, ends = _ends(loaded, vary, low, high)
    found = frontiers.frontier(loaded, {vary: _grid(*ends, points, linear)}, seed=seed)
    answer("frontier", decision_report.frontier_dict(found), lambda c: decision_report.print_frontier(found, c),
           lambda: decision_report.frontier_files(found), as_json, out)  # fmt: skip
    _require_plan(found)


def sweep(
    scenario: ScenarioName = "lecture",
    vary: Annotated[str, typer.Option(metavar="KEY", help="A number of the scenario.")] = "",
    values: Annotated[str | None, typer.Option(metavar="A,B,...", help="The values, instead of a range.")] = None,
    low: From = None,
    high: To = None,
    points: Annotated[int, typer.Option(min=1, max=100_000, help="How many, evenly spaced in logs.")] = 21,
    linear: Linear = False,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Plan at many values of one number of the scenario."""
    loaded = load(scenario, sets)
    from allocator import decision_report, frontiers

    if values is not None:
        if low is not None or high is not None or linear:
            raise AllocatorError("--values: excludes --from, --to and --linear")
        if not vary:
            raise AllocatorError("--vary: name the number that takes the values")
        numbers: Any = _numbers(values, "--values")
    else:
        vary, ends = _ends(loaded, vary, low, high)
        numbers = _grid(*ends, points, linear)
    if vary in frontiers.OWN:
        raise AllocatorError(f"--vary {vary}: is for allocator frontier; a sweep varies a number of the scenario")
    found = frontiers.frontier(loaded, {vary: numbers}, seed=seed)
    answer("sweep", decision_report.frontier_dict(found) | {"schema": "allocator.sweep/1"},
           lambda c: decision_report.print_frontier(found, c), lambda: decision_report.frontier_files(found),
           as_json, out)  # fmt: skip
    _require_plan(found)


def demand(
    scenario: ScenarioName = "lecture-free",
    low: Annotated[float, typer.Option("--from", parser=number, metavar="TOKENS", help="Least demand.")] = 1e12,
    high: Annotated[float, typer.Option("--to", parser=number, metavar="TOKENS", help="Greatest demand.")] = 1e16,
    points: Annotated[int, typer.Option(min=1, max=10_000, help="How many, evenly spaced in logs.")] = 41,
    laws: Annotated[list[str] | None, typer.Option("--law", metavar="LAW", help="Laws to compare.")] = None,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Show how far to over-train for each demand, law by law, beside released models."""
    loaded = load(scenario, sets)
    from allocator import decision_report, frontiers

    found = frontiers.overtraining_by_demand(loaded, _grid(low, high, points, False), laws=laws, seed=seed)
    about = decision_report.provenance(loaded)
    answer("demand", decision_report.demand_dict(found, about), lambda c: decision_report.print_demand(found, c),
           lambda: decision_report.demand_files(found, loaded.title), as_json, out)  # fmt: skip


def sensitivity(
    scenario: ScenarioName = "lecture",
    outcome: Annotated[
        str, typer.Option(help="What the swings are of: a decision, loss, cost or tokens_per_param.")
    ] = "tokens_per_param",
    ranges: Ranges = None,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Show which assumption the plan hangs on, and what a little more of each is worth."""
    loaded = load(scenario, sets)
    from allocator import decision_report
    from allocator.distributions import parse_all
    from allocator.sensitivities import sensitivity as differentiate

    found = differentiate(loaded, outcome=outcome, ranges=parse_all(ranges or []), seed=seed)
    answer("sensitivity", decision_report.sensitivity_dict(found),
           lambda c: decision_report.print_sensitivity(found, c), lambda: decision_report.sensitivity_files(found),
           as_json, out)  # fmt: skip


def uncertainty(
    scenario: ScenarioName = "lecture",
    draws: Annotated[int, typer.Option(help="How many draws are solved.")] = 2000,
    ranges: Ranges = None,
    no_assumed: Annotated[bool, typer.Option("--no-assumed", help="Only the law's draws and given ranges.")] = False,
    no_sources: Annotated[
        bool, typer.Option("--no-sources", help="Leave out what the spread comes from and what to measure.")
    ] = False,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Say how sure the plan is: intervals from the law's draws and from assumed ranges, and what to measure first."""
    loaded = load(scenario, sets)
    from allocator import decision_report, information
    from allocator.distributions import parse_all
    from allocator.optimum.result import Notice
    from allocator.uncertainties import sources_of
    from allocator.uncertainties import uncertainty as spread

    given = parse_all(ranges or [])
    found = spread(loaded, ranges=given, assumed=not no_assumed, draws=draws, seed=seed)
    shares, told, notes = None, None, []
    if not no_sources:
        sources = sources_of(loaded, given, assumed=not no_assumed)
        try:
            told = information.value_of_information(loaded, sources, seed=seed)
            shares = information.variance_shares(loaded, sources, seed=seed)
        except AllocatorError as error:  # the intervals and counts stand without it
            notes.append(Notice("sources_unknown", "uncertainty", None, str(error)))
    found = dataclasses.replace(found, warnings=(*found.warnings, *notes))
    answer("uncertainty", decision_report.uncertainty_dict(found, shares, told),
           lambda c: decision_report.print_uncertainty(found, shares, told, c),
           lambda: decision_report.uncertainty_files(found, shares, told), as_json, out)  # fmt: skip


def near_optimal(
    scenario: ScenarioName = "lecture-free",
    within: Annotated[
        float, typer.Option(parser=number, metavar="SHARE", help="Extra budget that is let pass, 0.01 for 1 %.")
    ] = 0.01,
    valley: Annotated[
        list[str] | None,
        typer.Option("--valley", metavar="DECISION", help="Two decisions, given one each, whose valley --out draws."),
    ] = None,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Say what each decision may be while the plan needs hardly more budget than the best one."""
    loaded = load(scenario, sets)
    from allocator import near_optimal as nearly
    from allocator import near_optimal_report
    from allocator.optimum.planning import solve
    from allocator.problem import DECISIONS

    axes = valley or ["n_active", "d_pretrain"]
    if len(axes) != 2 or not set(axes) <= set(DECISIONS):
        raise AllocatorError(f"--valley: got {' '.join(axes)}; give it twice, with one of {', '.join(DECISIONS)} each")
    plan = solve(loaded, seed=seed)
    found = nearly.near_optimal(plan, within=within)

    def files() -> dict[str, str | bytes]:
        free = [name for name, status in (plan.decision_status or {}).items() if status == "free"]
        drawn = nearly.valley(plan, axes[0], axes[1]) if set(axes) <= set(free) else None
        rules = None if drawn is None else near_optimal_report.rules_of(plan)
        return near_optimal_report.files(near=found, valley=drawn, rules=rules)

    answer("near-optimal", found.to_dict(), lambda c: near_optimal_report.print_near_optimal(found, c), files,
           as_json, out)  # fmt: skip


def round_(
    scenario: ScenarioName = "lecture-free",
    shape: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A catalogued model in whose family a shape is sought.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(parser=number, metavar="DAYS", help="Length of the runs, to fill whole chips.")
    ] = None,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Round a plan to whole samples, a model shape and whole chips, and tell what each way costs."""
    loaded = load(scenario, sets)
    from allocator import near_optimal_report
    from allocator.optimum.planning import solve
    from allocator.rounding import round_plan

    plan = solve(loaded, seed=seed)
    free_k = (plan.decision_status or {}).get("k") != "fixed"
    found = round_plan(plan, k="whole" if free_k else None, shape=shape, days=days)
    answer("round", found.to_dict(), lambda c: near_optimal_report.print_rounding(found, c),
           lambda: near_optimal_report.files(rounding=found), as_json, out)  # fmt: skip


def robust(
    scenario: ScenarioName = "lecture-free",
    criterion: Annotated[str, typer.Option(help="expected, cvar or regret.")] = "expected",
    level: Annotated[
        float, typer.Option(parser=number, metavar="SHARE", help="Of cvar: 0.9 is the worst tenth.")
    ] = 0.9,
    sigma: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="Of the log of demand; 0.7 if not given.")
    ] = None,
    points: Annotated[int | None, typer.Option(min=1, max=200, help="States of demand; 7 if not given.")] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="KEY=A,B,...", help="States given one by one, a value each for every key."),
    ] = None,
    probability: Annotated[
        str | None, typer.Option(metavar="P,Q,...", help="Of the states; alike if not given.")
    ] = None,
    law_draws: Annotated[int, typer.Option(min=0, help="Draws of the law to cross with demand.")] = 0,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Commit N, D and R before demand is known, with samples and serving to adapt after."""
    loaded = load(scenario, sets)
    from allocator import robust_report, robustness
    from allocator.distributions import DEMAND_SIGMA
    from allocator.scenario.building_costs import demand_of
    from allocator.states import States, crossed, law_states, lognormal_demand

    if states:
        for option, value in (("--sigma", sigma), ("--points", points)):
            if value is not None:
                raise AllocatorError(f"{option}: excludes --state, which gives the states one by one")
        pairs = [_listed(text) for text in states]
        if len({key for key, _ in pairs}) < len(pairs):
            raise AllocatorError("--state: a key is given twice")
        known = States(dict(pairs), None if probability is None else _numbers(probability, "--probability"))
    else:
        if probability is not None:
            raise AllocatorError("--probability: goes with --state")
        path, demand = demand_of(loaded)
        known = lognormal_demand(demand, DEMAND_SIGMA if sigma is None else sigma, points=points or 7, key=path)
    if law_draws:
        known = crossed(known, law_states(loaded, draws=law_draws, seed=seed))
    found = robustness.robust(loaded, known, criterion=criterion, level=level, seed=seed)
    answer("robust", robust_report.robust_dict(found), lambda c: robust_report.print_robust(found, c),
           lambda: robust_report.files(found), as_json, out)  # fmt: skip


def report(
    scenario: ScenarioName = "lecture",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of report.html and its tables.")
    ] = None,
    draws: Annotated[int, typer.Option(help="How many draws say how sure the plan is.")] = 1000,
    sets: Overrides = None,
    seed: Seed = 0,
) -> None:
    """Write the plan as a page to open, drag, print and share: one file that needs no network."""
    if out is None or str(out) in ("", "."):
        raise AllocatorError("--out: name the folder that the page goes to")
    if draws < 2:
        raise AllocatorError(f"--draws: got {draws}; must be >= 2")
    check_folder(out)
    loaded = load(scenario, sets)
    from allocator import plan_pages

    made = plan_pages.report(loaded, draws=draws, seed=seed)
    write(out, plan_pages.page_files(made, scenario), quiet=False)


COMMANDS = {
    "frontier": frontier,
    "sweep": sweep,
    "demand": demand,
    "sensitivity": sensitivity,
    "uncertainty": uncertainty,
    "near-optimal": near_optimal,
    "robust": robust,
    "round": round_,
    "report": report,
}


def _require_plan(found: Any) -> None:
    """Exit as a plan does where not one point has one, after the points were told with their reasons."""
    if not found.plans.solved.any():
        raise NoPlanError(f"no point has a plan: {found.plans.reason[0]}")


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise AllocatorError(f"{option} {text}: must be numbers with commas between") from None


def _listed(text: str) -> tuple[str, list[float]]:
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise AllocatorError(f"--state {text}: must read KEY=A,B,...")
    return key.strip(), _numbers(values, f"--state {key.strip()} =")


def _ends(scenario: Any, vary: str, low: float | None, high: float | None) -> tuple[str, tuple[float, float]]:
    """The varied key and its ends; by default the scenario's own objective, a tenth to ten times of it."""
    from allocator.scenario.assumptions import assumptions, find_path
    from allocator.scenario.building import objective_of

    kind, value, _ = objective_of(scenario)
    if not vary:
        vary = f"objective.{kind}"
    if low is not None and high is not None:
        return vary, (low, high)
    if vary == "training-serving":
        return vary, (low if low is not None else 1e-3, high if high is not None else 1e3)
    if vary == f"objective.{kind}" and kind == "target_loss":
        raise AllocatorError("--from and --to: give the range of target losses")
    if vary in ("tpot_s", "usd_per_mtok", "training_cost", "serving_cost"):
        raise AllocatorError(f"--from and --to: give the range of {vary}")
    path = find_path(scenario, vary)
    own = value if path == f"objective.{kind}" else assumptions(scenario).get(path)
    if own is None:
        raise AllocatorError(f"--from and --to: give the range of {vary}, which the scenario does not state")
    return vary, (low if low is not None else own / 10, high if high is not None else own * 10)


def _grid(low: float, high: float, points: int, linear: bool) -> Any:
    import numpy as np

    for name, value in (("--from", low), ("--to", high)):
        if not np.isfinite(value) or (not linear and value <= 0):
            raise AllocatorError(f"{name}: got {value:g}; must be {'finite' if linear else '> 0 and finite'}")
    return np.linspace(low, high, points) if linear else np.geomspace(low, high, points)
