"""python -m benchmarks.env_step: time of a step of the training environments, and steps per second with workers.

The first table compares the CPU time of environments from `gymnasium.make` with that of the training environments. The
second one compares this process with workers, for environments that compute for a given time. All measurements take
turns, and the tables show the best window of each, because other load on the machine slows down all of them.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import exit_on_usage_errors, non_negative_int, positive_float, positive_int
from benchmarks.busy import Busy
from benchmarks.machine import describe, limit_cores
from td3_lightning.envs.make import make_wrapped
from td3_lightning.envs.spaces import check_box
from td3_lightning.envs.vector_env import EnvList, TrainingVectorEnv
from td3_lightning.envs.workers import Workers


def main(args: Sequence[str] | None = None) -> int:
    """Measure, and print the conditions and the tables."""
    options = parse(args)
    conditions = describe("env_step", limit_cores(max(1, options.workers)))
    print("\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    with exit_on_usage_errors():
        print(f"\n{cost_table(options)}" if options.num_envs else "")
        print(f"\n{worker_table(options)}" if options.workers else "")
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.env_step", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--env", default="HalfCheetah-v5", help="environment of the first table")
    parser.add_argument("--num_envs", type=positive_int, nargs="*", default=[1, 64], help="numbers of environments")
    parser.add_argument("--workers", type=non_negative_int, default=2, help="processes of the second table; 0 omits it")
    parser.add_argument("--milliseconds", type=float, nargs="*", default=[0.05, 1, 5, 20], help="costs of a step")
    parser.add_argument("--windows", type=positive_int, default=200, help="windows of each measurement")
    parser.add_argument("--seconds", type=positive_float, default=0.01, help="length of a window")
    return parser.parse_args(args)


def cost_table(options: argparse.Namespace) -> str:
    """Return a table of the microseconds per environment and step."""
    rows = [
        "| environments | gymnasium.make (us) | training (us) | difference (us) | ratio |",
        "|---:|---:|---:|---:|---:|",
    ]
    for num_envs in options.num_envs:
        ours = TrainingVectorEnv(EnvList(partial(make_wrapped, options.env, {}, ()), num_envs))
        alone = [gym.make(options.env) for _ in range(num_envs)]
        check_box(alone[0], "actions", options.env)
        for seed, env in enumerate(alone):
            env.reset(seed=seed)
        ours.reset()
        action = actions(ours)
        calls: dict[str, Callable[[], Any]] = {
            "alone": partial(step_alone, alone, action),
            "ours": partial(ours.step, action),
        }
        fastest = measure(calls, options, time.thread_time)
        raw, own = (fastest[name] / num_envs * 1e6 for name in calls)
        rows.append(f"| {num_envs} | {raw:.1f} | {own:.1f} | {own - raw:.1f} | {own / raw:.2f} |")
        ours.close()
    return "\n".join(rows)


def step_alone(envs: Sequence[gym.Env], action: NDArray[np.float32]) -> None:
    """Step environments one by one, and reset those whose episode ends."""
    for env, own in zip(envs, action, strict=True):
        _, _, terminated, truncated, _ = env.step(own)
        if terminated or truncated:
            env.reset()


def worker_table(options: argparse.Namespace) -> str:
    """Return a table of the environment steps per second."""
    rows = [f"| ms per step | in process | {options.workers} workers |", "|---:|---:|---:|"]
    for milliseconds in options.milliseconds:
        make = partial(Busy, milliseconds)
        in_process, workers = EnvList(make, options.workers), Workers(make, range(options.workers), "Busy")
        envs = {"in process": TrainingVectorEnv(in_process), "workers": TrainingVectorEnv(workers)}
        action = actions(envs["in process"])
        for each in envs.values():
            each.reset()
        fastest = measure({name: partial(each.step, action) for name, each in envs.items()}, options, time.perf_counter)
        speeds = [f"{options.workers / seconds:,.0f}" for seconds in fastest.values()]
        rows.append(f"| {milliseconds:g} | {' | '.join(speeds)} |")
        for each in envs.values():
            each.close()
    return "\n".join(rows)


def actions(envs: TrainingVectorEnv) -> NDArray[np.float32]:
    """Return random actions."""
    box: Any = envs.vector.single_action_space
    return np.random.default_rng(0).uniform(box.low, box.high, (envs.num_envs, *box.shape)).astype(np.float32)


def measure(
    calls: Mapping[str, Callable[[], Any]], options: argparse.Namespace, clock: Callable[[], float]
) -> dict[str, float]:
    """Return the seconds per call in the best window of each, by the given clock."""
    fastest = dict.fromkeys(calls, float("inf"))
    for _ in range(options.windows):
        for name, call in calls.items():
            count, start = 0, clock()
            while (spent := clock() - start) < options.seconds:
                call()
                count += 1
            fastest[name] = min(fastest[name], spent / count)
    return fastest


if __name__ == "__main__":
    sys.exit(main())
