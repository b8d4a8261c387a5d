"""Bootstrap samples of runs: as weights (pairs) or as new targets (wild)."""

import numpy as np

# Webb's six points, for few clusters; mean 0, variance 1.
_WEBB = np.sqrt(np.array([0.5, 1.0, 1.5]))
_WEBB = np.concatenate([-_WEBB[::-1], _WEBB])
FEW_CLUSTERS = 12


def pair_weights(clusters: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """How often each run is drawn when clusters of runs are drawn with replacement; one row a draw."""
    groups, member = np.unique(clusters, return_inverse=True)
    counts = np.random.default_rng(seed).multinomial(len(groups), np.full(len(groups), 1 / len(groups)), size=draws)
    return counts[:, member].astype(float)


def wild_targets(
    predicted: np.ndarray, residual: np.ndarray, clusters: np.ndarray, draws: int, seed: int
) -> np.ndarray:
    """Predictions plus residuals whose sign (and, for few clusters, size) is drawn by cluster; one row a draw."""
    groups, member = np.unique(clusters, return_inverse=True)
    points = np.array([-1.0, 1.0]) if len(groups) >= FEW_CLUSTERS else _WEBB
    factors = np.random.default_rng(seed).choice(points, size=(draws, len(groups)))
    return predicted[None, :] + factors[:, member] * residual[None, :]
