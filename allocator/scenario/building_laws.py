"""The scenario's [law] section turned into a law."""

from collections.abc import Mapping
from typing import Any

from allocator import catalog
from allocator.laws.additive import Additive
from allocator.laws.coverage import Coverage
from allocator.laws.joint import JointFactor
from allocator.laws.law import Law, PretrainingLaw
from allocator.laws.loss_to_error import ErrorLaw
from allocator.laws.pass_at_k import PassAtK
from allocator.laws.presets import loss_to_error, pretraining_law
from allocator.laws.product import Product
from allocator.laws.repetition import R_STAR, Repeated
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.laws.shared import Shared
from allocator.laws.test_time import TestTime
from allocator.scenario.schema import Sampling, Scenario


def build_pretraining(
    scenario: Scenario, record: catalog.LawRecord, parameters: Mapping[str, Any] | None = None
) -> PretrainingLaw:
    """L0(N, D) of a law file, on repeated data where unique tokens are stated, through a link where one is named.

    `parameters` go before those of the file.
    """
    law = pretraining_law(record.name, record.content["kind"], record.content["parameters"] | dict(parameters or {}))
    unique = scenario.pretraining.unique_tokens
    if unique is not None:
        law = Repeated(law, unique, float(record.content.get("repetition", {}).get("r_star", R_STAR)))
    if scenario.law.link is None:
        return law
    link = catalog.law_record(scenario.law.link, folder=scenario.folder)
    return ErrorLaw(law, loss_to_error(link.content["parameters"]))


def build_law(scenario: Scenario, pretraining: PretrainingLaw) -> Law:
    """The loss over all four decisions, in the scenario's form."""
    section, rl, test_time = scenario.law, None, None
    sampling = section.sampling or Sampling()
    if section.rl is not None:
        terms = section.rl
        exponent = sampling.rl_logit_exponent if section.form == "pass-at-k" else terms.exponent
        if terms.scale_tokens is not None:
            rl = SaturatingRl(_given(exponent), terms.scale_tokens, terms.scale)
        else:
            rl = PowerRl(_given(exponent), _given(terms.unit_tokens), terms.scale)
    if section.test_time is not None:
        terms = section.test_time
        test_time = TestTime(terms.exponent, _unless_zero(terms.floor_share), terms.scale)
    overlap = _unless_zero(section.overlap)
    match section.form:
        case "product":
            return Product(pretraining, rl, test_time, overlap)
        case "shared":
            return Shared(pretraining, JointFactor(rl, test_time, overlap), _given(sampling.scale))
        case "coverage":
            joint = JointFactor(rl, test_time, overlap)
            return Coverage(pretraining, joint, _given(sampling.guess), _given(sampling.slope))
        case "pass-at-k":
            thetas = [_given(getattr(sampling, f"th{i}")) for i in range(5)]
            return PassAtK(pretraining, *thetas, rl=rl if isinstance(rl, SaturatingRl) else None)
        case _:  # additive, and t2-loss, which is additive without RL
            return Additive(pretraining, rl, test_time)


def _unless_zero(value: Any) -> Any:
    """None for a plain 0, with which a term is left out; a tracer may become anything."""
    return None if isinstance(value, float) and value == 0 else value


def _given(value: float | None) -> float:
    """A number that the rules of the form made sure of."""
    assert value is not None
    return value
