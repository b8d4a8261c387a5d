"""What the phases cost, in FLOP, chip-hours, USD and joules.

A phase's model FLOP are c N tokens with c = 6 (pre-training), kappa (RL) or 2 (serving). Its paid FLOP are model FLOP
times an overhead, so that all phases are counted at the pre-training MFU; chip-seconds follow from
paid FLOP / (peak x pre-training MFU).
"""

from math import nan
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.laws.checks import is_known, require_number, require_positive
from allocator.roofline.rl import end_to_end_mfu
from allocator.units import SECONDS_PER_HOUR

PRETRAIN_FLOP_PER_PARAM_TOKEN = 6.0  # forward 2, backward 4; lecture, 01:20
SERVE_FLOP_PER_PARAM_TOKEN = 2.0  # forward only; lecture, 01:23
CURRENCIES = ("compute_flop", "chip_hours", "usd", "energy_joule")


class Overhead(Protocol):
    """Paid FLOP over useful FLOP, at the pre-training MFU."""

    def __call__(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """Overhead of a model with N active parameters."""
        ...


class Mfu(Protocol):
    """Model FLOP utilisation of a phase."""

    def __call__(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """MFU of a model with N active parameters, in (0, 1]."""
        ...


class Constant(eqx.Module):
    """The same overhead or MFU at every size."""

    value: float

    def __check_init__(self):
        require_positive(self, "value")

    def __call__(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """The value, dimensionless."""
        return jnp.asarray(self.value, float)


def _as_function(value: Overhead | Mfu | float) -> Any:
    """Take a number for the same number at every N."""
    return _as_pytree(value) if callable(value) else Constant(value)


def _as_mfu(value: Mfu | float | None) -> Mfu | None:
    if not callable(value):
        require_number("Costs.pretrain_mfu", value, at_most=1.0)
    return None if value is None else _as_pytree(value) if callable(value) else Constant(value)


def _as_pytree(function: Any) -> Any:
    """A plain function is static; a module is a pytree whose numbers stay traceable."""
    return function if isinstance(function, eqx.Module | Partial) else Partial(function)


class RelativeOverhead(eqx.Module):
    """Overhead from MFUs: pre-training's over the phase's own, each a function of N."""

    pretrain: Mfu = eqx.field(converter=_as_function)
    phase: Mfu = eqx.field(converter=_as_function)

    def __call__(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """Overhead, dimensionless."""
        return self.pretrain(log_n) / self.phase(log_n)


class RolloutMfu(eqx.Module):
    """MFU of RL end to end: 2 of kappa FLOP are decoded, the rest is the learner's.

    kappa / (2 / MFU_decode + (kappa - 2) / MFU_train): the times of both parts add.
    """

    decode: Mfu = eqx.field(converter=_as_function)
    train: Mfu = eqx.field(converter=_as_function)
    flop_per_param_token: float  # kappa >= 2

    def __call__(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """MFU, dimensionless."""
        kappa = self.flop_per_param_token
        return end_to_end_mfu(self.decode(log_n), self.train(log_n), kappa)


class Machine(eqx.Module):
    """Where a phase runs; unknown figures are NaN, and then the currencies that need them are NaN."""

    peak_flop_per_s: float = nan  # dense, of the dtype in use
    usd_per_chip_hour: float = nan
    power_w: float = nan

    def __check_init__(self):
        values = {name: getattr(self, name) for name in ("peak_flop_per_s", "usd_per_chip_hour", "power_w")}
        require_positive(self, *(name for name, value in values.items() if is_known(value) and value == value))


class PhaseCost(eqx.Module):
    """One phase's price per parameter and token."""

    flop_per_param_token: float
    overhead: Overhead = eqx.field(converter=_as_function)
    machine: Machine = Machine()

    def __check_init__(self):
        require_positive(self, "flop_per_param_token")


class Rates(NamedTuple):
    """Cost per token of each decision at one N, and the cost that no decision changes."""

    d: Float[Array, ""]
    r: Float[Array, ""]
    k: Float[Array, ""]
    fixed: Float[Array, ""]


class Costs(eqx.Module):
    """Cost of a lifetime: pre-training, RL, and serving T output tokens k times plus the prompts once."""

    pretrain: PhaseCost
    rl: PhaseCost
    decode: PhaseCost
    prefill: PhaseCost  # on the machine of decode
    lifetime_tokens: float  # T, output tokens served at k = 1
    prompt_tokens: float = 0.0  # charged once per query, whatever k is
    pretrain_mfu: Mfu | None = eqx.field(converter=_as_mfu, default=None)  # None: then only FLOP can be counted

    def __check_init__(self):
        require_positive(self, "lifetime_tokens", "prompt_tokens", zero=True)

    def model_flop(self, n, d, r, k) -> tuple[Array, Array, Array]:
        """Useful FLOP of pre-training, RL and serving."""
        serve = self.decode.flop_per_param_token * k * self.lifetime_tokens
        serve = serve + self.prefill.flop_per_param_token * self.prompt_tokens
        return self.pretrain.flop_per_param_token * n * d, self.rl.flop_per_param_token * n * r, n * serve

    def phase_costs(self, log_n, d, r, k, currency: str = "compute_flop") -> tuple[Array, Array, Array]:
        """Cost of pre-training, RL and serving in a currency."""
        rates = self.rates(log_n, currency)
        return rates.d * d, rates.r * r, rates.k * k + rates.fixed

    def rates(self, log_n: Float[Array, ""], currency: str = "compute_flop") -> Rates:
        """Cost per pre-training token, RL token and unit of k at N = exp(log_n), and the prompts' fixed cost."""
        n = jnp.exp(log_n)

        def per_token(phase: PhaseCost, machine: Machine):
            paid_flop = n * phase.flop_per_param_token * phase.overhead(log_n)
            return paid_flop * self.price_of_flop(machine, currency, log_n)

        return Rates(
            per_token(self.pretrain, self.pretrain.machine),
            per_token(self.rl, self.rl.machine),
            per_token(self.decode, self.decode.machine) * self.lifetime_tokens,
            per_token(self.prefill, self.decode.machine) * self.prompt_tokens,
        )

    def price_of_flop(self, machine: Machine, currency: str, log_n: Float[Array, ""] | float):
        """Units of currency per paid FLOP."""
        if currency == "compute_flop":
            return 1.0
        if self.pretrain_mfu is None:
            return nan
        chip_seconds = 1 / (machine.peak_flop_per_s * self.pretrain_mfu(jnp.asarray(log_n)))
        if currency == "chip_hours":
            return chip_seconds / SECONDS_PER_HOUR
        if currency == "usd":
            return chip_seconds / SECONDS_PER_HOUR * machine.usd_per_chip_hour
        return chip_seconds * machine.power_w


def frozen(costs: Costs, log_n: Float[Array, ""] | float) -> Costs:
    """The same costs with every overhead and MFU held at its value at one N, as if they did not depend on it."""

    def hold(function: Overhead | Mfu) -> Constant:
        return Constant(float(function(jnp.asarray(log_n, float))))

    phases = {
        name: PhaseCost(phase.flop_per_param_token, hold(phase.overhead), phase.machine)
        for name, phase in (("pretrain", costs.pretrain), ("rl", costs.rl), ("decode", costs.decode),
                            ("prefill", costs.prefill))
    }  # fmt: skip
    mfu = None if costs.pretrain_mfu is None else hold(costs.pretrain_mfu)
    return Costs(**phases, lifetime_tokens=costs.lifetime_tokens, prompt_tokens=costs.prompt_tokens, pretrain_mfu=mfu)
