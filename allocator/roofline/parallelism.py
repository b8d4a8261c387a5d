r"""How far training can be spread, what it keeps in memory, how long it takes.

With alpha = F/bw of a link, in FLOP/byte of one chip, a cut over chips is hidden behind arithmetic while each chip has
enough tokens, or enough width. Source: "How to scale your model", chapters on training and on GPUs.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.laws.checks import require_positive

Number = Float[Array, ""] | float


def data_parallel_limit(
    flop_per_s: Number, link_bytes_per_s: Number, *, experts: Number = 1.0, experts_active: Number = 1.0
) -> Float[Array, ""]:
    r"""Fewest tokens per chip at which exchanging gradients hides: $F/bw \cdot E/k$, bf16."""
    return jnp.asarray(flop_per_s, float) / link_bytes_per_s * experts / experts_active


def tensor_parallel_limit(d_ff: Number, flop_per_s: Number, link_bytes_per_s: Number) -> Float[Array, ""]:
    r"""Most ways to cut a feed-forward part of this width in training: $d_{ff}\, bw/F$."""
    return jnp.asarray(d_ff, float) * link_bytes_per_s / flop_per_s


def generation_tensor_limit(d_ff: Number, batch: Number, memory_over_link: Number) -> Float[Array, ""]:
    r"""Most ways to cut it in generation, where weights are read from memory: $d_{ff}/(B \beta)$, beta = bw_hbm/bw."""
    return jnp.asarray(d_ff, float) / (batch * memory_over_link)


def mixed_critical_tokens(
    d_ff: Number, flop_per_s: Number, link_bytes_per_s: Number, *, data_axes: Number = 2.0, tensor_axes: Number = 1.0
) -> Float[Array, ""]:
    r"""Fewest tokens per chip with weights cut over data and tensor: $4 \alpha^2/(M_X M_Y d_{ff})$, M links each."""
    alpha = jnp.asarray(flop_per_s, float) / link_bytes_per_s
    return 4 * alpha**2 / (data_axes * tensor_axes * d_ff)


def best_data_degree(
    batch_tokens: Number, chips: Number, d_ff: Number, *, data_axes: Number = 2.0, tensor_axes: Number = 1.0
) -> Float[Array, ""]:
    r"""Ways to cut data that exchange least, the rest being tensor: $\sqrt{(M_X/M_Y)\, B n/d_{ff}}$, B in tokens."""
    return jnp.sqrt(jnp.asarray(data_axes, float) / tensor_axes * batch_tokens * chips / d_ff)


def pipeline_bubble(stages: Number, micro_batches: Number) -> Float[Array, ""]:
    """Share of time that stages idle while the pipeline fills and drains: (P - 1)/(M + P - 1)."""
    return (jnp.asarray(stages, float) - 1) / (micro_batches + stages - 1)


def gather_s(payload_bytes: Number, link_bytes_per_s: Number) -> Float[Array, ""]:
    """Time for every chip to receive a payload that is spread over them; almost all of it passes each link."""
    return jnp.asarray(payload_bytes, float) / link_bytes_per_s


class TrainingState(eqx.Module):
    """Bytes that training keeps per parameter, and per activation that it checkpoints; the mixed-precision default.

    Weights and gradients in bf16, optimiser in fp32: a master copy and two moments of Adam.
    """

    weight_bytes: float = 2.0
    gradient_bytes: float = 2.0
    optimiser_bytes: float = 12.0
    activation_bytes: float = 2.0
    checkpoints_per_layer: float = 1.0  # of width d_model; the rest is computed again

    def __check_init__(self):
        require_positive(self, "weight_bytes", "gradient_bytes", "optimiser_bytes", "activation_bytes", zero=True)
        require_positive(self, "checkpoints_per_layer", zero=True)

    @property
    def bytes_per_parameter(self) -> float:
        """All that scales with parameters."""
        return self.weight_bytes + self.gradient_bytes + self.optimiser_bytes


class TrainingBytes(NamedTuple):
    """Bytes on one chip."""

    weights: Float[Array, ""]
    gradients: Float[Array, ""]
    optimiser: Float[Array, ""]
    activations: Float[Array, ""]

    @property
    def total(self) -> Float[Array, ""]:
        """Their sum."""
        return self.weights + self.gradients + self.optimiser + self.activations


def training_bytes_per_chip(
    state: TrainingState, n_total: Number, *, layers: Number, d_model: Number, tokens: Number,
    data: Number = 1.0, tensor: Number = 1.0, pipeline: Number = 1.0, sharded: int = 3,
) -> TrainingBytes:  # fmt: skip
    """What a chip holds; `tokens` are those of a micro-batch of one data-parallel group.

    `sharded` says what data-parallel groups share: 0 nothing, 1 the optimiser, 2 also gradients, 3 also weights. Tensor
    parallelism cuts activations by sequence. A first stage of P keeps P micro-batches in flight for its 1/P of the
    layers, so P cancels in activations.
    """
    held = jnp.asarray(n_total, float) / (tensor * pipeline)
    weights, gradients, optimiser = (
        each * held / (data if sharded >= level else 1.0)
        for each, level in ((state.weight_bytes, 3), (state.gradient_bytes, 2), (state.optimiser_bytes, 1))
    )
    kept = state.checkpoints_per_layer * state.activation_bytes * d_model * layers * tokens / tensor
    return TrainingBytes(weights, gradients, optimiser, jnp.asarray(kept, float))


def fewest_chips(total_bytes: Number, hbm_bytes: Number, *, usable_memory: Number = 1.0) -> Float[Array, ""]:
    """Whole chips whose memory holds so many bytes."""
    return jnp.ceil(jnp.asarray(total_bytes, float) / (hbm_bytes * usable_memory) * (1 - 1e-12))


def stage_bytes_per_chip(
    weight_bytes: Number, cache_bytes_per_sequence: Number, micro_batch: Number, chips_per_stage: Number, stages: Number
) -> Float[Array, ""]:
    r"""Bytes on a chip that serves through P stages of E chips: $W/(E P) + b\, kv/E$.

    P micro-batches are in flight, each stage keeps its 1/P of their caches: P cancels. Lecture, 01:03 to 01:08.
    """
    weights = jnp.asarray(weight_bytes, float) / (chips_per_stage * stages)
    return weights + micro_batch * cache_bytes_per_sequence / chips_per_stage


def training_seconds(
    n_compute: Number, tokens: Number, chips: Number, flop_per_s: Number, mfu: Number, *,
    attention_flop_per_token: Number = 0.0,
) -> Float[Array, ""]:  # fmt: skip
    r"""Time to train, $(6 N + 3 a) D/(n F\, \text{MFU})$ in s; attention a (of a forward pass) if the MFU has it."""
    flop = (6 * jnp.asarray(n_compute, float) + 3 * attention_flop_per_token) * tokens
    return flop / (chips * flop_per_s * mfu)


class TrainingUtilisation(NamedTuple):
    """One speed, counted three ways."""

    mfu: Float[Array, ""]  # 6 N only
    mfu_with_attention: Float[Array, ""]
    hfu: Float[Array, ""]  # also what is computed again


def training_utilisation(
    tokens_per_s_per_chip: Number, n_compute: Number, flop_per_s: Number, *,
    attention_flop_per_token: Number = 0.0, recomputed: Number = 0.0,
) -> TrainingUtilisation:  # fmt: skip
    """Shares of the peak at a speed; `recomputed` is the share of a forward pass that runs again."""
    linear = 2 * jnp.asarray(n_compute, float)
    speed = jnp.asarray(tokens_per_s_per_chip, float) / flop_per_s
    forward = linear + attention_flop_per_token
    return TrainingUtilisation(3 * linear * speed, 3 * forward * speed, (3 + recomputed) * forward * speed)


def prefill_over_decode_servers(
    prefill_s: Number, step_s: Number, batch: Number, output_tokens: Number
) -> Float[Array, ""]:
    """Servers that prefill one prompt at a time per server that decodes a batch, so that neither waits."""
    return jnp.asarray(prefill_s, float) * batch / (step_s * output_tokens)
