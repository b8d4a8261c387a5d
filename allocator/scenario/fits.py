"""Fits that a scenario names, turned into the keys that they stand for."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allocator import catalog
from allocator.errors import CatalogError, ScenarioError

# parameter of a joint fit -> key below [law]
_LIFETIME = {
    "rho": "rl.exponent",
    "R0": "rl.scale_tokens",
    "G_R": "rl.scale",
    "gamma": "test_time.exponent",
    "G_k": "test_time.scale",
    "G": "sampling.scale",
    "guess": "sampling.guess",
    "slope": "sampling.slope",
    "overlap": "overlap",
}


def expand(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Replace `law.fit` and `law.rl.fit` by the numbers of the fits they name; keys that the file states go before.

    A fit with all levers, of pass@k or of loss and samples gives the whole [law] section; one of RL by size gives the
    exponent at the fixed number of active parameters. Raises `ScenarioError` where a fit cannot be used so.
    """
    law = values.get("law")
    rl = law.get("rl") if isinstance(law, Mapping) else None
    named = isinstance(law, Mapping) and ("fit" in law or (isinstance(rl, Mapping) and "fit" in rl))
    if not named:
        return dict(values)
    out = copy.deepcopy(dict(values))
    if "fit" in out["law"]:
        record = _record(out["law"].pop("fit"), "law.fit", folder)
        out["law"] = _merged(_section(record), out["law"])
        if record.content["kind"] == "pass-at-k" and "pretraining" not in out["law"]:
            raise ScenarioError([f"law.pretraining: required beside law.fit = {record.name!r}, which was fitted to "
                                 "measured losses: name the law that gives them"])  # fmt: skip
    if isinstance(out["law"].get("rl"), dict) and "fit" in out["law"]["rl"]:
        if "exponent" in out["law"]["rl"]:
            raise ScenarioError(["law.rl.fit: excludes law.rl.exponent, stated here or by law.fit"])
        record = _record(out["law"]["rl"].pop("fit"), "law.rl.fit", folder)
        out["law"]["rl"] = {"exponent": _exponent(record, out), "source": f"fit {record.name}"} | out["law"]["rl"]
    return out


def _record(name: Any, path: str, folder: Path) -> catalog.LawRecord:
    if not isinstance(name, str):
        raise ScenarioError([f"{path}: got {name!r}; must be text, the name of a fit"])
    try:
        return catalog.law_record(name, folder=folder)
    except CatalogError as error:
        raise ScenarioError([f"{path}: {error}"]) from None


def _section(record: catalog.LawRecord) -> dict[str, Any]:
    """The [law] section that a fit stands for."""
    content, source = record.content, f"fit {record.name}"
    parameters = content["parameters"]
    match content["kind"]:
        case "pass-at-k":
            thetas = {name: parameters[name] for name in sorted(parameters)}
            # Where the table had the loss itself, the law that gives it is the scenario's to state.
            known = {"pretraining": content["pretraining"]} if "pretraining" in content else {}
            return {"form": "pass-at-k", **known, "sampling": thetas | {"source": source}}
        case "t2-loss":
            test_time = {"exponent": parameters["gamma"], "scale": parameters["G"], "source": source}
            return {"form": "t2-loss", "pretraining": str(record.path), "test_time": test_time}
        case "chinchilla" | "gadre" if "lifetime" in content:
            section: dict[str, Any] = {"pretraining": str(record.path)}
            for name, value in content["lifetime"].items():
                if name == "form":
                    section["form"] = value.removesuffix("-overlap")
                    continue
                table, _, key = _LIFETIME[name].rpartition(".")
                (section.setdefault(table, {}) if table else section)[key] = value
            for table in ("rl", "test_time", "sampling"):
                if table in section:
                    section[table]["source"] = source
            return section
        case "chinchilla" | "gadre":
            return {"pretraining": str(record.path)}
        case kind:
            raise ScenarioError([f"law.fit: {record.name} is a {kind} fit, which holds no law of all levers"
                                 + ("; name it in law.rl.fit" if kind == "rl-power" else "")])  # fmt: skip


def _exponent(record: catalog.LawRecord, values: Mapping[str, Any]) -> float:
    if record.content["kind"] != "rl-power":
        raise ScenarioError([f"law.rl.fit: {record.name} is a {record.content['kind']} fit; must be of kind rl-power"])
    decisions = values.get("decisions")
    n_active = decisions.get("n_active") if isinstance(decisions, Mapping) else None
    if not isinstance(n_active, int | float) or isinstance(n_active, bool) or not n_active > 0:
        raise ScenarioError([f"law.rl.fit: the exponent of {record.name} depends on the model's size; fix "
                             "decisions.n_active, or give law.rl.exponent"])  # fmt: skip
    parameters = record.content["parameters"]
    return parameters["Kmax"] / (1 + parameters["N0"] / n_active)


def _merged(base: dict[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what is stated put over it, table by table."""
    out = dict(base)
    for key, value in stated.items():
        below = out.get(key)
        out[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return out
