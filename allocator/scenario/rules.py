"""Rules that join several keys: either-or groups, keys that a form does not use, names that must be known.

They work on the raw values of a file, so that their faults are reported together with those of type and range.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from allocator import catalog
from allocator.errors import CatalogError
from allocator.scenario.forms import form_faults, least_k, uses_k
from allocator.scenario.machines import machine_figures, missing_figures
from allocator.units import SECONDS_PER_DAY

SMALLEST_TRAFFIC, LARGEST_TRAFFIC = 1e-12, 1e40  # tokens over the lifetime; beyond these numbers lose their meaning
OBJECTIVES = ("compute_flop", "chip_hours", "usd", "energy_joule", "target_loss")
PHASES = ("pretraining", "rl", "inference")
_PRETRAIN_MFU = ("pretraining.mfu", "pretraining.roofline", "hardware.mfu", "hardware.pretraining.mfu")
_NEED_PRETRAIN_MFU = (
    *("rl.mfu", "rl.roofline", "inference.mfu", "inference.roofline", "inference.prefill_mfu"),
    *("hardware.rl.mfu", "hardware.inference.mfu"),
)

# Setting one key of a group from the command line removes the others.
EITHER_OR: tuple[tuple[tuple[str, ...], ...], ...] = (
    (
        ("objective.compute_flop",),
        ("objective.chip_hours",),
        ("objective.usd",),
        ("objective.energy_joule",),
        ("objective.target_loss", "objective.currency"),
    ),
    (("law.rl.scale_tokens",), ("law.rl.unit_tokens",)),
    (("deployment.tokens_per_second", "deployment.lifetime_days"), ("deployment.lifetime_tokens",)),
    (("rl.overhead",), ("rl.mfu",), ("hardware.rl.mfu",), ("rl.roofline",)),
    (("inference.overhead",), ("inference.mfu",), ("hardware.inference.mfu",), ("inference.roofline",)),
    (("inference.prefill_overhead",), ("inference.prefill_mfu",)),
    (("pretraining.mfu",), ("hardware.mfu",), ("hardware.pretraining.mfu",), ("pretraining.roofline",)),
    (("law.rl.exponent",), ("law.rl.fit",)),
)


def faults(values: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Every broken rule as one line with key path, value and rule; sections of a wrong type are passed over."""
    yield from _objective(values)
    yield from _law(values, folder)
    yield from _deployment(values)
    yield from _efficiency(values)
    yield from _hardware(values)
    yield from _decisions(values)


def _section(values: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    node: Any = values
    for key in path:
        node = node.get(key, {}) if isinstance(node, Mapping) else {}
    return node if isinstance(node, Mapping) else {}


def _has(values: Mapping[str, Any], path: str) -> bool:
    *sections, key = path.split(".")
    return key in _section(values, *sections)


def _objective(values):
    section = _section(values, "objective")
    given = [key for key in OBJECTIVES if key in section]
    if isinstance(values.get("objective", {}), Mapping) and len(given) != 1:
        found = f"has {' and '.join(given)}" if given else "has none"
        yield f"objective: {found}; exactly one of {', '.join(OBJECTIVES)}"
    if "currency" in section and "target_loss" not in section:
        yield "objective.currency: goes with target_loss only; a budget names its own currency"


def _law(values, folder):
    section = _section(values, "law")
    name = section.get("pretraining")
    if isinstance(name, str):
        try:
            record = catalog.law_record(name, folder=folder)
        except CatalogError as error:
            yield f"law.pretraining: {error}"
        else:
            if record.content["kind"] not in ("chinchilla", "gadre"):
                yield f"law.pretraining: {name!r} is of kind {record.content['kind']}; must be a pre-training loss"
    rl = _section(section, "rl")
    if rl and ("scale_tokens" in rl) == ("unit_tokens" in rl):
        yield "law.rl: exactly one of scale_tokens and unit_tokens"
    yield from form_faults(section)
    if section.get("form") == "pass-at-k" and bool(rl) != _has(section, "sampling.rl_logit_exponent"):
        yield "law.sampling.rl_logit_exponent: goes with law.rl.scale_tokens in form 'pass-at-k'; give both or neither"
    sampling = _section(section, "sampling")
    guess, slope = sampling.get("guess"), sampling.get("slope")
    misses = guess + slope if isinstance(guess, int | float) and isinstance(slope, int | float) else 1.0
    if section.get("form") == "coverage" and not 0 < misses <= 1:
        yield f"law.sampling: guess + slope = {misses:g}; must be > 0 and <= 1, a share of misses"
    overlap = section.get("overlap")
    joins = section.get("form", "product") in ("product", "shared", "coverage")
    if joins and isinstance(overlap, int | float) and overlap > 0 and not (rl and _section(section, "test_time")):
        yield f"law.overlap: got {overlap}; needs both law.rl and law.test_time, which it joins"
    if isinstance(overlap, int | float) and overlap > 0 and "unit_tokens" in rl:
        yield f"law.overlap: got {overlap}; needs law.rl.scale_tokens, since a pure power exceeds 1 at little RL"
    yield from _link(section, folder)


def _link(section, folder):
    """Coverage is in error rate: the pre-training law must be too, or come through a link."""
    link, kind = section.get("link"), None
    if isinstance(link, str):
        try:
            kind = catalog.law_record(link, folder=folder).content["kind"]
        except CatalogError as error:
            yield f"law.link: {error}"
        else:
            if kind != "loss-to-error":
                yield f"law.link: {link!r} is of kind {kind}; must be loss-to-error, such as gadre-redpajama-17"
    elif section.get("form") == "coverage":
        name = section.get("pretraining", "besiroglu-2024")
        with suppress(CatalogError):
            unit = catalog.law_record(name, folder=folder).content["unit"]
            if "nats" in unit:
                yield (
                    f"law.link: form 'coverage' needs an error rate, and {name} is in {unit}, whose base would make "
                    'the error exceed 1; add link = "gadre-redpajama-17" or use a law in error rate'
                )


def _deployment(values):
    section = _section(values, "deployment")
    if "deployment" not in values or not isinstance(values["deployment"], Mapping):
        return
    rate = [key for key in ("tokens_per_second", "lifetime_days") if key in section]
    if "lifetime_tokens" in section and rate:
        yield f"deployment: lifetime_tokens excludes {' and '.join(rate)}"
    elif "lifetime_tokens" not in section and len(rate) < 2:
        yield "deployment: needs tokens_per_second and lifetime_days, or lifetime_tokens"
    numbers = {key: value for key, value in section.items() if isinstance(value, int | float)}
    traffic = numbers.get("lifetime_tokens") or (
        numbers.get("tokens_per_second", 1.0) * numbers.get("lifetime_days", 1.0) * SECONDS_PER_DAY
    )
    tokens = traffic * numbers.get("derate", 1.0)
    known = [number for key, number in numbers.items() if key != "prompt_tokens_per_output_token"]
    if not all(0 < number < inf for number in known):
        return  # told by its own key
    if not SMALLEST_TRAFFIC <= tokens <= LARGEST_TRAFFIC:
        rule = f"must be from {SMALLEST_TRAFFIC:g} to {LARGEST_TRAFFIC:g}"
        yield f"deployment: {tokens:g} tokens over the lifetime; {rule}"
    prompts = numbers.get("prompt_tokens_per_output_token", 0.0)
    if prompts * tokens > LARGEST_TRAFFIC:
        yield f"deployment.prompt_tokens_per_output_token: got {prompts:g}; must leave <= {LARGEST_TRAFFIC:g} tokens"


def _efficiency(values):
    for group in EITHER_OR[3:]:
        given = [path for (path,) in group if _has(values, path)]
        if len(given) > 1:
            yield f"{given[0]}: excludes {' and '.join(given[1:])}"
    pretrain = any(_has(values, path) for path in _PRETRAIN_MFU)
    for path in _NEED_PRETRAIN_MFU:
        if _has(values, path) and not pretrain:
            yield f"{path}: needs pretraining.mfu or pretraining.roofline, since overheads are relative to pre-training"
    kappa = _section(values, "rl").get("flop_per_param_token", 3.0)
    if _has(values, "rl.roofline") and isinstance(kappa, int | float) and 0 < kappa < 2:
        yield f"rl.flop_per_param_token: got {kappa}; must be >= 2 with rl.roofline, of which 2 are the rollout's"
    for phase in PHASES:
        yield from _roofline(values, phase)


def _roofline(values, phase):
    section = _section(values, phase, "roofline")
    if not section:
        return
    path, whole = f"{phase}.roofline", _section(values, "hardware")
    own = _section(whole, phase)
    for key in ("chip", "dtype"):
        stated = own.get(key)
        if stated is not None and stated != section.get(key, stated):
            yield f"hardware.{phase}.{key}: got {stated!r}; {path} has {section[key]!r}, and both are the same chips"
    chip = section.get("chip") or _section(whole, phase).get("chip") or whole.get("chip")
    if chip is None:
        yield f"{path}.chip: required, since [hardware] names none"
    elif isinstance(chip, str):
        try:
            record = catalog.find("hardware", chip)
            if section.get("dtype", "bf16") in catalog.PEAKS:
                catalog.dense_peak_flop_per_s(record, section.get("dtype", "bf16"))
            if record.fields["level"] != "chip":
                yield f"{path}.chip: {record.name} is a rack; name the chip, and the number in chips"
            for figure in ("hbm_bytes", "hbm_bytes_per_s"):
                if record.fields[figure] is None:
                    yield f"{path}.chip: {record.name}: {figure} is not known, so it has no roofline"
        except CatalogError as error:
            yield f"{path}.chip: {error}"
    if isinstance(section.get("model"), str):
        try:
            model = catalog.find("models", section["model"])
        except CatalogError as error:
            yield f"{path}.model: {error}"
        else:
            context, longest = section.get("context"), model.fields.get("max_context_tokens")
            if isinstance(longest, float) and isinstance(context, int | float) and context > longest:
                yield f"{path}.context: got {context:g}; must be <= {longest:g}, the longest that {model.name} takes"


def _hardware(values):
    whole = _section(values, "hardware")
    sections = {"hardware": whole} | {f"hardware.{phase}": _section(whole, phase) for phase in PHASES}
    for path, section in sections.items():
        if isinstance(section.get("chip"), str):
            try:
                machine_figures({**whole, **section}, "")
                if catalog.find("hardware", section["chip"]).fields["level"] != "chip":
                    yield f"{path}.chip: {section['chip']!r} is a rack; name the chip, since costs are per chip-hour"
            except CatalogError as error:
                yield f"{path}.chip: {error}"
    objective = _section(values, "objective")
    given = [key for key in OBJECTIVES if key in objective]
    currency = objective.get("currency") if given == ["target_loss"] else given[0] if len(given) == 1 else None
    if currency in ("chip_hours", "usd", "energy_joule"):
        if not any(_has(values, path) for path in _PRETRAIN_MFU):
            yield f"pretraining.mfu: required, since the objective counts {currency}"
        phases = [phase for phase in PHASES if phase != "inference" or "deployment" in values]
        yield from missing_figures(currency, whole, phases)


def _decisions(values):
    section = _section(values, "decisions")
    law = _section(values, "law")
    zero_rl = "unit_tokens" not in _section(law, "rl")
    for key, value in section.items():
        ends = value if isinstance(value, Mapping) else {"": value}
        numbers = {name: end for name, end in ends.items() if isinstance(end, int | float)}
        for name, end in numbers.items():
            if end == 0 and not (key == "d_rl" and zero_rl):
                yield f"decisions.{key}{'.' * bool(name)}{name}: got {end}; must be > 0"
        if {"min", "max"} <= set(numbers) and numbers["min"] > numbers["max"]:
            yield f"decisions.{key}: min {numbers['min']} must be <= max {numbers['max']}"
    k = section.get("k")
    top = k.get("max") if isinstance(k, Mapping) else k
    least = least_k(law)
    if least is not None and isinstance(top, int | float) and 0 < top < least:
        yield f"decisions.k: got {top}; must be >= 1, below which form, overlap or floor_share have no meaning"
    if "k" in section and not isinstance(section["k"], int | float):
        if not uses_k(law):
            yield "decisions.k: nothing in the law depends on k; add law.test_time or fix k"
        if "deployment" not in values:
            yield "decisions.k: without [deployment] samples cost nothing; add it or fix k"
    if "d_rl" in section and section["d_rl"] not in (0, "free") and not _section(law, "rl"):
        yield "decisions.d_rl: the law has no RL term, so it can only be 0; add law.rl"
