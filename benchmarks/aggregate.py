"""Statistics over seeds, as recommended by rliable (Agarwal et al., 2021, https://arxiv.org/abs/2108.13264)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_SEEDS_FOR_INTERVAL = 5  # seeds


def interquartile_mean(scores: ArrayLike) -> float:
    """Return the mean of (n,) without its lowest and highest quarter, rounded down as in scipy's trim_mean."""
    return float(_iqm(np.asarray(scores, float)))


def bootstrap_interval(scores: ArrayLike, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Return the 95% interval of the interquartile mean of (n,), from bootstrap resamples."""
    runs = np.asarray(scores, float)
    resampled = np.random.default_rng(seed).choice(runs, (resamples, len(runs)))
    low, high = np.percentile(_iqm(resampled), [2.5, 97.5])
    return float(low), float(high)


def mean_and_std(scores: ArrayLike) -> tuple[float, float]:
    """Return the mean of (n,) and its sample standard deviation, which is NaN for one run."""
    runs = np.asarray(scores, float)
    return float(runs.mean()), float(runs.std(ddof=1)) if len(runs) > 1 else float("nan")


def _iqm(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile mean over the last axis."""
    runs = scores.shape[-1]
    cut = runs // 4
    return np.asarray(np.sort(scores, axis=-1)[..., cut : runs - cut].mean(axis=-1))
