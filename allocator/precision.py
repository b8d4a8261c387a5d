"""Double precision: 1e26 FLOP times 1e14 tokens overflows 32 bits, so modules that need JAX import this first."""

import jax

from allocator.errors import PrecisionError

jax.config.update("jax_enable_x64", True)


def require_float64() -> None:
    """Raise when somebody switched JAX back to 32 bits after this package was imported."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise PrecisionError('allocator needs float64: add jax.config.update("jax_enable_x64", True)')
