"""Forms in all four levers, to be fitted to a table that varies them together."""

import jax.numpy as jnp
from jax.scipy.special import logsumexp

from allocator.fitting.form import Column, Form, Parameter
from allocator.fitting.pretraining import ALPHA, BETA, SIZE, TOKENS, coefficient
from allocator.fitting.rl import R0, RHO, RL_TOKENS, log_saturating
from allocator.fitting.test_time import GAMMA
from allocator.laws.overlap import log_joint_factor

SAMPLES = Column("k", "sample")
LOSS = Column("loss", "nats or error")
ERROR = Column("error_rate", "1", highest=1.0)
INPUTS = (SIZE, TOKENS, RL_TOKENS, SAMPLES)
# Where g(k) does more than scale a coefficient, g(1) has to be 1.
INPUTS_FROM_ONE = (*INPUTS[:3], Column("k", "sample", lowest=1.0, centred=False))
OVERLAP = Parameter("overlap", "1", (-3.0, 2.0), (-12.0, 6.0), log=True)
E = coefficient("E", "as loss")
A, B = coefficient("A", "as loss, at N = 1 parameter"), coefficient("B", "as loss, at D = 1 token")


def _log_rl_and_test_time(shape, rows):
    """Logs of f(R) and g(k), the exponents being the last three or, with overlap, those before it."""
    rho, log_r0, gamma = shape
    return log_saturating(rho, log_r0, rows["d_rl"]), -gamma * rows["k"]


def _log_joint(shape, rows):
    """Log of h(R, k); a shape of four parameters has an overlap."""
    log_f, log_g = _log_rl_and_test_time(shape[:3], rows)
    return log_f + log_g if len(shape) == 3 else log_joint_factor(log_f, log_g, jnp.exp(shape[3]))


def _base(shape, rows):
    alpha, beta = shape[:2]
    return -alpha * rows["n_active"], -beta * rows["d_tokens"]


def _product(shape, rows):
    n, d = _base(shape, rows)
    h = _log_joint(shape[2:], rows)
    return jnp.stack([jnp.zeros_like(n), n + h, d + h])


def _additive(shape, rows):
    n, d = _base(shape, rows)
    log_f, log_g = _log_rl_and_test_time(shape[2:], rows)
    return jnp.stack([jnp.zeros_like(n), n, d, log_f, log_g])


def _shared(shape, rows):
    n, d = _base(shape, rows)
    return jnp.stack([jnp.zeros_like(n), n, d, _log_joint(shape[2:], rows)])


def _coverage_base(shape, rows):
    n, d = _base(shape[2:], rows)
    return jnp.stack([jnp.zeros_like(n), n, d])


def _coverage(logs, shape, rows):
    log_guess, log_slope = shape[:2]
    reached = jnp.minimum(jnp.exp(logsumexp(logs, axis=0)), 1 - 1e-9)
    missed = jnp.minimum(jnp.exp(log_guess) + jnp.exp(log_slope) * reached, 1.0)
    log_sampling = jnp.log1p(-reached) + jnp.log(missed) + _log_joint(shape[4:], rows)
    return jnp.logaddexp(jnp.log(reached), log_sampling)


EXPONENTS = (ALPHA, BETA, RHO, R0, GAMMA)

PRODUCT = Form(
    "product",
    "RL and test time multiply what pre-training leaves",
    "L = E + (A N^-alpha + B D^-beta) (1 + R/R0)^-rho k^-gamma",
    INPUTS,
    LOSS,
    (E, A, B),
    EXPONENTS,
    _product,
    kind="chinchilla",
    pretraining="chinchilla",
)
ADDITIVE = Form(
    "additive",
    "RL and test time each remove a loss of their own",
    "L = E + A N^-alpha + B D^-beta + G_R (1 + R/R0)^-rho + G_k k^-gamma",
    INPUTS,
    LOSS,
    (E, A, B, coefficient("G_R", "as loss"), coefficient("G_k", "as loss")),
    EXPONENTS,
    _additive,
    kind="chinchilla",
    pretraining="chinchilla",
)
SHARED = Form(
    "shared",
    "RL and test time remove one shared sampling loss",
    "L = E + A N^-alpha + B D^-beta + G (1 + R/R0)^-rho k^-gamma",
    INPUTS,
    LOSS,
    (E, A, B, coefficient("G", "as loss")),
    EXPONENTS,
    _shared,
    kind="chinchilla",
    pretraining="chinchilla",
)
_SHARE = ((-6.0, -0.5), (-25.0, 0.0))
COVERAGE = Form(
    "coverage",
    "pre-training decides what can be answered, RL and samples how often it is",
    "error = 1 - (1 - E - b) (1 - (S0 + c (E + b)) (1 + R/R0)^-rho k^-gamma), b = A N^-alpha + B D^-beta",
    INPUTS_FROM_ONE,
    ERROR,
    (E, A, B),
    (Parameter("guess", "1", *_SHARE, log=True), Parameter("slope", "1", *_SHARE, log=True), *EXPONENTS),
    _coverage_base,
    combine=_coverage,
    kind="chinchilla",
    pretraining="chinchilla",
)


def with_overlap(form: Form) -> Form:
    """The form with h(R, k) = (f^-om + g^-om - 1)^(-1/om) in place of the product; needs k >= 1."""
    from dataclasses import replace

    return replace(
        form,
        name=f"{form.name}-overlap",
        title=f"{form.title}, overlapping",
        equation=form.equation.replace("(1 + R/R0)^-rho k^-gamma", "h, h = (f^-om + g^-om - 1)^(-1/om), "
                                       "f = (1 + R/R0)^-rho, g = k^-gamma"),
        inputs=INPUTS_FROM_ONE,
        shape=(*form.shape, OVERLAP),
    )  # fmt: skip
