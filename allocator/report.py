"""Plans as tables: data frames with units in the column names, and text for a terminal."""

from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from allocator.optimum.result import Plan
from allocator.units import short_count, significant

_DECISIONS = {
    "n_active": "active parameters",
    "d_pretrain": "pre-training tokens",
    "d_rl": "RL tokens",
    "k": "samples per query, k",
}
_STATUS = {"fixed": "given", "free": "chosen", "at_min": "at its min", "at_max": "at its max"}
_PHASES = {"pretrain": "pre-training", "rl": "RL", "inference": "inference"}
_BAR = 20


def frames(plan: Plan) -> dict[str, Any]:
    """Data frames of a plan: decisions, phases, baselines, warnings."""
    import pandas as pd

    values = plan.to_dict()
    decision, status = values["decision"] or {}, values["decision_status"] or {}
    elasticities, assumed = values["elasticities"] or {}, set(plan.assumed)
    return {
        "decisions": pd.DataFrame(
            [
                {
                    "decision": name,
                    "value": decision[name],
                    "status": status.get(name, "follows"),
                    "elasticity": elasticities.get(name),
                }
                for name in decision
            ]
        ),
        "phases": plan.to_frame(),
        "baselines": pd.DataFrame(
            [
                {
                    "baseline": b["name"],
                    **(b["decision"] or {}),
                    "loss": b["loss"],
                    "cost": b["cost"],
                    "regret": b["regret"],
                    "reason": b["reason"],
                }
                for b in values["baselines"]
            ]
        ),
        "warnings": pd.DataFrame(
            [{**w, "assumed": w["path"] in assumed} for w in values["warnings"]],
            columns=["code", "path", "value", "message", "assumed"],
        ),
    }


def print_plan(plan: Plan, console: Console) -> None:
    """Print a plan that a person reads at a glance."""
    console.print(Text(plan.title, style="bold"))
    if plan.decision is None:
        console.print(Text(f"{plan.status}: {plan.reason}", style="red"))
        return
    console.print(Text(verdict(plan)))
    console.print(Padding(Group(_decision_table(plan), "", _phase_table(plan)), (1, 0, 0, 2)))
    if plan.baselines:
        console.print(Padding(_baseline_table(plan), (1, 0, 0, 2)))
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
        f"{how}: loss {plan.loss:.4f} for {plan.total.flop:.4g} FLOP.\n"
        f"{significant(over.tokens_per_param)} tokens per parameter: {significant(over.vs_20)} x Chinchilla's 20"
        f"{chinchilla}."
    )


def warning_lines(plan: Plan) -> list[str]:
    """Warnings, one line a code; equal messages are told once with all their paths."""
    told: dict[tuple[str, str], list[str]] = {}
    for warning in plan.warnings:
        told.setdefault((warning.code, warning.message), []).append(warning.path)
    return [f"{code}: {', '.join(paths)}: {message}" for (code, message), paths in told.items()]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _decision_table(plan: Plan) -> Table:
    assert plan.decision is not None
    assert plan.decision_status is not None
    assert plan.elasticities is not None
    table = _table("buy", "amount", "", "a 1% increase cuts reducible loss by")
    for name, words in _DECISIONS.items():
        value = getattr(plan.decision, name)
        amount = significant(value) if name == "k" else short_count(value)
        table.add_row(words, amount, _STATUS[plan.decision_status[name]], f"{plan.elasticities[name]:.3f} %")
    table.add_row("tokens served", short_count(plan.decision.d_inference), "k x demand", "")
    return table


def _phase_table(plan: Plan) -> Table:
    assert plan.phases is not None
    assert plan.total is not None
    chips = plan.total.chip_hours == plan.total.chip_hours
    usd = plan.total.usd == plan.total.usd
    extra = (["MFU", "chip-hours"] if chips else []) + (["USD"] if usd else [])
    table = _table("cost of", "FLOP", "x overhead", "= paid FLOP", *extra, "share", "")
    table.columns[-1].justify = "left"
    for name, phase in plan.phases.items():
        cells = [f"{phase.model_flop:.3g}", significant(phase.overhead), f"{phase.flop:.3g}"]
        cells += [f"{phase.mfu:.3f}", short_count(phase.chip_hours)] if chips else []
        cells += [short_count(phase.usd)] if usd else []
        table.add_row(_PHASES[name], *cells, f"{100 * phase.share:.1f} %", "█" * round(_BAR * phase.share))
    cells = ["", "", f"{plan.total.flop:.4g}", *(["", short_count(plan.total.chip_hours)] if chips else [])]
    table.add_row("total", *cells, *([short_count(plan.total.usd)] if usd else []), "100 %", "")
    return table


def _baseline_table(plan: Plan) -> Table:
    table = _table("rule of thumb", "N", "D", "R", "k", "loss", "extra budget to match")
    for baseline in plan.baselines:
        d = baseline.decision
        if d is None:
            table.add_row(baseline.name, *[""] * 4, "", f"none: {baseline.reason}")
            continue
        amounts = short_count(d.n_active), short_count(d.d_pretrain), short_count(d.d_rl), significant(d.k)
        table.add_row(baseline.name, *amounts, f"{baseline.loss:.4f}", _percent(baseline.regret))
    return table


def _percent(share: float) -> str:
    return "none" if abs(share) < 5e-5 else f"{significant(100 * share)} %"
