"""How assumptions, decisions and figures are called in tables and charts."""

from allocator.frontiers import Frontier, axis_unit
from allocator.sensitivities import Sensitivity
from allocator.units import short_count, significant

NAMES = {
    "objective.compute_flop": "budget",
    "objective.chip_hours": "budget",
    "objective.usd": "budget",
    "objective.energy_joule": "budget",
    "objective.target_loss": "target loss",
    "deployment.tokens_per_second": "demand",
    "deployment.lifetime_tokens": "demand",
    "deployment.lifetime_days": "lifetime in days",
    "deployment.derate": "expected share of forecast demand",
    "deployment.prompt_tokens_per_output_token": "prompt tokens per output token",
    "law.rl.exponent": "RL exponent",
    "law.rl.unit_tokens": "unit of RL tokens",
    "law.test_time.floor_share": "share of error that samples leave",
    "law.rl.scale_tokens": "RL scale",
    "law.test_time.exponent": "test-time exponent",
    "law.overlap": "overlap of RL and test time",
    "rl.flop_per_param_token": "RL FLOP per parameter, token",
    "pretraining.overhead": "overhead of pre-training",
    "pretraining.mfu": "MFU of pre-training",
    "rl.overhead": "overhead of RL",
    "rl.mfu": "MFU of RL",
    "inference.mfu": "MFU of decode",
    "inference.overhead": "overhead of decode",
    "pretraining.unique_tokens": "unique tokens",
    "hardware.usd_per_chip_hour": "price of a chip-hour",
    "hardware.peak_flop_per_s": "peak FLOP/s of a chip",
}
# Where 1% more of the number is 1% less of what people speak of.
TURNED = {"rl.overhead": "MFU of RL", "inference.overhead": "MFU of decode"}
SAME_AS_DEMAND = ("deployment.lifetime_days", "deployment.derate")  # factors of the tokens served, as demand is

FIGURES = {
    "n_active": "active parameters",
    "d_pretrain": "pre-training tokens",
    "d_rl": "RL tokens",
    "k": "samples per query",
    "d_inference": "tokens served",
    "loss": "loss",
    "cost": "cost",
    "tokens_per_param": "pre-training tokens per parameter",
    "vs_20": "over-training, D / 20 N",
    "vs_chinchilla": "over-training, D / Chinchilla's own",
}


def name_of(path: str) -> str:
    """An assumption in words; its path where it has none."""
    if path.startswith("decisions."):
        decision, _, end = path.removeprefix("decisions.").partition(".")
        return f"{'largest ' if end == 'max' else 'least ' if end == 'min' else ''}{FIGURES.get(decision, decision)}"
    return NAMES.get(path, path)


def worths(found: Sensitivity) -> list[str]:
    """What 1% more of each number of the scenario does, in sentences, the most first."""
    unit = "cost" if found.plan.objective.kind == "target_loss" else "budget"
    return [
        worth_of(row.path, row.worth, unit)
        for row in found.elasticities
        if not row.path.startswith(("law.", "objective.")) and row.path not in SAME_AS_DEMAND
    ]


def worth_of(path: str, worth: float, unit: str = "budget") -> str:
    """What 1% more of an assumption does, in a sentence."""
    what = TURNED.get(path)
    share = -worth if what is not None else worth
    said = f"1% more {what or name_of(path)}"
    if abs(share) < 5e-4:
        return f"{said}: no difference"
    return f"{said} {'is worth' if share > 0 else 'costs'} {significant(abs(share), 2)}% of the {unit}"


def told(figure: str, value: float) -> str:
    """A figure of a plan as people say it."""
    if figure in ("n_active", "d_pretrain", "d_rl", "d_inference", "tokens_per_param"):
        return short_count(value)
    if figure == "loss":
        return f"{value:.4f}" if value > 0.1 else significant(value, 4)
    return f"{value:.4g}" if figure == "cost" else significant(value)


def titles_of(found: Frontier) -> tuple[str, str]:
    """A frontier's two quantities with their units."""
    unit = found.loss_unit
    return title_of(found.x_name, unit), title_of(found.y_name, unit)


def title_of(name: str, loss_unit: str) -> str:
    """A quantity of a frontier with its unit, for headings and axes."""
    unit = axis_unit(name, loss_unit)
    if name.startswith(("training_", "serving_", "cost_")):
        said = {"training": "training cost", "serving": "serving cost", "cost": "cost"}[name.partition("_")[0]]
    else:
        said = {"tpot_s": "time per output token", "usd_per_mtok": "price of serving", "loss": "loss"}.get(
            name
        ) or name_of(name)
    return f"{said} ({unit})" if unit and unit not in said else said
