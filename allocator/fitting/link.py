"""The link from pre-training loss to downstream error, to be fitted."""

import jax.numpy as jnp

from allocator.fitting.form import Column, Form, Parameter


def _link(shape, rows):
    falls = jnp.exp(-jnp.exp(shape[0]) * rows["loss"])
    return jnp.stack([jnp.ones_like(falls), -falls])


LOSS_TO_ERROR = Form(
    "loss-to-error",
    "error against pre-training loss",
    "error(L) = epsilon - kappa exp(-gamma L)",
    (Column("loss", "nats/token", "shifted", lowest=0.0),),
    Column("error_rate", "1", "plain", highest=1.0),
    (Parameter("epsilon", "error", (0.0, 1.0), (1e-9, 1.0)), Parameter("kappa", "error", (0.0, 1.0), (1e-9, 50.0))),
    (Parameter("gamma", "token/nat", (-3.0, 1.5), (-12.0, 5.0), log=True, scale_of="loss", power=-1),),
    _link,
    positive=False,
    kind="loss-to-error",
)
