"""Scenario files: every bad input of the contract is one line with key path, value and rule, and all come at once."""

import io
import sys
import tomllib
from pathlib import Path

import pytest

import allocator
from allocator import catalog
from allocator.cli import main
from allocator.errors import AllocatorError, CatalogError, ScenarioError
from allocator.scenario.building import build
from allocator.scenario.building_costs import lifetime_tokens
from allocator.scenario.reading import from_values, load, with_values

SHIPPED = ("gopher-budget", "lecture", "lecture-free", "serve-two-trillion")
MINIMAL = "[objective]\ncompute_flop = 1e23\n"
MY_LAW = """schema = "allocator.law/1"
name = "mine"
kind = "chinchilla"
unit = "nats/token"
[parameters]
E = 2.5
A = 400
B = 2000.0
alpha = 0.34
beta = 0.36
"""


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(*overrides: str, source: str | Path = "lecture") -> tuple[str, ...]:
    """Fault lines of a scenario with overrides."""
    with pytest.raises(ScenarioError) as caught:
        load(source, overrides=overrides)
    return caught.value.lines


def only(lines: tuple[str, ...]) -> str:
    """The one line, which is one line."""
    assert len(lines) == 1, lines
    assert lines[0].splitlines() == [lines[0]]
    return lines[0]


def check(capsys, *arguments: str) -> tuple[int, str, list[str]]:
    """(exit code, stdout, lines of stderr) of a command."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err.splitlines()


# --- one bad value: key path, value, rule ---

BAD_VALUES = {
    "text": ('objective.compute_flop="989e12"', "objective.compute_flop", "'989e12'", "must be a number"),
    "no number": ("objective.compute_flop=989e12x", "objective.compute_flop", "'989e12x'", "must be a number"),
    "bool": ("objective.compute_flop=true", "objective.compute_flop", "True", "must be a number"),
    "nan": ("objective.compute_flop=nan", "objective.compute_flop", "nan", "must be a finite number"),
    "inf": ("objective.compute_flop=inf", "objective.compute_flop", "inf", "must be a finite number"),
    "overflow": ("objective.compute_flop=1e400", "objective.compute_flop", "inf", "must be a finite number"),
    "negative": ("objective.compute_flop=-1", "objective.compute_flop", "-1", "must be > 0"),
    "zero": ("objective.compute_flop=0", "objective.compute_flop", "0", "must be > 0"),
    "list": ("objective.compute_flop=[1e23]", "objective.compute_flop", "[1e+23]", "must be a number"),
    "date": ("rl.overhead=2026-04-29", "rl.overhead", "2026", "must be a number"),
    "mfu above 1": ("pretraining.mfu=1.01", "pretraining.mfu", "1.01", "must be <= 1"),
    "mfu in percent": ("hardware.mfu=40", "hardware.mfu", "40", "must be <= 1"),
    "mfu zero": ("pretraining.mfu=0", "pretraining.mfu", "0", "must be > 0"),
    "derate above 1": ("deployment.derate=1.5", "deployment.derate", "1.5", "must be <= 1"),
    "derate zero": ("deployment.derate=0", "deployment.derate", "0", "must be > 0"),
    "no days": ("deployment.lifetime_days=0", "deployment.lifetime_days", "0", "must be > 0"),
    "negative rate": ("deployment.tokens_per_second=-1", "deployment.tokens_per_second", "-1", "must be > 0"),
    "negative prompts": (
        "deployment.prompt_tokens_per_output_token=-1",
        "deployment.prompt_tokens_per_output_token", "-1", "must be >= 0",
    ),
    "overhead": ("inference.overhead=0", "inference.overhead", "0", "must be > 0"),
    "kappa": ("rl.flop_per_param_token=-3", "rl.flop_per_param_token", "-3", "must be > 0"),
    "exponent": ("law.rl.exponent=-0.1", "law.rl.exponent", "-0.1", "must be > 0"),
    "floor share": ("law.test_time.floor_share=1", "law.test_time.floor_share", "1", "must be < 1"),
    "title": ("title=5", "title", "5", "must be text"),
    "law a number": ("law.pretraining=5", "law.pretraining", "5", "must be text"),
    "section": ("rl=5", "rl", "5", "must be a table"),
    "nested section": ('law.test_time="x"', "law.test_time", "'x'", "must be a table"),
    "form": ("law.form=multiplicative", "law.form", "'multiplicative'", "must be 'product'"),
    "dtype": ("hardware.dtype=fp16", "hardware.dtype", "'fp16'", "'bf16'"),
    "decision bool": ("decisions.n_active=true", "decisions.n_active", "True", '{ min, max } or "free"'),
    "decision text": ("decisions.n_active=fre", "decisions.n_active", "'fre'", '{ min, max } or "free"'),
    "decision list": ("decisions.n_active=[1]", "decisions.n_active", "[1]", '{ min, max } or "free"'),
    "decision nan": ("decisions.n_active=nan", "decisions.n_active", "nan", "must be a finite number"),
    "decision negative": ("decisions.d_rl=-1", "decisions.d_rl", "-1", "must be >= 0"),
    "decision zero": ("decisions.n_active=0", "decisions.n_active", "0", "must be > 0"),
    "k zero": ("decisions.k=0", "decisions.k", "0", "must be > 0"),
    "bound": ("decisions.k.min=-2", "decisions.k.min", "-2", "must be >= 0"),
    "bound text": ('decisions.k.max="2"', "decisions.k.max", "'2'", "must be a number"),
    "bound inf": ("decisions.k.max=inf", "decisions.k.max", "inf", "must be a finite number"),
    "bounds cross": ("decisions.n_active={ min = 2, max = 1 }", "decisions.n_active", "min 2", "must be <= max 1"),
    "power law at 0": ("decisions.d_rl=0", "decisions.d_rl", "0", "must be > 0"),
}  # fmt: skip


@pytest.mark.parametrize(("override", "path", "value", "rule"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_bad_value_is_told_with_path_value_and_rule(override: str, path: str, value: str, rule: str):
    power_law = ("law.rl.unit_tokens=1e9",) if path == "decisions.d_rl" else ()
    line = only(refused(*power_law, override))
    assert line.startswith(f"{path}: ")
    assert value in line.removeprefix(path)
    assert rule in line


def test_an_integer_counts_as_a_number():
    assert load("lecture", overrides=["rl.overhead=3"]).rl.overhead == 3.0


@pytest.mark.parametrize("digits", [400, 5000])
def test_an_integer_that_no_float_holds_is_refused_in_a_line(digits: int, tmp_path: Path):
    huge = "9" * digits
    assert only(refused(f"objective.compute_flop={huge}")).startswith("objective.compute_flop: ")
    path = write(tmp_path / "huge.toml", f"[objective]\ncompute_flop = {huge}\n")
    assert len(refused(source=path)) == 1


# --- unknown keys ---

UNKNOWN = {
    "top": ("objectiv.compute_flop=1", "objectiv", "did you mean objective?"),
    "section": ("objective.compute_flopp=1", "objective.compute_flopp", "did you mean compute_flop?"),
    "nested": ("law.rl.exponnt=1", "law.rl.exponnt", "did you mean exponent?"),
    "phase": ('hardware.rl.chipp="x"', "hardware.rl.chipp", "did you mean chip?"),
    "decision": ("decisions.n_activ=1", "decisions.n_activ", "did you mean n_active?"),
    "bound": ("decisions.k={ minn = 1 }", "decisions.k.minn", "did you mean min?"),
    "nothing near": ("zzz=1", "zzz", "known here: title, objective"),
    "not ASCII": ("ключ=1", "ключ", "known here: title, objective"),
}


@pytest.mark.parametrize(("override", "path", "hint"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_key_is_refused_with_a_suggestion(override: str, path: str, hint: str):
    line = only(refused(override))
    assert line.startswith(f"{path}: unknown key")
    assert hint in line


def test_odd_keys_stay_on_one_line(tmp_path: Path, capsys):
    path = write(tmp_path / "odd.toml", MINIMAL + '"a\\nb" = 1\n"" = 2\n"c.d" = 3\n"[red]" = 4\n')
    code, out, err = check(capsys, "scenario", "check", str(path))
    assert (code, out, len(err)) == (2, "", 4)
    assert all(line.startswith("error: objective.") for line in err)


# --- rules that join several keys ---

JOINT = {
    "two objectives": (["objective={ compute_flop = 1e23, target_loss = 2 }"], "objective", "exactly one of"),
    "no objective": (["objective={}"], "objective", "exactly one of"),
    "currency": (["objective={ compute_flop = 1e23, currency = 'usd' }"], "objective.currency", "target_loss"),
    "rate and total": (
        ["deployment={ tokens_per_second = 1, lifetime_days = 1, lifetime_tokens = 1 }"],
        "deployment", "lifetime_tokens",
    ),
    "rate without days": (["deployment={ tokens_per_second = 1 }"], "deployment", "lifetime_days"),
    "empty deployment": (["deployment={}"], "deployment", "tokens_per_second"),
    "both RL scales": (["law.rl={ exponent = 0.1, scale_tokens = 1, unit_tokens = 1 }"], "law.rl", "exactly one of"),
    "no RL scale": (["law.rl={ exponent = 0.1 }"], "law.rl", "exactly one of"),
    "product with a scale": (["law.rl.scale=0.1"], "law.rl.scale", "'product' does not use it"),
    "product, test-time scale": (["law.test_time.scale=0.1"], "law.test_time.scale", "'product' does not use it"),
    "additive without": (["law.form=additive", "law.rl.scale=0.1"], "law.test_time.scale", "'additive' needs it"),
    "overhead and mfu": (["pretraining.mfu=0.4", "rl={ overhead = 3, mfu = 0.1 }"], "rl.overhead", "rl.mfu"),
    "mfu twice": (
        ["pretraining.mfu=0.4", "hardware={ rl = { mfu = 0.1 } }", "rl={ mfu = 0.1 }", "hardware.rl={ mfu = 0.1 }"],
        "rl.mfu", "hardware.rl.mfu",
    ),
    "rl.mfu alone": (["rl.mfu=0.13"], "rl.mfu", "needs pretraining.mfu"),
    "inference.mfu alone": (["inference.mfu=0.13"], "inference.mfu", "needs pretraining.mfu"),
    "phase mfu alone": (["hardware.rl={ mfu = 0.13 }", "rl={}"], "hardware.rl.mfu", "needs pretraining.mfu"),
    "unknown law": (["law.pretraining=besirogl"], "law.pretraining", "did you mean besiroglu-2024?"),
    "law without a name": (['law.pretraining=""'], "law.pretraining", "not known"),
    "a law of another kind": (["law.pretraining=gadre-redpajama-17"], "law.pretraining", "loss-to-error"),
    "unknown chip": (["hardware.chip=h100"], "hardware.chip", "did you mean h100-sxm?"),
    "unknown chip of a phase": (["hardware.rl.chip=gb2"], "hardware.rl.chip", "did you mean gb200"),
    "chip without the dtype": (["hardware={ chip = 'a100-80gb-sxm', dtype = 'fp8' }"], "hardware.chip", "fp8"),
    "phase's chip without it": (
        ["hardware={ chip = 'h100-sxm', dtype = 'fp8', rl = { chip = 'a100-80gb-sxm' } }"], "hardware.rl.chip", "fp8",
    ),
    "a term without exponent": (["law.test_time={}"], "law.test_time.exponent", "required"),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "path", "rule"), JOINT.values(), ids=JOINT)
def test_a_broken_joint_rule_is_one_line(overrides: list[str], path: str, rule: str):
    lines = refused(*overrides)
    assert any(line.startswith(path) and rule in line for line in lines), lines
    assert len(lines) == 1, lines


def test_no_law_term_leaves_k_nothing_to_do():
    lines = refused("decisions.k=free", source="gopher-budget")
    assert len(lines) == 2  # neither does the law depend on k, nor does serving cost anything
    assert all(line.startswith("decisions.k: ") for line in lines)


@pytest.mark.parametrize("choice", ["1e10", "{ max = 1e10 }", "{ min = 1e10 }"])
def test_rl_tokens_need_an_rl_term(choice: str):
    assert only(refused(f"decisions.d_rl={choice}", source="gopher-budget")).startswith("decisions.d_rl: ")


def test_zero_rl_tokens_need_none():
    assert load("gopher-budget", overrides=["decisions.d_rl=0"]).decisions.d_rl == 0


@pytest.mark.parametrize("choice", ["0.5", "{ max = 0.5 }"])
def test_below_one_sample_a_floor_share_has_no_meaning(choice: str):
    """k >= 1 is imposed for floor_share > 0, so a smaller k crosses that bound."""
    with pytest.raises(AllocatorError, match=r"decisions\.k"):
        build(load("lecture", overrides=["law.test_time.floor_share=0.5", f"decisions.k={choice}"]))


CURRENCIES = ("usd", "chip_hours", "energy_joule")


@pytest.mark.parametrize("currency", CURRENCIES)
@pytest.mark.parametrize("command", ["plan", "scenario check"])
def test_a_currency_without_hardware_is_refused(currency: str, command: str, capsys):
    code, out, err = check(capsys, *command.split(), "lecture", "--set", f"objective.{currency}=1e9")
    assert (code, out) == (2, "")
    assert any("mfu" in line for line in err)
    assert all(line.startswith("error: ") for line in err)


def test_a_chip_without_the_figure_that_a_currency_needs_is_refused(capsys):
    sets = ["--set", "objective.energy_joule=1e15", "--set", "hardware={ chip = 'h800-sxm', mfu = 0.4 }"]
    code, _, err = check(capsys, "plan", "lecture", *sets)
    assert code == 2
    assert len(err) == 1
    assert "power_w" in err[0]


def test_all_faults_of_a_file_come_together(tmp_path: Path, capsys):
    text = """title = 3
objective = { compute_flop = -1, usd = "x" }
nonsense = true
[law]
pretraining = "no-such-law"
rl = { exponent = nan }
test_time = { exponent = 0.1, scale = 1.0 }
[deployment]
lifetime_tokens = 1e400
tokens_per_second = 1.0
[rl]
overhead = 3.0
mfu = 1.2
[hardware]
chip = "h1oo-sxm"
[decisions]
n_active = { min = 3.0, max = 2.0 }
d_pretrain = "all"
"""
    path = write(tmp_path / "faults.toml", text)
    expected = {
        "title", "objective.compute_flop", "objective.usd", "objective", "nonsense", "law.pretraining",
        "law.rl.exponent", "law.rl", "law.test_time.scale", "deployment.lifetime_tokens", "deployment", "rl.mfu",
        "rl.overhead", "hardware.chip", "decisions.n_active", "decisions.d_pretrain",
    }  # fmt: skip
    lines = refused(source=path)
    assert {line.split(":")[0] for line in lines} == expected
    assert len(lines) == len(expected)
    code, out, err = check(capsys, "plan", str(path))
    assert (code, out) == (2, "")
    assert err == [f"error: {line}" for line in lines]


# --- files that are no scenario ---

NOT_SCENARIOS = {
    "binary": (bytes(range(256)), "UTF-8"),
    "nulls": (b"\0" * 64, "not TOML"),
    "utf-16": (MINIMAL.encode("utf-16"), "UTF-8"),
    "latin-1": ('title = "caf\xe9"\n'.encode("latin-1"), "UTF-8"),
    "empty": (b"", "empty"),
    "comments only": (b"\n# nothing\n", "empty"),
    "bad syntax": (b"[objective\n", "line 1"),
    "cut off": (b"[objective]\ncompute_flop =", "not TOML"),
    "key twice": (b"title = 'a'\ntitle = 'b'\n", "line 2"),
    "table twice": (2 * MINIMAL.encode(), "twice"),
    "deep list": (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
    "deep table": (b"a = " + b"{a=" * 3000 + b"1" + b"}" * 3000, "nested too deeply"),
    "deep dots": (b"[" + b".".join([b"a"] * 5000) + b"]\nb = 1\n[objective]\ncompute_flop = 1", "unknown key"),
    "a year 0": (b"title = 2026-13-45\n", "line 1"),
}


@pytest.mark.parametrize(("content", "rule"), NOT_SCENARIOS.values(), ids=NOT_SCENARIOS)
def test_a_file_that_is_no_scenario(content: bytes, rule: str, tmp_path: Path):
    line = only(refused(source=write(tmp_path / "file.toml", content)))
    assert rule in line
    assert "file.toml" in line or line.startswith("a:")


def test_a_byte_order_mark_is_taken_or_named(tmp_path: Path):
    path = write(tmp_path / "bom.toml", b"\xef\xbb\xbf" + MINIMAL.encode())
    try:
        found = load(path).objective.compute_flop == 1e23
    except ScenarioError as error:
        found = "bom.toml" in only(error.lines)
    assert found


def test_windows_line_ends_are_taken(tmp_path: Path):
    assert load(write(tmp_path / "crlf.toml", MINIMAL.replace("\n", "\r\n"))).objective.compute_flop == 1e23


def test_a_missing_file(tmp_path: Path):
    line = only(refused(source=tmp_path / "none.toml"))
    assert "none.toml" in line
    assert "No such file" in line


def test_a_folder(tmp_path: Path):
    assert "folder" in only(refused(source=tmp_path))


@pytest.mark.parametrize("name", ["a" * 300, "a" * 5000 + ".toml", "a\0b.toml", "x/" * 3000])
def test_a_name_that_no_file_can_bear(name: str):
    with pytest.raises(AllocatorError) as caught:
        load(name)
    assert len(str(caught.value).splitlines()) == 1


def test_an_unknown_name_brings_suggestions():
    with pytest.raises(CatalogError, match="did you mean lecture"):
        load("lectur")


@pytest.mark.parametrize("entry", ["folder", "file"])
def test_a_shipped_name_beside_something_of_that_name(entry: str, tmp_path: Path, monkeypatch):
    """A folder is no scenario, so it does not hide the shipped one; a file of the user's own does."""
    monkeypatch.chdir(tmp_path)
    if entry == "folder":
        (tmp_path / "lecture").mkdir()
    else:
        write(tmp_path / "lecture", 'title = "Mine"\n' + MINIMAL)
    assert load("lecture").title.startswith("Lecture" if entry == "folder" else "Mine")


# --- standard input ---


def feed(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def test_a_dash_reads_standard_input(monkeypatch):
    feed(monkeypatch, MINIMAL.encode())
    assert load("-", overrides=["title=From a pipe"]).title == "From a pipe"


@pytest.mark.parametrize("content", [b"", b"[objective", bytes(range(128, 256))], ids=["empty", "syntax", "binary"])
def test_bad_standard_input_is_one_line(content: bytes, monkeypatch):
    feed(monkeypatch, content)
    assert "standard input" in only(refused(source="-"))


def test_closed_standard_input_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input" in only(refused(source="-"))


# --- laws by name and by path ---


def floor_of(path: Path) -> float:
    return float(build(load(path)).problem.law.floor)


def test_a_law_in_the_scenarios_own_fits(tmp_path: Path):
    write(tmp_path / "fits/mine/law.toml", MY_LAW)
    path = write(tmp_path / "plan.toml", MINIMAL + "[law]\npretraining = 'mine'\n")
    assert floor_of(path) == 2.5


def test_a_law_in_the_scenarios_own_fits_wins_over_the_shipped_one(tmp_path: Path):
    write(tmp_path / "fits/besiroglu-2024/law.toml", MY_LAW)
    assert floor_of(write(tmp_path / "plan.toml", MINIMAL)) == 2.5


def test_a_law_in_fits_of_the_current_folder(tmp_path: Path, monkeypatch):
    write(tmp_path / "here/fits/mine/law.toml", MY_LAW)
    path = write(tmp_path / "there/plan.toml", MINIMAL + "[law]\npretraining = 'mine'\n")
    monkeypatch.chdir(tmp_path / "here")
    assert floor_of(path) == 2.5


@pytest.mark.parametrize("name", ["laws/mine.toml", "./laws/mine.toml", "../{folder}/laws/mine.toml"])
def test_a_law_path_is_relative_to_the_scenario(name: str, tmp_path: Path):
    write(tmp_path / "laws/mine.toml", MY_LAW)
    name = name.format(folder=tmp_path.name)
    assert floor_of(write(tmp_path / "plan.toml", f"{MINIMAL}[law]\npretraining = '{name}'\n")) == 2.5


def test_a_changed_copy_keeps_the_scenarios_folder(tmp_path: Path):
    write(tmp_path / "laws/mine.toml", MY_LAW)
    scenario = load(write(tmp_path / "plan.toml", f"{MINIMAL}[law]\npretraining = 'laws/mine.toml'\n"))
    changed = with_values(scenario, {"objective.compute_flop": 1e24})
    assert float(build(changed).problem.law.floor) == 2.5


BAD_LAW_FILES = {
    "missing": (None, "no such file"),
    "empty": ("", "empty"),
    "binary": (bytes(range(256)), "UTF-8"),
    "text for a number": (MY_LAW.replace("2.5", '"2.5"'), "parameters.E"),
    "nan": (MY_LAW.replace("2.5", "nan"), "parameters.E"),
    "parameter missing": (MY_LAW.replace("E = 2.5\n", ""), "parameters"),
    "unknown kind": (MY_LAW.replace("chinchilla", "magic"), "kind"),
    "negative exponent": (MY_LAW.replace("0.34", "-0.34"), "alpha"),
}


@pytest.mark.parametrize(("content", "rule"), BAD_LAW_FILES.values(), ids=BAD_LAW_FILES)
def test_a_bad_law_file_is_one_line_under_its_key(content: str | bytes | None, rule: str, tmp_path: Path):
    if content is not None:
        write(tmp_path / "mine.toml", content)
    path = write(tmp_path / "plan.toml", f"{MINIMAL}[law]\npretraining = './mine.toml'\n")
    line = only(refused(source=path))
    assert line.startswith("law.pretraining: ")
    assert rule in line


def test_a_law_path_that_is_a_folder(tmp_path: Path):
    (tmp_path / "laws").mkdir()
    path = write(tmp_path / "plan.toml", f"{MINIMAL}[law]\npretraining = './laws/'\n")
    line = only(refused(source=path))
    assert line.startswith("law.pretraining: ")
    assert "folder" in line


# --- --set ---


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("title=a plain text", "a plain text"),
        ('title="quoted"', "quoted"),
        ("title=a=b", "a=b"),
        ("title = spaced ", "spaced"),
        ("title=", ""),
        ("title=ünï ☃", "ünï ☃"),
        ("title=[unclosed", "[unclosed"),
        ("title=" + "x" * 10_000, "x" * 10_000),
    ],
)
def test_an_override_is_toml_or_else_text(override: str, value: str):
    assert load("lecture", overrides=[override]).title == value


@pytest.mark.parametrize(
    "override", ["", "=", "a", "objective", "=1", ".a=1", "a.=1", "a..b=1", "objective.=1", "objective compute_flop"]
)
def test_an_override_without_key_and_value_is_refused(override: str):
    line = only(refused(override))
    assert "--set" in line
    assert "key.path=value" in line


def test_an_override_holds_one_value():
    """Unknown input is refused, never dropped: a second key in the value's text must not vanish."""
    refused("rl.overhead=2\nnonsense=3")


def test_the_last_override_of_a_key_counts():
    overrides = ["rl.overhead=2", "rl.overhead=5"]
    assert load("lecture", overrides=overrides).rl.overhead == 5


def test_an_override_may_make_a_section():
    assert load("gopher-budget", overrides=["deployment.lifetime_tokens=1e12"]).deployment.lifetime_tokens == 1e12


def given(*overrides: str, section: str, source: str = "lecture") -> dict:
    return load(source, overrides=overrides).to_values().get(section, {})


def test_a_budget_replaces_another():
    assert given("objective.target_loss=1.9", section="objective") == {"target_loss": 1.9}


def test_a_budget_replaces_a_target_and_its_currency():
    found = given("objective.compute_flop=1e25", section="objective", source="serve-two-trillion")
    assert found == {"compute_flop": 1e25}


def test_a_currency_stays_with_its_target():
    found = given("objective.target_loss=1.9", "objective.currency=compute_flop", section="objective")
    assert found == {"target_loss": 1.9, "currency": "compute_flop"}


def test_the_pure_power_replaces_the_saturating_scale_and_back():
    found = given("law.rl.unit_tokens=1e9", section="law")["rl"]
    assert set(found) == {"exponent", "unit_tokens"}
    found = given("law.rl.unit_tokens=1e9", "law.rl.scale_tokens=1e8", section="law")["rl"]
    assert set(found) == {"exponent", "scale_tokens"}


def test_total_tokens_replace_rate_and_days_and_back():
    assert set(given("deployment.lifetime_tokens=1e14", section="deployment")) == {"lifetime_tokens", "derate"}
    back = ["deployment.lifetime_tokens=1e14", "deployment.tokens_per_second=1", "deployment.lifetime_days=2"]
    assert set(given(*back, section="deployment")) == {"tokens_per_second", "lifetime_days", "derate"}


@pytest.mark.parametrize("phase", ["rl", "inference"])
def test_an_mfu_replaces_an_overhead_and_back(phase: str):
    found = given("pretraining.mfu=0.4", f"{phase}.mfu=0.1", section=phase)
    assert found["mfu"] == 0.1
    assert "overhead" not in found
    found = given("pretraining.mfu=0.4", f"{phase}.mfu=0.1", f"{phase}.overhead=2", section=phase)
    assert found["overhead"] == 2
    assert "mfu" not in found


def test_a_bound_replaces_a_number():
    assert given("decisions.k.min=2", section="decisions")["k"] == {"min": 2}


def test_a_number_replaces_bounds():
    assert given("decisions.k={ min = 2, max = 3 }", "decisions.k=4", section="decisions")["k"] == 4


def test_two_bounds_join():
    assert given("decisions.k.min=2", "decisions.k.max=3", section="decisions")["k"] == {"min": 2, "max": 3}


# --- round trips ---


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_scenario_is_valid(name: str):
    assert load(name).title


def test_all_shipped_scenarios_are_tried():
    assert {record.name for record in catalog.entries("scenarios")} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_show_prints_is_the_same_scenario(name: str, tmp_path: Path, capsys):
    code, text, err = check(capsys, "scenario", "show", name)
    assert (code, err) == (0, [])
    path = write(tmp_path / "shown.toml", text)
    assert load(path).model_dump() == load(name).model_dump()
    assert check(capsys, "scenario", "show", str(path))[1] == text


def test_what_show_prints_gives_the_same_plan(tmp_path: Path, capsys):
    overrides = ["rl.flop_per_param_token=4", "decisions.d_pretrain={ max = 3e14 }", 'title="quotes \\" and ☃"']
    sets = [argument for override in overrides for argument in ("--set", override)]
    _, text, _ = check(capsys, "scenario", "show", "lecture", *sets)
    shown = allocator.solve(load(write(tmp_path / "shown.toml", text)))
    direct = allocator.solve(load("lecture", overrides=overrides))
    assert shown.decision == direct.decision
    assert shown.title == direct.title
    assert shown.assumed == direct.assumed


def test_what_show_prints_keeps_what_is_assumed(tmp_path: Path, capsys):
    """A default that nobody stated stays assumed after a round trip."""
    source = write(tmp_path / "s.toml", MINIMAL + "[law.rl]\nexponent = 0.1\nscale_tokens = 1e9\n")
    _, text, _ = check(capsys, "scenario", "show", str(source))
    assert set(build(load(write(tmp_path / "shown.toml", text))).assumed) == set(build(load(source)).assumed)


def test_values_of_a_scenario_rebuild_it():
    scenario = load("lecture")
    assert from_values(scenario.to_values()).model_dump() == scenario.model_dump()


def test_the_template_is_a_valid_scenario(capsys):
    code, text, _ = check(capsys, "scenario", "new")
    assert code == 0
    assert from_values(tomllib.loads(text)).title == "My deployment"


def test_every_option_of_the_template_is_a_key(capsys):
    """Uncommenting an option gives a key that is known; either-or partners may exclude each other."""
    _, text, _ = check(capsys, "scenario", "new")
    options = [line for line in text.splitlines() if line.startswith("# ") and " = " in line.split("#")[1]]
    assert options
    section, keys = "", []
    for line in text.splitlines():
        bare = line.removeprefix("# ")
        if bare.startswith("["):
            section = bare[1 : bare.index("]")]
        elif line in options:
            keys.append((section, bare))
    for section, option in keys:
        values = tomllib.loads(f"[{section}]\n{option}\n")
        lines: tuple[str, ...] = ()
        try:
            from_values({"objective": {"compute_flop": 1e23}, **values})
        except ScenarioError as error:
            lines = error.lines
        # An option may need others beside it, which the template has in the section above.
        wrong = [line for line in lines if "unknown key" in line or ("got" in line and "needs" not in line)]
        assert not wrong, option


# --- with_values ---


def test_a_changed_copy_leaves_the_original_alone():
    scenario = load("lecture")
    changed = with_values(scenario, {"objective.target_loss": 1.9, "decisions.k.min": 2.0})
    assert changed.objective.compute_flop is None
    assert changed.objective.target_loss == 1.9
    assert scenario.objective.compute_flop == 4.6656e26
    assert scenario.decisions.k == 1.0


def test_a_changed_copy_is_checked():
    with pytest.raises(ScenarioError, match=r"rl\.mfu: got 2"):
        with_values(load("lecture"), {"rl.mfu": 2.0})


def test_a_scenario_is_frozen():
    scenario = load("lecture")
    with pytest.raises(Exception, match="frozen"):
        scenario.rl.overhead = 2.0


def test_traffic_may_be_given_either_way():
    rate = load("lecture")
    total = with_values(rate, {"deployment.lifetime_tokens": 5e7 * 86400 * 60})
    assert lifetime_tokens(rate) == lifetime_tokens(total) == 2.592e14
