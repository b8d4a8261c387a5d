"""How much RL and test time remove the same errors."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)

# Below these, ratios that are 0/0 in the limit are taken from their series.
_SMALL_EXPONENT, _SMALL_PRODUCT = 0.02, 0.01


def log_joint_factor(
    log_f: Float[Array, ""], log_g: Float[Array, ""], overlap: Float[Array, ""] | float
) -> Float[Array, ""]:
    r"""Log of h(R, k) for RL factor f <= 1, test-time factor g <= 1 and overlap om >= 0.

    $$h = (u^{\omega} + v^{\omega} - 1)^{-1/\omega},\quad u = 1/f,\ v = 1/g$$

    om = 0 is the product f g, om -> infinity is min(f, g). With x = log u, y = log v, a = om x, b = om y this is
    log h = -(x + y) - log(1 - (1 - e^-a)(1 - e^-b)) / om, which has no cancellation and no special case at om = 0
    once the last term is written as om x y E(a) E(b) Λ(P); where 1 - P is small it is summed from its own parts.
    """
    return _log_joint(-log_f, -log_g, jnp.asarray(overlap, float))


@jax.custom_jvp
def _log_joint(x, y, om):
    a, b = om * x, om * y
    product = jnp.expm1(-a) * jnp.expm1(-b)
    near_product = product < 0.5
    # Each branch is evaluated at harmless arguments where the other one counts, or gradients would be NaN.
    a_near, b_near = jnp.where(near_product, a, 0.0), jnp.where(near_product, b, 0.0)
    p_near = jnp.expm1(-a_near) * jnp.expm1(-b_near)
    common = om * x * y * _mean_decay(a_near) * _mean_decay(b_near) * _log_ratio(p_near)
    # `where`, not min and max: at a tie their second derivatives would be wrong. The formula is symmetric.
    swap = a > b
    low = jnp.where(near_product, 1.0, jnp.where(swap, b, a))
    high = jnp.where(near_product, 1.0, jnp.where(swap, a, b))
    safe_om = jnp.where(near_product, 1.0, om)
    far = (low - jnp.log1p(jnp.exp(low - high) - jnp.exp(-high))) / safe_om
    return -(x + y) + jnp.where(near_product, common, far)


@partial(_log_joint.defjvp, symbolic_zeros=True)
def _log_joint_jvp(primals, tangents):
    """Slopes -e^a / (e^a + e^b - 1) and its mirror image, far cheaper than differentiating the cases above.

    Only the slope in om, which few ask for, is 0/0 at om = 0 and comes from those cases.
    """
    x, y, om = primals
    swap = y > x
    low, high = jnp.where(swap, x, y), jnp.where(swap, y, x)
    ratio = jnp.exp(om * (low - high))
    of_high = 1 / (1 + ratio - jnp.exp(-om * high))
    of_low = ratio * of_high
    slopes = {
        0: lambda dx: -jnp.where(swap, of_low, of_high) * dx,
        1: lambda dy: -jnp.where(swap, of_high, of_low) * dy,
        2: lambda dom: jax.jvp(lambda om: _log_joint.fun(x, y, om), (om,), (dom,))[1],
    }
    moved = [slopes[i](tangent) for i, tangent in enumerate(tangents) if type(tangent) is not SymbolicZero]
    return _log_joint(x, y, om), sum(moved, jnp.zeros_like(x))


def _mean_decay(a):
    """(1 - e^-a) / a, which is 1 at a = 0."""
    small = a < _SMALL_EXPONENT
    series = 1 - a / 2 * (1 - a / 3 * (1 - a / 4 * (1 - a / 5 * (1 - a / 6 * (1 - a / 7 * (1 - a / 8))))))
    safe = jnp.where(small, 1.0, a)
    return jnp.where(small, series, -jnp.expm1(-safe) / safe)


def _log_ratio(p):
    """-log(1 - p) / p, which is 1 at p = 0."""
    small = p < _SMALL_PRODUCT
    q = jnp.where(small, p, 0.0)
    series = 1 + q * (1 / 2 + q * (1 / 3 + q * (1 / 4 + q * (1 / 5 + q * (1 / 6 + q * (1 / 7 + q * (1 / 8 + q / 9)))))))
    safe = jnp.where(small, 0.5, p)
    return jnp.where(small, series, -jnp.log1p(-safe) / safe)
