"""Statistics over runs and episodes."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_SEEDS_FOR_INTERVAL = 5  # seeds of a bootstrap
MIN_SEEDS_FOR_QUARTILES = 4  # with fewer seeds, the interquartile mean is the mean
Z = 1.959963984540054  # 97.5% quantile of the normal distribution


def half_width(values: ArrayLike) -> NDArray[np.float64]:
    """Return half the width of the 95% interval of the mean (Student's t) over the first axis; NaN for one value.

    Args:
        values: Independent numbers, (n, ...).
    """
    numbers = np.asarray(values, float)
    if len(numbers) < 2:
        return np.full(numbers.shape[1:], np.nan)
    return np.asarray(t_quantile(len(numbers) - 1) * numbers.std(axis=0, ddof=1) / math.sqrt(len(numbers)))


def t_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t distribution, with an error below 0.2%.

    Source: closed forms for 1 and 2 degrees of freedom, else Abramowitz and Stegun, 26.7.5.
    """
    if freedom <= 2:
        return math.tan(0.475 * math.pi) if freedom == 1 else 0.95 * math.sqrt(2 / 0.0975)
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return math.fsum([Z, *(term / freedom**power for power, term in enumerate(terms, start=1))])


def interquartile_mean(scores: ArrayLike) -> NDArray[np.float64]:
    """Return the mean over the last axis, without its lowest and highest quarter, rounded down as in scipy's trim_mean.

    Args:
        scores: Scores, (..., runs).
    """
    ordered = np.sort(np.asarray(scores, float), axis=-1)
    cut = ordered.shape[-1] // 4
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1))


def bootstrap_interval(scores: ArrayLike, resamples: int = 2_000) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the 95% interval of the interquartile mean from a bootstrap, as recommended by rliable.

    Each resample draws as many runs as there are, with replacement. The scores of one run stay together, so the points
    of a curve are not independent. Source: Agarwal et al., 2021, https://arxiv.org/abs/2108.13264.

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
