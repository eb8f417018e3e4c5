"""Numbers over seeds, as rliable advises (Agarwal et al., 2021, https://arxiv.org/abs/2108.13264)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEWEST_FOR_AN_INTERVAL = 5  # seeds


def interquartile_mean(scores: ArrayLike) -> float:
    """The mean without the lowest and the highest quarter of (n,); a quarter is rounded down, as scipy's trim_mean."""
    return float(_iqm(np.asarray(scores, float)))


def bootstrap_interval(scores: ArrayLike, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """The 95% interval of the interquartile mean of (n,): percentiles of runs drawn anew, with replacement."""
    runs = np.asarray(scores, float)
    drawn = np.random.default_rng(seed).choice(runs, (resamples, len(runs)))
    low, high = np.percentile(_iqm(drawn), [2.5, 97.5])
    return float(low), float(high)


def mean_and_std(scores: ArrayLike) -> tuple[float, float]:
    """The mean of (n,) and its sample standard deviation, which one run does not have (NaN)."""
    runs = np.asarray(scores, float)
    return float(runs.mean()), float(runs.std(ddof=1)) if len(runs) > 1 else float("nan")


def _iqm(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last axis."""
    runs = scores.shape[-1]
    cut = runs // 4
    return np.asarray(np.sort(scores, axis=-1)[..., cut : runs - cut].mean(axis=-1))
