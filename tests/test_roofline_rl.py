"""RL steps against the planner's RolloutMfu, hand-worked times and central differences."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slopes import assert_slopes

from allocator import catalog
from allocator.costs import Constant, RelativeOverhead, RolloutMfu
from allocator.roofline.accelerator import Accelerator, accelerator
from allocator.roofline.operation import Operation
from allocator.roofline.rl import end_to_end_mfu, rl_flop_per_param_token, rl_mfu, rl_step
from allocator.roofline.shape import Dimensions, Shape, ShapeFamily, shape
from allocator.roofline.step import decode_mfu, decode_step
from allocator.roofline.training import training_mfu

H100 = accelerator(catalog.find("hardware", "h100-sxm"), "bf16")
LLAMA = shape(catalog.find("models", "llama-3.1-70b"))
ROLLOUT = Operation(H100, 64.0, 512.0, 4096.0, 2.0, 2.0)
LEARNER = Operation(H100, 64.0, 1.0, 8192.0, 2.0, 2.0, compute_efficiency=0.4)


@pytest.mark.parametrize(("share", "learner", "kappa"), [(0.0, 6.0, 2.0), (1.0, 4.0, 6.0), (1.0, 6.0, 8.0),
                                                         (0.5, 4.0, 4.0), (1.0, 8.0, 10.0)])  # fmt: skip
def test_kappa(share: float, learner: float, kappa: float):
    """The lecture's 2 to 6 (01:20); 10 in the RL rows of training_measurements: 2 decode, 2 log-prob, 6 train."""
    assert float(rl_flop_per_param_token(share, learner)) == kappa


def test_step_by_hand():
    """N = 1e9 in bf16 on one chip, 1e12 B/s, 1e14 FLOP/s: 2 ms a step of 8; 8e3 tokens are 1e3 steps, 2 s; learning
    4 x 1e9 x 8e3 FLOP at half the peak takes 0.64 s."""
    model = Shape(1e9, 1e9, 0.0, 1.0, 1e-9, 0.0, 0.0, 0.0, 0.0, 1e9, Dimensions(1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0))
    op = Operation(Accelerator(1e14, 8e10, 1e12), 1.0, 8.0, 10.0, 2.0, 2.0)
    step = rl_step(model, op, replace(op, compute_efficiency=0.5), tokens=8e3, learner_flop=4.0)
    assert [float(step.rollout_s), float(step.learner_s)] == pytest.approx([2.0, 0.64], rel=1e-6)
    assert float(step.rollout_share) == pytest.approx(2 / 2.64, rel=1e-6)
    assert [float(step.step_s), float(step.overlapped_s)] == pytest.approx([2.64, 2.0], rel=1e-6)
    # 6 x 1e9 x 8e3 FLOP in 2.64 s of 1e14: 0.182
    assert float(rl_mfu(model, op, replace(op, compute_efficiency=0.5), learner_flop=4.0)) == pytest.approx(
        6e9 * 8e3 / 2.64 / 1e14, rel=1e-6
    )


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("learner_flop", [4.0, 6.0])
def test_mfu_is_useful_flop_over_the_step_s_time(share: float, learner_flop: float):
    tokens = 1e7
    step = rl_step(LLAMA, ROLLOUT, LEARNER, tokens=tokens, trained_share=share, learner_flop=learner_flop)
    useful = (2 + share * learner_flop) * float(LLAMA.n_compute) * tokens
    want = useful / (64 * H100.peak_flop_per_s * float(step.step_s))
    assert float(rl_mfu(LLAMA, ROLLOUT, LEARNER, trained_share=share, learner_flop=learner_flop)) == pytest.approx(
        want, rel=1e-12
    )


def test_the_planner_s_mfu_and_overhead_are_the_same():
    family, at = ShapeFamily(LLAMA), jnp.log(jnp.asarray(30e9))
    model = family.at(at)
    kappa = 8.0
    own = RolloutMfu(lambda x: decode_mfu(family.at(x), ROLLOUT), lambda x: training_mfu(family.at(x), LEARNER), kappa)
    assert float(own(at)) == pytest.approx(float(rl_mfu(model, ROLLOUT, LEARNER)), rel=1e-13)
    overhead = RelativeOverhead(0.4, own)
    step = rl_step(model, ROLLOUT, LEARNER, tokens=1e6)
    paid = float(step.step_s) * 64 * H100.peak_flop_per_s * 0.4  # FLOP at the pre-training MFU
    assert float(overhead(at)) == pytest.approx(paid / (kappa * float(model.n_compute) * 1e6), rel=1e-12)
    constant = RolloutMfu(Constant(0.1), Constant(0.4), 6.0)
    assert float(constant(at)) == float(end_to_end_mfu(0.1, 0.4, 6.0)) == pytest.approx(6 / 30, rel=1e-14)


def test_rollouts_on_other_chips_are_charged_by_chip_seconds():
    apart = replace(ROLLOUT, chips=192.0)
    step = rl_step(LLAMA, apart, LEARNER, tokens=1e6)
    assert float(step.rollout_chip_s) == pytest.approx(192 * float(step.rollout_s), rel=1e-14)
    want = 1e6 / 512 * float(decode_step(LLAMA, apart).step_s)
    assert float(step.rollout_s) == pytest.approx(want, rel=1e-14)


def test_small_batches_make_rollouts_most_of_the_step():
    shares = [float(rl_step(LLAMA, replace(ROLLOUT, batch=b), LEARNER, tokens=1e6).rollout_share) for b in (1.0, 64.0)]
    assert shares[0] > 0.9 > shares[1]


def test_gradients_match_central_differences():
    def total(x):
        batch, context, share, learner, tokens = jnp.exp(x)
        op = replace(ROLLOUT, batch=batch, context=context)
        step = rl_step(LLAMA, op, LEARNER, tokens=tokens, trained_share=share, learner_flop=learner)
        mfu = rl_mfu(LLAMA, op, LEARNER, trained_share=share, learner_flop=learner)
        return jnp.log(step.step_s) + step.rollout_share + jnp.log(mfu) + jnp.log(step.overlapped_s)

    x = jnp.log(jnp.asarray([64.0, 4096.0, 0.5, 5.0, 1e6]))
    assert_slopes(total, x, rel=1e-5, abs=1e-8)
    batch = jax.vmap(lambda b: rl_mfu(LLAMA, replace(ROLLOUT, batch=b), LEARNER))(jnp.asarray([8.0, 64.0, 256.0]))
    assert np.isfinite(batch).all()
    assert np.all(np.diff(batch) > 0)
