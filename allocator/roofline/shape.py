"""A family of model shapes: one architecture, drawn larger or smaller, so that everything a step reads moves with N."""

import re

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.catalog import Record
from allocator.errors import CatalogError
from allocator.laws.checks import require_positive

WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
STATE_BYTES = 4.0  # of an element of a linear layer's state: fp32, whatever the cache's dtype


class Dimensions(eqx.Module):
    """Counts that collectives and layouts need."""

    layers: Float[Array, ""] | float
    moe_layers: Float[Array, ""] | float
    d_model: Float[Array, ""] | float
    kv_heads: float  # heads that the cache can be cut into; 1 where all heads share a latent
    experts: float  # routed experts of a layer; 0 for a dense model
    destinations: float  # experts that a token goes to, shared ones included
    query_heads: Float[Array, ""] | float


class Shape(eqx.Module):
    """What one step of a model reads and computes, per token and per sequence, at one size."""

    n_active: Float[Array, ""] | float
    n_shared: Float[Array, ""] | float  # parameters outside routed experts
    n_routed: Float[Array, ""] | float  # parameters of all routed experts
    routed_share: Float[Array, ""] | float  # of a layer's routed experts, those that one token visits
    kv_elements_per_token: Float[Array, ""] | float  # in layers whose cache grows with context
    kv_elements_window: Float[Array, ""] | float  # in windows or linear states, once full
    window: Float[Array, ""] | float  # tokens after which those are full; 0 for linear states, which always are
    attention_flop: Float[Array, ""] | float  # per token of query and token of context, in layers without window
    attention_flop_window: Float[Array, ""] | float  # the same in layers with a window
    n_compute: Float[Array, ""] | float  # active parameters that multiply: without the input embedding, a look-up
    dimensions: Dimensions
    # The same as attention_flop where all tokens of a prompt pass at once: a latent cache is then spelt out into keys
    # and values, which takes fewer FLOP. None: as in decode.
    attention_flop_prompt: Float[Array, ""] | float | None = None

    def weight_bytes(self, tokens: Float[Array, ""], bytes_per_weight: float) -> Float[Array, ""]:
        """Bytes of weights that a step of so many tokens reads, under uniform routing."""
        return bytes_per_weight * (self.n_shared + self.n_routed * self.touched(tokens))

    def touched(self, tokens: Float[Array, ""]) -> Float[Array, ""]:
        """Share of a layer's routed experts that so many tokens visit, under uniform routing; one token at least."""
        return 1 - (1 - jnp.asarray(self.routed_share, float)) ** jnp.maximum(tokens, 1.0)

    def total_bytes(self, bytes_per_weight: float) -> Float[Array, ""]:
        """Bytes that all weights occupy."""
        return bytes_per_weight * (jnp.asarray(self.n_shared) + self.n_routed)

    def kv_bytes(self, context: Float[Array, ""], bytes_per_element: float) -> Float[Array, ""]:
        """Bytes of cache of one sequence, states of linear layers included."""
        filled = jnp.minimum(context / jnp.maximum(self.window, 1.0), 1.0)
        windows = jnp.where(jnp.asarray(self.window) > 0, filled, 0.0) * self.kv_elements_window
        return bytes_per_element * (self.kv_elements_per_token * context + windows) + self.state_bytes

    @property
    def state_bytes(self) -> Float[Array, ""]:
        """Bytes of the states of linear layers of one sequence, which each step reads and writes."""
        return jnp.where(jnp.asarray(self.window) > 0, 0.0, STATE_BYTES * self.kv_elements_window)

    def attention_flop_per_token(self, context: Float[Array, ""]) -> Float[Array, ""]:
        """FLOP of attention for one token that sees so much context."""
        return self.attention_flop * context + self.attention_flop_window * jnp.minimum(context, self.window)

    @property
    def full_attention_flop_prompt(self) -> Float[Array, ""] | float:
        """FLOP per pair of query and key in layers without window, where a prompt's tokens pass at once."""
        return self.attention_flop if self.attention_flop_prompt is None else self.attention_flop_prompt


class ShapeFamily(eqx.Module):
    """One architecture at every size.

    Layers, width and heads grow as N^(1/3) each; head dimension, KV heads, expert counts and sparsity stay. So the KV
    cache per token grows as N^(1/3), attention FLOP as N^(2/3) and weights as N.
    """

    reference: Shape

    def at(self, log_n: Float[Array, ""]) -> Shape:
        """The shape with N = exp(log_n) active parameters."""
        ref = self.reference
        ratio = jnp.exp(log_n) / ref.n_active
        third = ratio ** (1 / 3)
        return Shape(
            n_active=ref.n_active * ratio,
            n_shared=ref.n_shared * ratio,
            n_routed=ref.n_routed * ratio,
            routed_share=ref.routed_share,
            kv_elements_per_token=ref.kv_elements_per_token * third,
            kv_elements_window=ref.kv_elements_window * third,
            window=ref.window,
            attention_flop=ref.attention_flop * third**2,
            attention_flop_window=ref.attention_flop_window * third**2,
            n_compute=ref.n_compute * ratio,
            dimensions=Dimensions(
                layers=ref.dimensions.layers * third,
                moe_layers=ref.dimensions.moe_layers * third,
                d_model=ref.dimensions.d_model * third,
                kv_heads=ref.dimensions.kv_heads,
                experts=ref.dimensions.experts,
                destinations=ref.dimensions.destinations,
                query_heads=ref.dimensions.query_heads * third,
            ),
            attention_flop_prompt=None if ref.attention_flop_prompt is None else ref.attention_flop_prompt * third**2,
        )


def shape(record: Record) -> Shape:
    """Build a shape from a catalogue model; raise `CatalogError` where it lacks the dimensions."""

    def number(name: str, default: float | None = None) -> float:
        value = record.fields.get(name)
        if isinstance(value, float):
            return value
        if default is None:
            raise CatalogError(f"{record.name}: {name} is not known, so its roofline cannot be drawn")
        return default

    layers, full = number("layers"), number("n_full_attn_layers")
    total, d_model = number("n_total_computed"), number("d_model")
    experts, active = number("n_experts", 0.0), number("n_experts_active", 0.0)
    routed = number("n_moe_layers", 0.0) * experts * 3 * d_model * number("moe_d_ff", 0.0)  # gate, up and down
    if record.fields.get("mla_kv_rank") is not None:
        # Absorbed: scores against d_c + d_rope, values from d_c.
        per_layer = 2 * number("n_heads") * (2 * number("mla_kv_rank") + number("mla_rope_dim"))
        # Spelt out: keys of head_dim, values as wide as the keys without their rotary part.
        prompt = 2 * number("n_heads") * (2 * number("head_dim") - number("mla_rope_dim")) * full
    else:
        prompt = None
        per_layer = 4 * number("head_dim") * number("n_heads")
    window = number("window", 0.0)
    compressed = compressions(record)
    # Compressed caches hold one entry for so many tokens; each layer has its window beside.
    seen, windowed = (full, layers - full) if not compressed else (sum(n / by for by, n in compressed.items()), layers)
    built = Shape(
        n_active=number("n_active_computed"),
        n_shared=total - routed,
        n_routed=routed,
        routed_share=active / experts if experts else 1.0,
        kv_elements_per_token=number("kv_elems_per_token_marginal"),
        kv_elements_window=number("kv_const_elems_per_seq", 0.0),
        window=window,
        attention_flop=per_layer * seen,
        attention_flop_window=per_layer * windowed if window else 0.0,
        n_compute=number("n_active_noembed_computed"),
        dimensions=Dimensions(
            layers=layers,
            moe_layers=number("n_moe_layers", 0.0),
            d_model=d_model,
            kv_heads=1.0 if record.fields.get("mla_kv_rank") is not None else number("n_kv_heads"),
            experts=experts,
            destinations=active + number("n_shared_experts", 0.0),
            query_heads=number("n_heads"),
        ),
        attention_flop_prompt=prompt,
    )
    require_positive(built, "n_active", "n_shared", "kv_elements_per_token")
    return built


def compressions(record: Record) -> dict[float, float]:
    """Layers by how many tokens one entry of their cache stands for; empty where caches are not compressed."""
    told = re.search(r"KV compression \{([^}]*)\}", str(record.fields.get("attention") or ""))
    pairs = re.findall(r"(\d+): (\d+)", told[1]) if told else []
    return {float(by): float(count) for by, count in pairs}


def approximated(record: Record) -> str | None:
    """What of a catalogue model's attention is timed as more than it is; None where all of it is modelled."""
    attention = str(record.fields.get("attention") or "")
    if "sparse" not in attention:
        return None
    held = "all compressed entries" if compressions(record) else "all of the context"
    return f"attention to selected tokens ({attention}) is timed as if each token attended to {held}"
