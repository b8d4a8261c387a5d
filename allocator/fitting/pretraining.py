"""Forms of the loss after pre-training, to be fitted."""

import math

import jax.numpy as jnp

from allocator.fitting.form import Column, Form, Parameter
from allocator.laws.repetition import log_effective_tokens

SIZE = Column("n_active", "parameter")
TOKENS = Column("d_tokens", "token")
LOSS = Column("loss", "nats/token")

# Of coefficients, relative to the geometric mean of the loss; of exponents as they are.
COEFFICIENT_START, COEFFICIENT_BOUNDS = (-4.0, 0.0), (-25.0, 8.0)
EXPONENT_START, EXPONENT_BOUNDS = (0.05, 1.0), (1e-4, 10.0)


def coefficient(name: str, unit: str) -> Parameter:
    """A positive coefficient, estimated in logs."""
    return Parameter(name, unit, COEFFICIENT_START, COEFFICIENT_BOUNDS)


def exponent(name: str) -> Parameter:
    """A positive exponent."""
    return Parameter(name, "1", EXPONENT_START, EXPONENT_BOUNDS, essential=True)


E, A = coefficient("E", "nats/token"), coefficient("A", "nats/token at N = 1 parameter")
B = coefficient("B", "nats/token at D = 1 token")
ALPHA, BETA = exponent("alpha"), exponent("beta")


def _chinchilla(shape, rows):
    alpha, beta = shape
    n, d = rows["n_active"], rows["d_tokens"]
    return jnp.stack([jnp.zeros_like(n), -alpha * n, -beta * d])


CHINCHILLA = Form(
    "chinchilla",
    "loss as a sum of powers of model size and tokens",
    "L0(N, D) = E + A N^-alpha + B D^-beta",
    (SIZE, TOKENS),
    LOSS,
    (E, A, B),
    (ALPHA, BETA),
    _chinchilla,
    kind="chinchilla",
    pretraining="chinchilla",
)


def _gadre(shape, rows):
    h, six = shape[0], math.log(6.0)
    # M^h C^-h = (6 N^2)^-h and M^-h C^-h = (6 D^2)^-h
    n, d = rows["n_active"], rows["d_tokens"]
    return jnp.stack([jnp.zeros_like(n), -h * (2 * n + six), -h * (2 * d + six)])


_AT_ONE = "nats/token at M = 1 token/parameter and C = 1 FLOP"
GADRE = Form(
    "gadre",
    "loss by compute and over-training",
    "L0(N, D) = E + (p M^h + q M^-h) C^-h, M = D/N, C = 6 N D",
    (SIZE, TOKENS),
    LOSS,
    (E, coefficient("p", _AT_ONE), coefficient("q", _AT_ONE)),
    (exponent("h"),),
    _gadre,
    unit_point=6**-0.5,  # tokens and parameters, where M = 1 and C = 1
    kind="gadre",
    pretraining="gadre",
)


def _data_constrained(shape, rows):
    alpha, beta, log_r_star = shape
    n = rows["n_active"]
    worth = log_effective_tokens(rows["d_tokens"], rows["unique_tokens"], jnp.exp(log_r_star))
    return jnp.stack([jnp.zeros_like(n), -alpha * n, -beta * worth])


DATA_CONSTRAINED = Form(
    "data-constrained",
    "loss when tokens are repeated",
    "L0(N, D) = E + A N^-alpha + B D'^-beta; D' = U + U r_star (1 - exp(-(D/U - 1)/r_star)) in place of D > U",
    (SIZE, TOKENS, Column("unique_tokens", "token", like="d_tokens")),
    LOSS,
    (E, A, B),
    (ALPHA, BETA, Parameter("r_star", "epoch", (0.0, 5.0), (-5.0, 12.0), log=True)),
    _data_constrained,
    kind="chinchilla",
    pretraining="chinchilla",
)
