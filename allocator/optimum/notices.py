"""Warnings that a plan carries: extrapolation, assumed numbers, active bounds and suspicious inputs."""

import math
from collections.abc import Iterator

from allocator import catalog
from allocator.laws.chinchilla import equal_cost_exponent
from allocator.laws.product import Product
from allocator.laws.repetition import R_STAR
from allocator.optimum.accounts import Account
from allocator.optimum.result import Notice
from allocator.roofline.shape import approximated
from allocator.scenario.building import Built
from allocator.scenario.schema import Scenario
from allocator.units import short_count, significant

# Largest RL compute over pre-training compute in a public study with several model sizes (arXiv 2509.25300).
LARGEST_PUBLIC_RL_SHARE = 3e-5
OVERHEAD_RANGE = (1.0, 30.0)
SMALLEST_MODEL = 1e5  # active parameters; the smallest runs behind any published law have millions
ROUNDING = 1e-9  # a value on a limit is not beyond it


def notices(scenario: Scenario, built: Built, account: Account, status: dict[str, str]) -> tuple[Notice, ...]:
    """All warnings that apply to a decision."""
    return (
        *_law(scenario, built),
        *_assumed(built),
        *_rl(account),
        *_fit_range(built, account),
        *_overheads(account),
        *_rooflines(scenario),
        *_decisions(scenario, account, status),
    )


def _law(scenario: Scenario, built: Built) -> Iterator[Notice]:
    record, law = built.law_record, built.problem.law
    if record is None or built.pretraining is None:
        return
    if record.content.get("rounded"):
        yield Notice(
            "rounded_constants",
            "law.pretraining",
            record.name,
            f"{record.name} has constants rounded so hard that its optimum moves: hoffmann-2022 has the unrounded ones",
        )
    if scenario.pretraining.unique_tokens is not None and "repetition" not in record.content:
        yield Notice(
            "repetition_borrowed",
            "pretraining.unique_tokens",
            R_STAR,
            f"{record.name} was not fitted on repeated data: R* = {R_STAR} is Muennighoff's (arXiv 2305.16264)",
        )
    chosen = equal_cost_exponent(*built.pretraining.size_exponents())
    if isinstance(law, Product):
        for path, term in (("law.rl.exponent", law.joint.rl), ("law.test_time.exponent", law.joint.test_time)):
            if term is not None and math.isclose(float(term.exponent), chosen, rel_tol=1e-6):
                yield Notice(
                    "exponents_chosen_for_equal_cost",
                    path,
                    float(term.exponent),
                    "this exponent is the one that makes equal cost optimal: the plan illustrates the heuristic, "
                    "it does not test it",
                )


def _assumed(built: Built) -> Iterator[Notice]:
    for path in built.assumed:
        yield Notice("assumed_parameter", path, None, "no published measurement gives this number: it is assumed")


def _rl(account: Account) -> Iterator[Notice]:
    pretrain, rl, _ = account.flop
    beyond = rl / pretrain / LARGEST_PUBLIC_RL_SHARE
    if beyond > 1:
        yield Notice(
            "extrapolates_rl",
            "law.rl",
            beyond,
            f"RL takes {significant(rl / pretrain)} x the pre-training compute, {significant(beyond)} x more than the "
            f"largest public RL study with several sizes ({LARGEST_PUBLIC_RL_SHARE:g}): the RL term is extrapolated",
        )


def _fit_range(built: Built, account: Account) -> Iterator[Notice]:
    """Decisions outside the runs that a law was fitted to."""
    if built.law_record is None:
        return
    known = built.law_record.content.get("fit_range", {})
    decision = account.decision
    values = {
        "n_active": decision.n_active,
        "d_pretrain": decision.d_pretrain,
        "tokens_per_param": decision.d_pretrain / decision.n_active,
    }
    for name, value in values.items():
        low, high = known.get(f"{name}_min", 0.0), known.get(f"{name}_max", math.inf)
        if not low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING):
            limit, word = (low, "below") if value < low else (high, "above")
            yield Notice(
                f"extrapolates_{name}",
                "law.pretraining",
                value,
                f"{name} = {short_count(value)} is {word} {short_count(limit)}, the end of the runs that "
                f"{built.law_record.name} was fitted to",
            )


def _overheads(account: Account) -> Iterator[Notice]:
    low, high = OVERHEAD_RANGE
    for path, overhead in zip(("pretraining", "rl", "inference"), account.overheads, strict=True):
        if not low * (1 - ROUNDING) <= overhead <= high * (1 + ROUNDING):
            yield Notice(
                "overhead_unusual",
                f"{path}.overhead",
                overhead,
                f"an overhead of {significant(overhead)} is outside {low:g} to {high:g}: check MFU and peak",
            )


def _rooflines(scenario: Scenario) -> Iterator[Notice]:
    """Rooflines of models that are not wholly modelled, and those that nobody derated: nothing reaches the bound."""
    for phase in ("pretraining", "rl", "inference"):
        section = getattr(scenario, phase).roofline
        if section is not None and (timed := approximated(catalog.find("models", section.model))) is not None:
            yield Notice("attention_approximated", f"{phase}.roofline.model", None, f"{section.model}: {timed}")
        if section is not None and section.efficiencies() == (1.0, 1.0):
            yield Notice(
                "ideal_roofline",
                f"{phase}.roofline.efficiency",
                1.0,
                "the ideal bound: measured serving reaches about 0.65 of memory bandwidth and 0.36 of compute, dense "
                "pre-training 0.36 to 0.48 of compute",
            )


def _decisions(scenario: Scenario, account: Account, status: dict[str, str]) -> Iterator[Notice]:
    n = account.decision.n_active
    if n < SMALLEST_MODEL:
        message = f"{n:.3g} active parameters are no language model: check the budget's unit and the traffic"
        yield Notice("implausible_size", "decisions.n_active", n, message)
    k = account.decision.k
    if k < 1 and scenario.deployment is not None:
        yield Notice(
            "k_below_one",
            "decisions.k",
            k,
            f"k = {significant(k)} means answers shorter than the traffic forecast assumes, not fewer than one sample",
        )
    for name, value in status.items():
        if value in ("at_min", "at_max"):
            yield Notice(
                "bound_active",
                f"decisions.{name}",
                float(getattr(account.decision, name)),
                f"{name} is held by its {'lower' if value == 'at_min' else 'upper'} bound",
            )
