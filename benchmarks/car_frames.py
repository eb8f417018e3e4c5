"""python -m benchmarks.car_frames: frames per second of the car's environment and of Gymnasium's CarRacing-v3."""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from benchmarks.arguments import positive_float, positive_int
from benchmarks.workloads import CAR, WORKLOADS, Workload

PIXELS = Workload("pixels", "CarRacing-v3", (), 0)


def main(args: Sequence[str] | None = None) -> int:
    """Measure both environments in turn, and print the medians and their ratio."""
    options = parse(args)
    numbers, pixels = Driver(WORKLOADS["C"].make_env()), Driver(PIXELS.make_env())
    pairs = [
        (numbers.frames_per_second(options.seconds), pixels.frames_per_second(options.seconds))
        for _ in range(options.windows)
    ]
    print(report(pairs))
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.car_frames", description=__doc__)
    parser.add_argument("--windows", type=positive_int, default=9, help="windows for each environment")
    parser.add_argument("--seconds", type=positive_float, default=2.0, help="length of a window")
    return parser.parse_args(args)


class Driver:
    """Step an environment with random actions.

    Args:
        env: The environment.
    """

    def __init__(self, env: gym.Env) -> None:
        self.env, self.rng = env, np.random.default_rng(0)
        self.low, self.high = (getattr(env.action_space, bound) for bound in ("low", "high"))
        env.reset(seed=0)

    def frames_per_second(self, seconds: float) -> float:
        """Return the frames per second over a window; a reset adds time and no frame."""
        frames, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            _, _, terminated, truncated, _ = self.env.step(self.rng.uniform(self.low, self.high).astype(np.float32))
            frames += 1
            if terminated or truncated:
                self.env.reset()
        return frames / (time.perf_counter() - start)


def report(pairs: Sequence[tuple[float, float]]) -> str:
    """Return a table of the medians, and of the ratio over windows that were measured in turn."""
    ratios = [numbers / pixels for numbers, pixels in pairs]
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return (
        f"| {CAR}, 15 numbers | CarRacing-v3, pixels | ratio, median (min to max) |\n"
        "| ---: | ---: | ---: |\n"
        f"| {medians[0]:,.0f} frames/s | {medians[1]:,.0f} frames/s "
        f"| {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) |"
    )


if __name__ == "__main__":
    sys.exit(main())
