"""Repeated sampling over problems whose difficulty is beta-distributed."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.errors import LawError
from allocator.laws.checks import is_known, require_finite, require_positive
from allocator.laws.law import Point, PretrainingLaw, RlAxis
from allocator.laws.rl import NO_RL, SaturatingRl

_SHIFT = 20  # where Stirling's series is exact to double precision with four terms


def log_fail_at_k(mean: Float[Array, ""], spread: Float[Array, ""], k: Float[Array, ""]) -> Float[Array, ""]:
    r"""Log of the expected share of problems that k samples all miss, when pass@1 is Beta(mu nu, (1 - mu) nu).

    $$1 - \text{pass@}k = B(\mu\nu, (1 - \mu)\nu + k) / B(\mu\nu, (1 - \mu)\nu)$$
    """
    a, b = mean * spread, (1 - mean) * spread
    # Differences of log-gamma would cancel at large arguments. Each is Stirling's series after 20 steps of the
    # recurrence Γ(x + 1) = x Γ(x), and the four are combined term by term, so that only like signs add up.
    steps = b + jnp.arange(_SHIFT, dtype=float)
    recurrence = jnp.sum(jnp.log1p(a * k / (steps * (steps + a + k))))
    c = b + _SHIFT
    leading = (c + a - 0.5) * jnp.log1p(a * k / (c * (c + a + k))) - k * jnp.log1p(a / (c + k)) - a * jnp.log1p(k / c)
    tail = _tail_difference(c, a) - _tail_difference(c + k, a)
    return leading + tail - recurrence


def _tail_difference(x, a):
    """Stirling's tail 1/12x - 1/360x^3 + 1/1260x^5 - 1/1680x^7 at x + a less that at x, as a multiple of a."""
    p, q = 1 / x, 1 / (x + a)

    def ratio(power: int):  # (q^n - p^n) / (q - p)
        return sum(q**i * p ** (power - 1 - i) for i in range(power))

    return -a * p * q * (1 / 12 - ratio(3) / 360 + ratio(5) / 1260 - ratio(7) / 1680)


def log_surprise(log_fail: Float[Array, ""]) -> Float[Array, ""]:
    """Log of -log(1 - e^log_fail): of the loss that goes with a log probability of failing."""
    # -log(1 - e^t) is e^t to double precision once t < -37, and its log would underflow long before; near t = 0,
    # where nearly all fail, 1 - e^t is -expm1(t).
    certain, hopeless = log_fail < -37.0, log_fail > -0.7
    likely = jnp.log1p(-jnp.exp(jnp.where(certain | hopeless, -1.0, log_fail)))
    unlikely = jnp.log(-jnp.expm1(jnp.where(hopeless, log_fail, -1.0)))
    return jnp.where(certain, log_fail, jnp.log(-jnp.where(hopeless, unlikely, likely)))


class PassAtK(eqx.Module):
    r"""Approach 2 of T^2: pass@k from the pre-training loss.

    $$\mu = \theta_2 / (1 + e^{\theta_1 (L_0 - \theta_0)}),\quad \nu = e^{\theta_3 + \theta_4 L_0}$$

    The loss is -log pass@k. RL adds `rl_logit_exponent` log(1 + R/R0) to the logit of mu. Valid for k >= 1.
    Source: arXiv 2604.01411, section 3.2, which prints no constants; the RL shift is this project's assumption.
    """

    pretraining: PretrainingLaw
    th0: float  # loss at which pass@1 is half its limit, nats/token
    th1: float  # token/nat
    th2: float  # pass@1 at low loss
    th3: float
    th4: float  # token/nat
    rl: SaturatingRl | None = None  # its exponent is the logit's

    def __check_init__(self):
        require_positive(self, "th1", "th2")
        require_finite(self, "th0", "th3", "th4")
        if is_known(self.th2) and self.th2 >= 1:
            raise LawError(f"PassAtK.th2: pass@1 must stay < 1, got {self.th2}")

    @property
    def floor(self) -> float:
        """-log pass@k can reach 0."""
        return 0.0

    @property
    def rl_axis(self) -> RlAxis:
        """Coordinate of RL tokens."""
        return NO_RL if self.rl is None else self.rl

    def log_reducible(self, point: Point) -> Float[Array, ""]:
        """Natural log of -log pass@k."""
        loss = self.pretraining.floor + jnp.exp(self.pretraining.log_reducible(point.log_n, point.log_d))
        mean = self.th2 * jax.nn.sigmoid(-self.th1 * (loss - self.th0))
        if self.rl is not None:
            logit = jnp.log(mean) - jnp.log1p(-mean) - self.rl.log_factor(point.rl)
            mean = jax.nn.sigmoid(logit)
        spread = jnp.exp(self.th3 + self.th4 * loss)
        log_fail = log_fail_at_k(mean, spread, jnp.exp(point.log_k))
        return log_surprise(log_fail)
