r"""An RL step: sequences are decoded, then learned from.

$$t = \frac{T_r}{B}\,t_{step}(B, \text{context}) + \frac{\varphi\, l\, N\, T_r}{n F\, \text{MFU}_{train}},
  \qquad \kappa = 2 + \varphi\, l$$

for T_r generated tokens of which the share phi is trained on, at l = 4 (backward only), 6 (forward and backward) or 8
(with a pass for reference log-probabilities) FLOP per parameter and token.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.layout import Layout
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape
from allocator.roofline.step import decode_mfu, decode_step
from allocator.roofline.training import training_mfu

Number = Float[Array, ""] | float
ROLLOUT_FLOP_PER_PARAM_TOKEN = 2.0


def rl_flop_per_param_token(trained_share: Number = 1.0, learner_flop: Number = 6.0) -> Float[Array, ""]:
    """FLOP per parameter and generated token, kappa: 2 to decode and the learner's."""
    return ROLLOUT_FLOP_PER_PARAM_TOKEN + jnp.asarray(trained_share, float) * learner_flop


def end_to_end_mfu(decode: Number, train: Number, flop_per_param_token: Number) -> Float[Array, ""]:
    r"""MFU of both parts one after another on the same chips: $\kappa/(2/m_d + (\kappa - 2)/m_t)$."""
    rollout = ROLLOUT_FLOP_PER_PARAM_TOKEN
    kappa = jnp.asarray(flop_per_param_token, float)
    return kappa / (rollout / decode + (kappa - rollout) / train)


class RlStep(NamedTuple):
    """Seconds of the two parts of a step, in chip-seconds too, since they may run on different chips."""

    rollout_s: Float[Array, ""]
    learner_s: Float[Array, ""]
    rollout_chip_s: Float[Array, ""]
    learner_chip_s: Float[Array, ""]

    @property
    def step_s(self) -> Float[Array, ""]:
        """One part after the other."""
        return self.rollout_s + self.learner_s

    @property
    def overlapped_s(self) -> Float[Array, ""]:
        """Both at once on chips of their own, the learner one step behind."""
        return jnp.maximum(self.rollout_s, self.learner_s)

    @property
    def rollout_share(self) -> Float[Array, ""]:
        """Share of the chip-seconds that rollouts take."""
        return self.rollout_chip_s / (self.rollout_chip_s + self.learner_chip_s)


def rl_step(
    shape: Shape, rollout: Operation, learner: Operation, *, tokens: Number,
    trained_share: Number = 1.0, learner_flop: Number = 6.0, layout: Layout | None = None,
) -> RlStep:  # fmt: skip
    """Time of a step that generates so many tokens; `rollout.context` is prompt + output/2, what a token sees."""
    generated = jnp.asarray(tokens, float)
    rollout_s = generated / rollout.batch * decode_step(shape, rollout, layout).step_s
    flop = trained_share * learner_flop * shape.n_compute * generated
    learner_s = flop / (learner.chips * learner.chip.peak_flop_per_s * training_mfu(shape, learner))
    return RlStep(rollout_s, learner_s, rollout_s * rollout.chips, learner_s * learner.chips)


def rl_mfu(
    shape: Shape, rollout: Operation, learner: Operation, *,
    trained_share: Number = 1.0, learner_flop: Number = 6.0, layout: Layout | None = None,
) -> Float[Array, ""]:  # fmt: skip
    """MFU end to end; both parts on chips of one peak. The planner's overhead is the pre-training MFU over it."""
    kappa = rl_flop_per_param_token(trained_share, learner_flop)
    return end_to_end_mfu(decode_mfu(shape, rollout, layout), training_mfu(shape, learner), kappa)
