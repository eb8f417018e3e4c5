"""Check the statistics over seeds against hand computations."""

import math

import numpy as np
import pytest

from td3_lightning.reporting.statistics import bootstrap_interval, interquartile_mean


def test_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert interquartile_mean([7]) == 7
    assert interquartile_mean([1, 2, 6]) == 3  # a quarter of 3 is none
    assert interquartile_mean([100, 2, 3, -50]) == 2.5
    assert interquartile_mean([1, 2, 3, 4, 1000]) == 3
    assert interquartile_mean(range(8)) == (2 + 3 + 4 + 5) / 4
    assert interquartile_mean([0, 0, 10, 20, 30, 30, 30, 99, 99]) == (10 + 20 + 30 + 30 + 30) / 5
    assert interquartile_mean([[1, 2, 3, 4, 1000], [0, 0, 0, 0, 5]]).tolist() == [3, 0]


def test_interval_is_a_bootstrap_interval() -> None:
    assert bootstrap_interval([5, 5, 5, 5, 5]) == (5, 5)
    # Five draws of 0 and 1 have the interquartile mean 1 if at least four are 1: 5 * 0.4^4 * 0.6 + 0.4^5 = 8.7% of
    # the time, and 0 in 33.7%, both more than 2.5%.
    assert bootstrap_interval([0, 1, 0, 1, 0]) == (0, 1)
    # The quarter-trimmed mean of n uniform draws from [0, 100] has the variance (winsorised) 416.7 / 0.5^2 / n.
    low, high = bootstrap_interval(np.arange(100), resamples=10_000)
    assert low == pytest.approx(49.5 - 1.96 * math.sqrt(16.67), abs=0.5)
    assert high == pytest.approx(49.5 + 1.96 * math.sqrt(16.67), abs=0.5)


def test_interval_of_a_curve_draws_whole_runs() -> None:
    runs = np.array([[0.0, 1, 2, 3, 4], [10, 11, 12, 13, 14]])  # (points, runs)
    low, high = bootstrap_interval(runs)
    assert low.shape == high.shape == (2,)
    assert (low[1] - low[0], high[1] - high[0]) == (10, 10)
