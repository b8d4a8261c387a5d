"""Fits that a scenario names stand for the numbers in their files."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import tomli_w
from simulated import LAWS, TRUTHS, design

from allocator import catalog, load
from allocator.errors import ScenarioError
from allocator.fitting.forms import FORMS
from allocator.law_files import LAW_PARAMETERS
from allocator.laws.law import Point
from allocator.scenario.building import build
from allocator.scenario.reading import from_values

JOINT = {
    "schema": "allocator.law/1", "name": "joint", "kind": "chinchilla", "unit": "nats/token",
    "parameters": {"E": 1.8, "A": 400.0, "B": 2000.0, "alpha": 0.34, "beta": 0.36},
    "lifetime": {"form": "shared-overlap", "G": 0.5, "rho": 0.1, "R0": 1e9, "gamma": 0.2, "overlap": 1.5},
}  # fmt: skip


def values(law: dict[str, Any], **decisions: float) -> dict[str, Any]:
    return {"title": "t", "objective": {"compute_flop": 1e26}, "law": law, "deployment": {"lifetime_tokens": 1e14},
            "decisions": decisions, "rl": {"overhead": 3.0}, "inference": {"overhead": 3.0}}  # fmt: skip


@pytest.fixture
def joint(tmp_path: Path) -> Path:
    folder = tmp_path / "fits" / "joint"
    folder.mkdir(parents=True)
    (folder / "law.toml").write_text(tomli_w.dumps(JOINT), encoding="utf-8")
    return tmp_path


def test_fit_of_pass_at_k_stands_for_its_section():
    held = catalog.law_record("pythia-gsm8k").content
    law = from_values(values({"fit": "pythia-gsm8k"})).law
    assert (law.form, law.pretraining) == ("pass-at-k", held["pretraining"])
    assert law.sampling is not None
    assert {name: getattr(law.sampling, name) for name in held["parameters"]} == held["parameters"]


def test_fit_of_all_levers_stands_for_its_section(joint):
    law = from_values(values({"fit": "joint"}), folder=joint).law
    assert law.form == "shared"
    assert law.rl is not None
    assert law.test_time is not None
    assert law.sampling is not None
    assert (law.rl.exponent, law.rl.scale_tokens, law.test_time.exponent) == (0.1, 1e9, 0.2)
    assert (law.overlap, law.sampling.scale) == (1.5, 0.5)
    assert law.rl.source == law.test_time.source == law.sampling.source == "fit joint"


def test_stated_keys_go_before_the_fit(joint):
    law = from_values(values({"fit": "joint", "overlap": 0.5, "rl": {"exponent": 0.3}}), folder=joint).law
    assert law.rl is not None
    assert (law.overlap, law.rl.exponent, law.rl.scale_tokens) == (0.5, 0.3, 1e9)


def test_rl_exponent_of_a_fit_is_that_of_the_fixed_size():
    """k(N) = Kmax/(1 + N0/N) of arXiv 2509.25300, whose own Kmax and N0 give .0470 at 7B."""
    own = catalog.law_record("tan-qwen25-base").content["parameters"]
    law = from_values(values({"rl": {"fit": "tan-qwen25-base", "scale_tokens": 1e9}}, n_active=7e9)).law
    assert law.rl is not None
    assert law.rl.exponent == own["Kmax"] / (1 + own["N0"] / 7e9)
    assert law.rl.exponent == pytest.approx(0.0470, rel=0.05)


def test_override_of_the_exponent_by_a_fit_replaces_it():
    scenario = load("lecture", overrides=["law.rl.fit=tan-qwen25-base"])
    assert scenario.law.rl is not None
    published = 0.135 / (1 + 13.1e9 / 1e11)  # arXiv 2509.25300, Kmax and N0 of the base models
    assert scenario.law.rl.exponent == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize(
    ("law", "decisions", "fault"),
    [
        ({"fit": "nothing"}, {}, "law.fit: laws: 'nothing' is not known"),
        ({"fit": 3}, {}, "law.fit: got 3; must be text"),
        ({"fit": "tan-qwen25-base"}, {}, "law.fit: tan-qwen25-base is a rl-power fit"),
        ({"fit": "gadre-redpajama-17"}, {}, "law.fit: gadre-redpajama-17 is a loss-to-error fit"),
        ({"rl": {"fit": "tan-qwen25-base", "scale_tokens": 1e9}}, {}, "law.rl.fit: the exponent of tan-qwen25-base"),
        ({"rl": {"fit": "besiroglu-2024"}}, {"n_active": 1e10}, "law.rl.fit: besiroglu-2024 is a chinchilla fit"),
        ({"rl": {"fit": "tan-qwen25-base", "exponent": 0.1}}, {"n_active": 1e10}, "law.rl.fit: excludes"),
    ],
)
def test_fit_that_cannot_be_used(law, decisions, fault):
    with pytest.raises(ScenarioError, match=fault):
        from_values(values(law, **decisions))


JOINT_FORMS = ["product", "additive", "shared", "coverage", "product-overlap", "shared-overlap", "coverage-overlap"]


@pytest.mark.parametrize("name", JOINT_FORMS)
def test_plan_of_a_joint_fit_uses_the_fitted_law(tmp_path, name):
    """Every parameter finds its key, and the loss is that of the formula that the runs were simulated from."""
    form, truth = FORMS[name], TRUTHS[name]
    held = LAW_PARAMETERS[str(form.kind)]
    content = JOINT | {
        "unit": "error rate (0 to 1)" if form.target.name == "error_rate" else "nats/token",
        "parameters": {key: truth[key] for key in held},
        "lifetime": {"form": name} | {key: value for key, value in truth.items() if key not in held},
    }
    (tmp_path / "law.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    law = build(from_values(values({"fit": "./law.toml"}), folder=tmp_path)).problem.law
    runs = design(name)
    point = Point(*(jnp.log(runs[key][-1]) for key in ("n_active", "d_tokens")),
                  law.rl_axis.coordinate(jnp.asarray(runs["d_rl"][-1])), jnp.log(runs["k"][-1]))  # fmt: skip
    loss = float(law.floor) + float(jnp.exp(law.log_reducible(point)))
    assert loss == pytest.approx(LAWS[name](truth, runs)[-1], rel=1e-10)


def test_fit_of_pass_at_k_to_measured_losses_needs_its_law(tmp_path):
    held = catalog.law_record("pythia-gsm8k").content
    own = {key: value for key, value in held.items() if key != "pretraining"}
    (tmp_path / "law.toml").write_text(tomli_w.dumps(own), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"law\.pretraining: required beside law\.fit"):
        from_values(values({"fit": "./law.toml"}), folder=tmp_path)
    stated = from_values(values({"fit": "./law.toml", "pretraining": "hoffmann-2022"}), folder=tmp_path)
    assert stated.law.pretraining == "hoffmann-2022"
