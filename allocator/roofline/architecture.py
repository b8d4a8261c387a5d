"""A model by its dimensions: the one place from which parameters, FLOP and cache are counted."""

import equinox as eqx
import jax.numpy as jnp

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.catalog import Record
from allocator.errors import CatalogError
from allocator.laws.checks import require_positive
from allocator.roofline.shape import Dimensions, Shape


class Architecture(eqx.Module):
    """Layers of attention and feed-forward parts; norms and biases are left out, as are indexers and linear states.

    With `mla_rank` keys and values come from a latent; `head_dim` is then a query head with its rotary part.
    """

    layers: float
    d_model: float
    n_heads: float
    n_kv_heads: float
    head_dim: float
    d_ff: float  # of a dense feed-forward part
    vocab: float
    tied: bool = eqx.field(static=True, default=False)  # one matrix for both embeddings
    matrices: float = 3.0  # of a feed-forward part: gate, up and down; 2 without a gate
    moe_layers: float = 0.0
    experts: float = 0.0
    experts_active: float = 0.0
    experts_shared: float = 0.0
    d_expert: float = 0.0
    window: float = 0.0
    window_layers: float = 0.0
    mla_rank: float = 0.0
    mla_rope: float = 0.0
    mla_query_rank: float = 0.0

    def __check_init__(self):
        require_positive(self, "layers", "d_model", "n_heads", "head_dim")

    @property
    def attention_parameters(self):
        """Parameters of a layer's attention."""
        d, heads, width = self.d_model, self.n_heads, self.head_dim
        grouped = 2 * d * width * (heads + self.n_kv_heads)
        inner = width - self.mla_rope  # without the rotary part; values are as wide
        rank = jnp.where(jnp.asarray(self.mla_query_rank) > 0, self.mla_query_rank, 1.0)
        query = jnp.where(jnp.asarray(self.mla_query_rank) > 0, rank * (d + heads * width), d * heads * width)
        latent = query + d * (self.mla_rank + self.mla_rope) + heads * inner * (2 * self.mla_rank + d)
        return jnp.where(jnp.asarray(self.mla_rank) > 0, latent, grouped)

    @property
    def n_routed(self):
        """Parameters of all routed experts."""
        return self.moe_layers * self.experts * self.matrices * self.d_model * self.d_expert

    @property
    def n_shared(self):
        """Parameters outside routed experts, both embeddings included."""
        dense = (self.layers - self.moe_layers) * self.d_ff
        shared = self.moe_layers * self.experts_shared * self.d_expert
        router = self.moe_layers * self.experts * self.d_model
        head = self.vocab * self.d_model
        widths = self.matrices * self.d_model * (dense + shared)
        return self.layers * self.attention_parameters + widths + router + head * (1 if self.tied else 2)

    @property
    def routed_share(self):
        """Share of a layer's routed experts that a token visits; 1 for a dense model."""
        some = jnp.asarray(self.experts) > 0
        return jnp.where(some, self.experts_active / jnp.where(some, self.experts, 1.0), 1.0)

    @property
    def n_total(self):
        """All parameters."""
        return self.n_shared + self.n_routed

    @property
    def n_active(self):
        """Parameters that a token uses."""
        return self.n_shared + self.n_routed * self.routed_share

    @property
    def n_compute(self):
        """Active parameters that multiply: an untied input embedding is a look-up and costs nothing."""
        return self.n_active - (0.0 if self.tied else self.vocab * self.d_model)

    @property
    def kv_elements(self):
        """Elements of cache that a layer keeps of a token: keys and values of the KV heads, or the latent."""
        return jnp.where(
            jnp.asarray(self.mla_rank) > 0, self.mla_rank + self.mla_rope, 2 * self.n_kv_heads * self.head_dim
        )

    def attention_flop_per_pair(self, *, absorbed: bool):
        """FLOP of a layer's attention per query and key: scores and values, 2 FLOP a multiply-add.

        `absorbed` counts latent attention as decoding computes it, on the latent; training and prefill expand it.
        """
        expanded = 2 * self.n_heads * (2 * self.head_dim - self.mla_rope)
        on_latent = 2 * self.n_heads * (2 * self.mla_rank + self.mla_rope)
        return jnp.where(jnp.asarray(self.mla_rank) > 0, on_latent, expanded) if absorbed else jnp.asarray(expanded)

    def shape(self) -> Shape:
        """What a step of it reads and computes."""
        full = self.layers - self.window_layers
        per_pair = self.attention_flop_per_pair(absorbed=True)
        return Shape(
            n_active=self.n_active,
            n_shared=self.n_shared,
            n_routed=self.n_routed,
            routed_share=self.routed_share,
            kv_elements_per_token=self.kv_elements * full,
            kv_elements_window=self.kv_elements * self.window_layers * self.window,
            window=self.window,
            attention_flop=per_pair * full,
            attention_flop_window=per_pair * self.window_layers,
            n_compute=self.n_compute,
            dimensions=Dimensions(
                layers=self.layers,
                moe_layers=self.moe_layers,
                d_model=self.d_model,
                kv_heads=jnp.where(jnp.asarray(self.mla_rank) > 0, 1.0, self.n_kv_heads),  # pyright: ignore
                experts=self.experts,
                destinations=self.experts_active + self.experts_shared,
                query_heads=self.n_heads,
            ),
            attention_flop_prompt=self.attention_flop_per_pair(absorbed=False) * full,
        )


def architecture(record: Record) -> Architecture:
    """Build from a catalogue model; raise `CatalogError` where it lacks a dimension, or where the table counts
    parameters or cache that these dimensions do not make: projections of positions, linear layers, indexers,
    compressed caches."""

    def number(name: str, default: float | None = None) -> float:
        value = record.fields.get(name)
        if isinstance(value, float):
            return value
        if default is None:
            raise CatalogError(f"{record.name}: {name} is not known, so its parameters cannot be counted")
        return default

    layers, window = number("layers"), number("window", 0.0)
    counted = [number(name) for name in ("n_total_computed", "n_active_computed", "kv_elems_per_token_marginal")]
    built = Architecture(
        layers=layers,
        d_model=number("d_model"),
        n_heads=number("n_heads"),
        n_kv_heads=number("n_kv_heads"),
        head_dim=number("head_dim"),
        d_ff=number("d_ff_dense", 0.0 if number("n_moe_layers", 0.0) == layers else None),
        vocab=number("vocab"),
        tied=bool(record.fields.get("tied_embeddings")),
        moe_layers=number("n_moe_layers", 0.0),
        experts=number("n_experts", 0.0),
        experts_active=number("n_experts_active", 0.0),
        experts_shared=number("n_shared_experts", 0.0),
        d_expert=number("moe_d_ff", 0.0),
        window=window,
        window_layers=layers - number("n_full_attn_layers") if window else 0.0,
        mla_rank=number("mla_kv_rank", 0.0),
        mla_rope=number("mla_rope_dim", 0.0),
        mla_query_rank=number("mla_q_rank", 0.0),
    )
    own = (built.n_total, built.n_active, built.kv_elements * (layers - built.window_layers))
    if all(abs(float(mine) / theirs - 1) < 1e-3 for mine, theirs in zip(own, counted, strict=True)):
        return built
    raise CatalogError(f"{record.name}: its dimensions do not make its parameters and cache; a part is not modelled")
