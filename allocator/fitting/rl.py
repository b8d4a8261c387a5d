"""Forms of what reinforcement learning does, to be fitted."""

from functools import cache

import jax
import jax.numpy as jnp

from allocator.fitting.form import Column, Form, Parameter
from allocator.fitting.pretraining import SIZE, coefficient, exponent
from allocator.units import short_count

ERROR = Column("error_rate", "1", highest=1.0)
AMOUNT = Column("rl_amount", "RL FLOP, samples or tokens")
_ABSENT = -1e30  # log of a coefficient that does not apply to a row; -inf would make gradients NaN


@cache  # one form for the same sizes, so that it is compiled once
def rl_power(sizes: tuple[float, ...]) -> Form:
    """Tan et al., arXiv 2509.25300: a power law whose exponent rises with size, and a level for each size."""

    def terms(shape, rows):
        kmax, log_n0 = shape
        n, x = rows["n_active"], rows["rl_amount"]
        power = -kmax * jax.nn.sigmoid(n - log_n0) * x  # 1 / (1 + N0/N)
        return jnp.where(rows["level"][None, :] == jnp.arange(len(sizes))[:, None], power[None, :], _ABSENT)

    levels = tuple(
        Parameter(f"E_{short_count(size)}", "log10 error at 1 unit of RL", (-4.0, 2.0), (-40.0, 40.0), decades=True)
        for size in sizes
    )
    return Form(
        "rl-power",
        "error against RL, with an exponent that saturates in size",
        "log10 error = E(N) - k(N) log10 X, k(N) = Kmax / (1 + N0/N)",
        (SIZE, AMOUNT),
        ERROR,
        levels,
        (
            Parameter("Kmax", "1", (0.01, 0.5), (1e-6, 10.0), essential=True),
            Parameter("N0", "parameter", (-3.0, 3.0), (-20.0, 20.0), log=True, scale_of="n_active"),
        ),
        terms,
        sizes=sizes,
        kind="rl-power",
    )


PASS_RATE = Column("pass_rate", "1", "plain", lowest=0.0, highest=1.0)


def _sigmoid(shape, rows):
    slope, log_mid = shape
    x = rows["rl_amount"]
    log_x = jnp.log(jnp.where(x > 0, x, 1.0))
    gained = jnp.where(x > 0, jax.nn.sigmoid(slope * (log_x - log_mid)), 0.0)
    return jnp.stack([1 - gained, gained])


RL_SIGMOID = Form(
    "rl-sigmoid",
    "pass rate against RL, from a floor to a ceiling",
    "pass = R0 + (A - R0) / (1 + (mid/X)^B)",
    (Column("rl_amount", "RL compute, steps or tokens", "ratio", lowest=0.0),),
    PASS_RATE,
    (Parameter("R0", "1", (0.0, 0.3), (0.0, 1.0)), Parameter("A", "1", (0.3, 1.0), (0.0, 1.0))),
    (
        Parameter("B", "1", (0.3, 3.0), (0.01, 20.0), essential=True),
        Parameter("mid", "as rl_amount", (-3.0, 3.0), (-20.0, 20.0), log=True, scale_of="rl_amount"),
    ),
    _sigmoid,
    positive=False,
    read_at_unit=False,
)

RL_TOKENS = Column("d_rl", "token", "ratio", lowest=0.0)
RHO = exponent("rho")
R0 = Parameter("R0", "token", (-6.0, 1.0), (-25.0, 15.0), log=True, scale_of="d_rl")


def log_saturating(rho, log_r0, d_rl):
    """Log of (1 + R/R0)^-rho."""
    return -rho * jnp.log1p(d_rl * jnp.exp(-log_r0))


def _saturating(shape, rows):
    rho, log_r0 = shape
    falls = log_saturating(rho, log_r0, rows["d_rl"])
    return jnp.stack([jnp.zeros_like(falls), falls])


RL_SATURATING = Form(
    "rl-saturating",
    "loss against RL tokens",
    "loss = E + S (1 + R/R0)^-rho",
    (RL_TOKENS,),
    Column("loss", "nats or error"),
    (coefficient("E", "as loss"), coefficient("S", "as loss")),
    (RHO, R0),
    _saturating,
)
