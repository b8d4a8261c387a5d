"""Forms of what repeated sampling does, to be fitted."""

import jax
import jax.numpy as jnp
from jax.scipy.special import betaln

from allocator.fitting.form import Column, Form, Parameter
from allocator.fitting.pretraining import ALPHA, BETA, SIZE, TOKENS, coefficient, exponent
from allocator.laws.pass_at_k import log_fail_at_k, log_surprise

SAMPLES = Column("k", "sample", lowest=1.0)
SURPRISE = Column("loss", "nats (-log pass@k)")
GAMMA = exponent("gamma")

PASS_POWER = Form(
    "pass-at-k-power",
    "-log pass@k as a power of k",
    "-log pass@k = a k^-b",
    (SAMPLES,),
    SURPRISE,
    (coefficient("a", "nats at k = 1"),),
    (exponent("b"),),
    lambda shape, rows: (-shape[0] * rows["k"])[None, :],
)


def _t2_loss(shape, rows):
    alpha, beta, gamma = shape
    n, d, k = rows["n_active"], rows["d_tokens"], rows["k"]
    return jnp.stack([jnp.zeros_like(n), -alpha * n, -beta * d, -gamma * k])


T2_LOSS = Form(
    "t2-loss",
    "approach 1 of T^2: -log pass@k with a term in k",
    "L(N, D, k) = E + A N^-alpha + B D^-beta + G k^-gamma",
    (SIZE, TOKENS, SAMPLES),
    SURPRISE,
    (
        coefficient("E", "nats"),
        coefficient("A", "nats at N = 1 parameter"),
        coefficient("B", "nats at D = 1 token"),
        coefficient("G", "nats at k = 1"),
    ),
    (ALPHA, BETA, GAMMA),
    _t2_loss,
    kind="t2-loss",
    pretraining="chinchilla",
)


def _pass_at_k(shape, rows):
    th0, log_th1, log_th2, th3, th4 = shape
    loss = rows["pretraining_loss"]
    mean = jnp.exp(log_th2) * jax.nn.sigmoid(-jnp.exp(log_th1) * (loss - th0))
    spread = jnp.exp(th3 + th4 * loss)
    return log_surprise(jax.vmap(log_fail_at_k)(mean, spread, rows["k"]))[None, :]


PASS_AT_K = Form(
    "pass-at-k",
    "approach 2 of T^2: pass@k over beta-distributed problems, from the pre-training loss",
    "pass@k = 1 - B(mu nu, (1-mu) nu + k)/B(mu nu, (1-mu) nu), mu = th2/(1 + exp(th1 (L0 - th0))), "
    "nu = exp(th3 + th4 L0)",
    (Column("pretraining_loss", "nats/token", "ratio"), Column("k", "sample", "plain", lowest=1.0)),
    SURPRISE,
    (),
    (
        Parameter("th0", "nats/token", (0.5, 1.5), (-20.0, 20.0), scale_of="pretraining_loss"),
        Parameter(
            "th1", "token/nat", (0.0, 3.0), (-7.0, 7.0), log=True, scale_of="pretraining_loss", power=-1, essential=True
        ),
        Parameter("th2", "1", (-3.0, -0.1), (-20.0, -1e-9), log=True, essential=True),
        Parameter("th3", "1", (-3.0, 6.0), (-200.0, 200.0)),
        Parameter("th4", "token/nat", (-5.0, 5.0), (-200.0, 200.0), scale_of="pretraining_loss", power=-1),
    ),
    _pass_at_k,
    kind="pass-at-k",
)


def _beta_binomial(shape, rows):
    a, b = jnp.exp(shape[0]), jnp.exp(shape[1])
    n, c = rows["n_samples"], rows["n_correct"]
    # Both in one call: its second derivatives take long to compile.
    after, before = betaln(jnp.stack([c + a, jnp.full_like(c, a)]), jnp.stack([n - c + b, jnp.full_like(c, b)]))
    return after - before - betaln(c + 1, n - c + 1) - jnp.log1p(n)


def _mean_correct(shape, rows):
    return (rows["n_samples"] * jax.nn.sigmoid(shape[0] - shape[1]))[None, :]


BETA_BINOMIAL = Form(
    "beta-binomial",
    "problems' success rates are beta-distributed; pass@k follows for any k",
    "pass@k = 1 - B(a, b + k)/B(a, b)",
    (Column("n_samples", "sample", "plain", lowest=1.0),),
    Column("n_correct", "sample", "plain", lowest=0.0),
    (),
    (
        Parameter("a", "1", (-3.0, 2.0), (-15.0, 15.0), log=True),
        Parameter("b", "1", (-1.0, 8.0), (-15.0, 25.0), log=True),
    ),
    _mean_correct,
    positive=False,
    log_likelihood=_beta_binomial,
)
