"""Statistics over seeds, as recommended by rliable (Agarwal et al., 2021, https://arxiv.org/abs/2108.13264)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_SEEDS_FOR_INTERVAL = 5  # seeds


def interquartile_mean(scores: ArrayLike) -> NDArray[np.float64]:
    """Return the mean over the last axis, without its lowest and highest quarter, rounded down as in scipy's trim_mean.

    Args:
        scores: Scores, (..., runs).
    """
    ordered = np.sort(np.asarray(scores, float), axis=-1)
    cut = ordered.shape[-1] // 4
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1))


def bootstrap_interval(scores: ArrayLike, resamples: int = 2_000) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the 95% interval of the interquartile mean, from a bootstrap.

    Each resample draws as many runs as there are, with replacement. The scores of one run stay together, so the points
    of a curve are not independent.

    Args:
        scores: Scores, (points, runs) or (runs,).
        resamples: Number of resamples.

    Returns:
        The 2.5% and the 97.5% percentile, each (points,) or ().
    """
    runs = np.asarray(scores, float)
    drawn = np.random.default_rng(0).integers(runs.shape[-1], size=(resamples, runs.shape[-1]))
    low, high = np.percentile(interquartile_mean(runs[..., drawn]), [2.5, 97.5], axis=-1)
    return low, high


def mean_and_std(scores: ArrayLike) -> tuple[float, float]:
    """Return the mean of (n,) and its sample standard deviation, which is NaN for one run."""
    runs = np.asarray(scores, float)
    return float(runs.mean()), float(runs.std(ddof=1)) if len(runs) > 1 else float("nan")
