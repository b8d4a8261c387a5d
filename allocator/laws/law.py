"""What the rest of the package may assume about a law."""

from typing import NamedTuple, Protocol

from jaxtyping import Array, Float


class Point(NamedTuple):
    """The four decisions in the solver's coordinates.

    `rl` is the RL factor's own coordinate: log(1 + R/R0) where it is finite at R = 0, log(R/R1) for a pure power.
    """

    log_n: Float[Array, ""]
    log_d: Float[Array, ""]
    rl: Float[Array, ""]
    log_k: Float[Array, ""]


class PretrainingLaw(Protocol):
    """Loss after pre-training, L0(N, D)."""

    @property
    def floor(self) -> Float[Array, ""] | float:
        """Loss that no N and D remove, in the law's unit."""
        ...

    def log_reducible(self, log_n: Float[Array, ""], log_d: Float[Array, ""]) -> Float[Array, ""]:
        """Natural log of L0 - floor."""
        ...

    def log_optimal_tokens(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """Log of the tokens that are compute-optimal for N when serving is free."""
        ...

    def size_exponents(self) -> tuple[float, float]:
        """Log-slopes of L0 - floor in N and in D, each where the other's term is negligible."""
        ...


class RlAxis(Protocol):
    """How RL tokens map to the solver's coordinate."""

    def tokens(self, rl: Float[Array, ""]) -> Float[Array, ""]:
        """RL tokens at a coordinate."""
        ...

    def coordinate(self, tokens: Float[Array, ""]) -> Float[Array, ""]:
        """Coordinate of RL tokens."""
        ...

    @property
    def allows_zero(self) -> bool:
        """Whether R = 0 is a lawful decision."""
        ...


class Law(Protocol):
    """Quality over all four decisions."""

    @property
    def floor(self) -> Float[Array, ""] | float:
        """Loss that no decision removes, in the law's unit."""
        ...

    @property
    def rl_axis(self) -> RlAxis:
        """Coordinate of RL tokens."""
        ...

    def log_reducible(self, point: Point) -> Float[Array, ""]:
        """Natural log of L - floor."""
        ...
