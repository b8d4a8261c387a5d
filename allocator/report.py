"""Plans as tables: data frames with units in the column names, and text for a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from allocator import __version__
from allocator.comparisons import Comparison
from allocator.optimum.result import Notice, Plan, plain_values
from allocator.sweeps import plan_row
from allocator.tables import plain_table
from allocator.units import one_line, short_count, significant

_DECISIONS = {
    "n_active": "active parameters",
    "d_pretrain": "pre-training tokens",
    "d_rl": "RL tokens",
    "k": "samples per query, k",
}
_STATUS = {"fixed": "given", "free": "chosen", "at_min": "at its min", "at_max": "at its max"}
_PHASES = {"pretrain": "pre-training", "rl": "RL", "inference": "inference"}
_BAR = 20
CLIP = 28  # of texts in a row of numbers


def comparison_dict(compared: Comparison) -> dict[str, Any]:
    """A comparison as plain values: a row a variant, with its regret under each other law."""
    rows = [
        {"variant": name, **plan_row(plan), "regret": dict(compared.regret[name])}
        for name, plan in compared.plans.items()
    ]
    plan = compared.plan
    return rows_dict("compare", rows, plan.warnings, plan.provenance) | {"baselines": plain_values(plan.baselines)}


def rows_dict(
    command: str, rows: Sequence[Mapping[str, Any]], warnings: Any = (), provenance: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON object of a command that answers in rows."""
    about = provenance or {"allocator": __version__}
    return plain_values(
        {"schema": f"allocator.{command}/1", "rows": list(rows), "warnings": warnings, "provenance": about}
    )


def print_comparison(compared: Comparison, console: Console) -> None:
    """Print the plans of all laws, and the regret of each under each."""
    console.print(Text(one_line(compared.plan.title), style="bold"))
    table = plain_table("law", "N", "D", "R", "k", "pre/RL/inf %", "x 20", "x own Chinchilla", "status")
    for name, plan in compared.plans.items():
        d, phases, over = plan.decision, plan.phases, plan.overtraining
        if d is None or phases is None or over is None:
            table.add_row(Text(name), *[""] * 7, plan.status)
            continue
        split = "/".join(f"{100 * phase.share:.0f}" for phase in phases.values())
        amounts = short_count(d.n_active), short_count(d.d_pretrain), short_count(d.d_rl), significant(d.k)
        table.add_row(
            Text(name), *amounts, split, significant(over.vs_20), significant(over.vs_chinchilla), plan.status
        )
    console.print(Padding(table, (1, 0, 0, 2)))
    console.print(Text("\nExtra budget that the plan of a row needs where the law of a column holds, %", style="bold"))
    names = list(compared.plans)
    regret = plain_table("plan of", *(f"[{i}]" for i in range(1, len(names) + 1)))
    for i, a in enumerate(names, 1):
        cells = (_percent(compared.regret[a][b], 2).removesuffix(" %") for b in names)
        regret.add_row(Text(f"[{i}] {a}"), *cells)
    console.print(Padding(regret, (1, 0, 0, 2)))
    legend = (
        "- : the law has no meaning there, or no budget reaches that loss. x 20: pre-training tokens over 20 per "
        "active parameter; x own Chinchilla: over what the law calls compute-optimal. best_of_starts: no proof that "
        "nothing is better. Losses of different laws do not compare; a target loss becomes the budget of the own plan."
    )
    console.print(Padding(Text(legend), (1, 0, 0, 2)))


def print_diff(rows: Sequence[Mapping[str, Any]], names: tuple[str, str], console: Console) -> None:
    """Print two plans side by side."""
    table = plain_table("figure", *names, "ratio")
    for row in rows:
        ratio = row["b_over_a"]
        told = "" if ratio is None or ratio != ratio else significant(ratio, 4)
        table.add_row(Text(row["figure"]), _cell(row["a"]), _cell(row["b"]), told)
    console.print(table)


def _cell(value: Any) -> Text:
    text = f"{value:.5g}" if isinstance(value, float) else "" if value is None else one_line(str(value))
    return Text(text if len(text) <= CLIP else f"{text[: CLIP - 1]}…")


def print_plan(plan: Plan, console: Console) -> None:
    """Print a plan that a person reads at a glance."""
    console.print(Text(one_line(plan.title), style="bold"))
    if plan.decision is None:
        console.print(Text(f"{plan.status}: {plan.reason}", style="red"))
        return
    console.print(Text(verdict(plan)))
    if plan.certificate is not None and plan.shadow_price is not None:
        console.print(Text(_assurance(plan)))
    console.print(Padding(Group(_decision_table(plan), "", _phase_table(plan)), (1, 0, 0, 2)))
    if plan.baselines:
        console.print(Padding(_baseline_table(plan), (1, 0, 0, 2)))
    for baseline in plan.baselines:
        if baseline.reason is not None:
            console.print(Padding(Text(f"{baseline.name}: not possible: {baseline.reason}"), (0, 0, 0, 2)))
    console.print(Text("\nWarnings", style="bold") if plan.warnings else "")
    for line in warning_lines(plan):
        console.print(Padding(Text(line), (0, 0, 0, 2)))


def verdict(plan: Plan) -> str:
    """The plan in a sentence or two."""
    assert plan.decision is not None
    assert plan.overtraining is not None
    assert plan.total is not None
    law = plan.law["pretraining"] or "a user's law"
    how = {
        "optimal": f"Optimal under {law}, {plan.law['form']} form",
        "best_of_starts": f"Best of {plan.certificate.starts if plan.certificate else 0} starts under {law}, "
        f"{plan.law['form']} form (no proof that nothing is better)",
        "evaluated": f"Given decisions under {law}, {plan.law['form']} form",
    }[plan.status]
    over = plan.overtraining
    chinchilla = (
        ""
        if over.vs_chinchilla != over.vs_chinchilla
        else (f", {significant(over.vs_chinchilla)} x what {law} calls compute-optimal for this size")
    )
    return (
        f"{how}: loss {_loss(plan.loss)} for {_price(plan)}.\n"
        f"{significant(over.tokens_per_param)} tokens per parameter: {significant(over.vs_20)} x Chinchilla's 20"
        f"{chinchilla}."
    )


def _assurance(plan: Plan) -> str:
    """How sure the optimum is, and what a little more budget buys."""
    assert plan.certificate is not None
    assert plan.shadow_price is not None
    why = {
        "geometric_program": "convex in logs, so this is the optimum",
        "convex_fixed_n": "convex at this N, so this is the optimum",
        "one_dimensional": "convex at each N, and every minimum along N was compared",
        "best_of_starts": "nothing proves that no better plan exists",
    }[plan.certificate.kind]
    price = plan.shadow_price.value
    if plan.objective.kind == "target_loss":
        return f"Certificate: {why}.\nA 1 % lower reducible loss costs {significant(price)} % more."
    return f"Certificate: {why}.\n1 % more budget cuts the reducible loss by {significant(price)} %."


def _price(plan: Plan) -> str:
    """What the plan costs in the currency that it was asked for in, then in FLOP."""
    assert plan.total is not None
    flop = f"{plan.total.flop:.4g} FLOP"
    cost, unit = _objective_cost(plan)
    return flop if unit == "FLOP" else f"{cost:.4g} {unit} ({flop})"


def _objective_cost(plan: Plan) -> tuple[float, str]:
    assert plan.total is not None
    currency = plan.problem.currency if plan.problem is not None else "compute_flop"
    unit = {"compute_flop": "FLOP", "chip_hours": "chip-hours", "usd": "USD", "energy_joule": "J"}[currency]
    return getattr(plan.total, currency.removeprefix("compute_")), unit


def warning_lines(plan: Plan) -> list[str]:
    """Warnings as they are printed."""
    return [f"{code}: {', '.join(paths)}: {message}" for code, paths, message in gathered(plan.warnings)]


def gathered(notices: Iterable[Notice]) -> list[tuple[str, list[str], str]]:
    """Code, paths and message; what is said of several numbers is said once, with all their paths."""
    told: dict[tuple[str, str], list[str]] = {}
    for notice in notices:
        told.setdefault((notice.code, notice.message), []).append(notice.path)
    return [(code, paths, message) for (code, message), paths in told.items()]


def _decision_table(plan: Plan) -> Table:
    assert plan.decision is not None
    assert plan.decision_status is not None
    assert plan.elasticities is not None
    table = plain_table("buy", "amount", "", "a 1% increase cuts reducible loss by")
    test_time = plan.scenario.law.test_time if plan.scenario is not None else None
    labels = _DECISIONS | ({"k": f"{one_line(test_time.unit)}, k"} if test_time is not None else {})
    for name, words in labels.items():
        value = getattr(plan.decision, name)
        amount = significant(value) if name == "k" else short_count(value)
        table.add_row(
            words,
            amount,
            _STATUS[plan.decision_status[name]],
            f"{abs(plan.elasticities[name]):.3f} %"
            if abs(plan.elasticities[name]) < 5e-4
            else f"{plan.elasticities[name]:.3f} %",
        )
    table.add_row("tokens served", short_count(plan.decision.d_inference), "k x demand", "")
    prompts = float(plan.problem.costs.prompt_tokens) if plan.problem is not None else 0.0
    if prompts > 0:
        table.add_row("prompt tokens", short_count(prompts), "once each", "")
    return table


def _phase_table(plan: Plan) -> Table:
    assert plan.phases is not None
    assert plan.total is not None
    chips = plan.total.chip_hours == plan.total.chip_hours
    usd = plan.total.usd == plan.total.usd
    cost, unit = _objective_cost(plan)
    extra = (["MFU", "chip-hours"] if chips else []) + (["USD"] if usd else [])
    extra += [] if unit == "FLOP" else [f"share of {unit}"]
    table = plain_table("cost of", "model FLOP", "x overhead", "= paid FLOP", *extra, "share of FLOP", "")
    table.columns[-1].justify = "left"
    for name, phase in plan.phases.items():
        cells = [f"{phase.model_flop:.3g}", significant(phase.overhead), f"{phase.flop:.3g}"]
        cells += [f"{phase.mfu:.3f}", short_count(phase.chip_hours)] if chips else []
        cells += [short_count(phase.usd)] if usd else []
        own = {"chip-hours": phase.chip_hours, "USD": phase.usd, "J": phase.energy_joule}
        cells += [] if unit == "FLOP" else [f"{100 * own[unit] / cost:.1f} %"]
        table.add_row(_PHASES[name], *cells, f"{100 * phase.share:.1f} %", "█" * round(_BAR * phase.share))
    cells = ["", "", f"{plan.total.flop:.4g}", *(["", short_count(plan.total.chip_hours)] if chips else [])]
    cells += [short_count(plan.total.usd)] if usd else []
    table.add_row("total", *cells, *([] if unit == "FLOP" else ["100 %"]), "100 %", "")
    return table


def _baseline_table(plan: Plan) -> Table:
    table = plain_table("rule of thumb", "N", "D", "R", "k", "loss", "extra budget to match")
    for baseline in plan.baselines:
        d = baseline.decision
        if d is None:
            table.add_row(baseline.name, *[""] * 5, "not possible")
            continue
        amounts = short_count(d.n_active), short_count(d.d_pretrain), short_count(d.d_rl), significant(d.k)
        table.add_row(baseline.name, *amounts, _loss(baseline.loss), _percent(baseline.regret))
    return table


def _loss(loss: float) -> str:
    """Four decimals, as losses in nats are told; a small one, as of -log pass@k, to four digits."""
    return f"{loss:.4f}" if loss > 0.1 else significant(loss, 4)


def _percent(share: float, digits: int = 3) -> str:
    return "0 %" if abs(share) < 5e-5 else f"{significant(100 * share, digits)} %"
