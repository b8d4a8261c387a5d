"""Draws carried to the plan: quantiles, seeds, counts, variance and the value of measuring."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import allocator
from allocator.distributions import Distribution, parse, parse_all
from allocator.errors import AllocatorError
from allocator.information import value_of_information, variance_shares
from allocator.law_draws import law_draws
from allocator.scenario.reading import load, with_values
from allocator.uncertainties import Source, sources_of, uncertainty

EPOCH = {"law.pretraining": "chinchilla-epoch"}


# --- distributions ---


@given(st.floats(0.01, 0.99))
def test_range_is_triangular_in_logs(u: float):
    ours = float(Distribution("range", (2.0, 3.0, 7.0)).quantile(np.array([u]))[0])
    width = np.log(3.5)
    want = np.exp(stats.triang(c=np.log(1.5) / width, loc=np.log(2.0), scale=width).ppf(u))
    assert ours == pytest.approx(want, rel=1e-9)


def test_quantiles_against_scipy():
    u = np.linspace(0.01, 0.99, 9)
    assert parse("lognormal:5e7,0.7").quantile(u) == pytest.approx(stats.lognorm(s=0.7, scale=5e7).ppf(u))
    assert parse("uniform:1,5").quantile(u) == pytest.approx(stats.uniform(1, 4).ppf(u))
    assert parse("loguniform:1,5").quantile(u) == pytest.approx(stats.loguniform(1, 5).ppf(u))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1,2", "range takes 3 numbers, got 2"),
        ("3,2,1", "its numbers must rise"),
        ("-1,2,3", "low end must be > 0"),
        ("uniform:0,1", "low end must be > 0"),
        ("lognormal:-1,1", "median must be > 0"),
        ("lognormal:1,-1", "sigma >= 0"),
        ("normal:1,1", "'normal' is not one of"),
        ("1,nan,3", "must be finite"),
        ("abc", "must read LOW,MID,HIGH"),
    ],
)
def test_bad_distributions(text: str, line: str):
    with pytest.raises(AllocatorError, match=line):
        parse(text)
    with pytest.raises(AllocatorError, match=r"rl\.overhead"):
        parse_all([f"rl.overhead={text}"])
    with pytest.raises(AllocatorError, match="must read KEY"):
        parse_all(["rl.overhead"])


# --- the plan's spread ---


@pytest.fixture(scope="module")
def lecture():
    return uncertainty(with_values(load("lecture"), EPOCH), draws=600)


def test_each_draw_is_a_plan_of_its_own(lecture):
    """A draw's plan is that of a law file with its parameters: here through the closed form of the split."""
    plans = lecture.law_only.plans
    assert plans.solved.all()
    for i in (0, 300):
        alpha, beta = (plans.values[f"law.pretraining.{name}"][i] for name in ("alpha", "beta"))
        a, b = (plans.values[f"law.pretraining.{name}"][i] for name in ("A", "B"))
        d, r = float(plans.figures.decision.d_pretrain[i]), float(plans.figures.decision.d_rl[i])
        elasticity = beta * b * d**-beta / (a * 1e11**-alpha + b * d**-beta)
        # s_D / s_R = e_D / e_R, with R far above its scale of 1e9 tokens.
        assert (6 * d) / (9 * (r + 1e9)) == pytest.approx(elasticity / 0.08803296429559924, rel=1e-8)


def test_nothing_is_dropped(lecture):
    """Demand beyond what the budget serves has no plan: those draws are counted, and widen the probabilities."""
    counts = lecture.whole.status_counts()
    assert sum(counts.values()) == 600
    assert counts["infeasible"] > 0
    least, most = lecture.whole.probability_above(50.0)
    assert most - least == pytest.approx(counts["infeasible"] / 600)
    frame = lecture.to_frame()
    assert set(frame["sources"]) == {"law", "law and assumed ranges"}
    row = frame[(frame["figure"] == "vs_20") & (frame["sources"] == "law")].iloc[0]
    assert row["q05"] < row["plan"] < row["q95"]


def test_lecture_s_intervals_agree_over_ten_seeds():
    """Over-training at N = 1e11: medians of ten seeds scatter as Monte Carlo error says, 1.25 sigma / sqrt(n)."""
    scenario = with_values(load("lecture"), EPOCH)
    medians, spread = [], []
    for seed in range(10):
        found = uncertainty(scenario, draws=400, seed=seed, assumed=False)
        medians.append(found.whole.interval("vs_20")[2])
        spread.append(float(np.std(found.whole.figures["vs_20"])))
    error = 1.2533 * np.mean(spread) / np.sqrt(400)
    assert np.std(medians, ddof=1) < 2 * error
    assert np.abs(np.array(medians) - np.mean(medians)).max() < 4 * error


def test_same_seed_same_draws_and_assumed_ranges_widen():
    scenario = with_values(load("lecture-free"), EPOCH)
    a, b = (uncertainty(scenario, draws=64, seed=3) for _ in range(2))
    assert (a.whole.figures["vs_20"] == b.whole.figures["vs_20"]).all()
    narrow, wide = (spread.interval("vs_20") for spread in (a.law_only, a.whole))  # pyright: ignore
    assert wide[4] / wide[0] > narrow[4] / narrow[0]


def test_no_spread_is_no_interval():
    same = {"rl.overhead": Distribution("range", (3.0, 3.0, 3.0))}
    found = uncertainty(load("lecture-free"), ranges=same, assumed=False, draws=8)
    quantiles = found.whole.interval("n_active")
    assert quantiles == pytest.approx([found.plan.decision.n_active] * 5, rel=1e-9)  # pyright: ignore
    assert [notice.code for notice in found.warnings] == ["law_without_draws"]


def test_a_law_s_draws_are_its_file_s():
    draws = law_draws(with_values(load("lecture"), EPOCH))
    assert draws is not None
    assert set(draws) == {f"law.pretraining.{name}" for name in ("E", "A", "B", "alpha", "beta")}
    assert law_draws(load("lecture")) is None


def test_nothing_uncertain_is_an_error():
    with pytest.raises(AllocatorError, match="has no draws and no number has a range"):
        uncertainty(load("lecture"), assumed=False)
    with pytest.raises(AllocatorError, match="draws: got 1"):
        uncertainty(load("lecture"), draws=1)
    with pytest.raises(allocator.ScenarioError, match=r"deployment\.derate"):
        uncertainty(load("lecture"), ranges={"deployment.derate": Distribution("uniform", (0.5, 1.5))}, draws=16)


# --- what it comes from ---


def test_variance_of_a_power_is_shared_as_its_exponents_are():
    """Pure powers, all free: log of N is linear in logs of overheads, so the shares are squares of the slopes."""
    changes = {"law.rl.unit_tokens": 1e9, "decisions.k": "free"}
    scenario = with_values(load("lecture-free"), changes)
    sources = [Source(path, Distribution("lognormal", (3.0, sigma)))
               for path, sigma in (("pretraining.overhead", 0.2), ("inference.overhead", 0.5))]  # fmt: skip
    shares = variance_shares(scenario, sources, outcome="d_rl", samples=256)
    # In the product of pure powers with all free, the cost shares are constant: R = s_R C / (cR N), and N depends on
    # pre-training's overhead alone.
    assert {row.source: round(row.total, 2) for row in shares.rows}["inference.overhead"] == pytest.approx(
        0.0, abs=0.02
    )
    by_name = {row.source: row for row in variance_shares(scenario, sources, outcome="k", samples=256).rows}
    slope = _slope_of_k(scenario)
    parts = np.array([slope**2 * 0.2**2, 1.0 * 0.5**2])
    assert by_name["pretraining.overhead"].first_order == pytest.approx(parts[0] / parts.sum(), abs=0.03)
    assert by_name["inference.overhead"].first_order == pytest.approx(parts[1] / parts.sum(), abs=0.03)
    assert shares.without_plan == 0


def _slope_of_k(scenario) -> float:
    """-dlog N/dlog m_pre = beta/(alpha + beta): k = s_k C / (2 m T N), and N ~ (C/(6 m_pre))^(beta/(alpha + beta))."""
    return 0.3658 / (0.3478 + 0.3658)


def test_one_source_explains_everything():
    source = Source("rl.overhead", Distribution("range", (2.0, 3.0, 7.0)))
    shares = variance_shares(load("lecture-free"), [source])
    assert (shares.rows[0].first_order, shares.rows[0].total) == (1.0, 1.0)


def test_variance_refuses_where_plans_are_missing():
    source = [Source("objective.compute_flop", Distribution("loguniform", (1e25, 1e27))),
              Source("rl.overhead", Distribution("range", (2.0, 3.0, 7.0)))]  # fmt: skip
    with pytest.raises(AllocatorError, match="have no plan"):
        variance_shares(load("lecture"), source, samples=16)
    with pytest.raises(AllocatorError, match="power of two"):
        variance_shares(load("lecture"), source, samples=15)


def test_an_outcome_of_zero_is_no_missing_plan():
    sources = sources_of(load("lecture-free"), {"law.rl.scale_tokens": Distribution("range", (1e12, 1e14, 1e16))})
    with pytest.raises(AllocatorError, match=r"d_rl: is 0 in \d+% of the plans"):
        variance_shares(load("lecture-free"), sources, outcome="d_rl", samples=32)
    with pytest.raises(AllocatorError, match="outcome: 'foo' is not one of"):
        variance_shares(load("lecture-free"), sources, outcome="foo")
    with pytest.raises(AllocatorError, match="sources: none"):
        variance_shares(load("lecture-free"), [])


def test_knowing_everything_leaves_no_regret():
    scenario = load("lecture-free")
    sources = [source for source in sources_of(scenario) if source.name in ("inference.overhead", "law.rl.exponent")]
    found = value_of_information(scenario, sources, worlds=32)
    pair = found.best_pair()
    assert pair is not None
    assert pair.expected_regret == pytest.approx(0.0, abs=1e-8)
    assert pair.saved == pytest.approx(found.expected_regret, abs=1e-8)
    assert found.expected_regret > 0
    single = [row for row in found.rows if len(row.sources) == 1]
    assert all(row.saved < pair.saved for row in single)
