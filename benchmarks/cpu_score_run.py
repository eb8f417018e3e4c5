"""One run of benchmarks.score_per_hour: train for a CPU time, and evaluate about every minute of it.

    python -m benchmarks.cpu_score_run AGENT TASK SEED SECONDS FILE WORDS...

The process appends one JSON line to FILE for each evaluation: frames, seconds of CPU time without evaluations, and the
mean return. WORDS are a configuration with flags for our agents, and the checkout of the author's TD7 for others.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.score_run import Policy, learn, mean_return

EPISODES = 10
INTERVAL = 60.0  # seconds of CPU time between evaluations
NO_END = 10**8


@dataclass(frozen=True)
class CpuTask:
    """An environment, and what differs between the zoo's settings of tasks.

    Args:
        env_id: The environment.
        gamma: The discount of TD3 in the zoo.
        buffer_size: The replay capacity of TD3 in the zoo.
    """

    env_id: str
    gamma: float = 0.99
    buffer_size: int = 1_000_000


TASKS = {
    "halfcheetah": CpuTask("HalfCheetah-v4"),
    "walker2d": CpuTask("Walker2d-v4"),
    "ant": CpuTask("Ant-v4"),
    "lander": CpuTask("LunarLanderContinuous-v3", 0.98, 200_000),
}


class CpuScorer:
    """A clock of this process's CPU time that is paused during evaluations, and the file of their results.

    Args:
        path: The file for one JSON line per evaluation.
        budget: Seconds after which the process ends.
    """

    def __init__(self, path: Path, budget: float) -> None:
        self.path, self.budget = path, budget
        self._next, self._paused, self._parent = INTERVAL, 0.0, os.getppid()
        self._stopped: float | None = None  # the CPU time at which the clock was stopped

    def seconds(self) -> float:
        """Return the CPU time without evaluations."""
        return (time.process_time() if self._stopped is None else self._stopped) - self._paused

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the CPU time of a block, which may contain such a block."""
        if self._stopped is not None:
            yield
            return
        self._stopped = time.process_time()
        yield
        self._paused += time.process_time() - self._stopped
        self._stopped = None

    def evaluate(self, frames: int, policy: Policy, make_env: Callable[[], gym.Env[Any, Any]]) -> None:
        """Evaluate if it is due. End the process after the budget."""
        seconds = self.seconds()
        if seconds < self._next:
            return
        if os.getppid() != self._parent:  # the benchmark was killed, and may have started this run again
            os._exit(1)
        self._next = seconds + INTERVAL
        with self.pause():
            mean = mean_return(policy, make_env(), EPISODES)
        with self.path.open("a") as file:
            file.write(json.dumps({"frames": frames, "seconds": round(seconds, 1), "return": round(mean, 1)}) + "\n")
        if seconds >= self.budget:
            os._exit(0)  # the libraries' loops have no common way to stop


def train_ours(seed: str, budget: str, path: Path, words: list[str]) -> int:
    """Train with `td3-lightning fit`. An epoch of 1,000 steps gives an evaluation about every minute."""
    from td3_lightning.cli.app import main

    config, *flags = words
    callback = {
        "class_path": "benchmarks.score_callback.CpuScoreCallback",
        "init_args": {"path": str(path), "budget": float(budget)},
    }
    fixed = ["--trainer.max_epochs=1000000", "--data.steps_per_epoch=1000", "--data.eval_episodes=1"]
    added = f"--trainer.callbacks+={json.dumps(callback)}"
    return main(["fit", f"--config={config}", f"--seed_everything={seed}", *fixed, *flags, added])


def train_library(task: CpuTask, seed: int, scorer: CpuScorer, name: str) -> None:
    """Train with Stable-Baselines3 or SBX, with flushed denormals and kept memory."""
    from stable_baselines3.common.noise import NormalActionNoise

    from benchmarks.baselines.process import tune_process

    tune_process()
    env = gym.make(task.env_id)
    size = env.action_space.sample().shape
    library, algorithm, settings = RIVALS[name](task)
    if algorithm == "TD3":
        settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    model = getattr(import_module(library), algorithm)("MlpPolicy", env, seed=seed, **settings)
    learn(model, NO_END, lambda frames, policy: scorer.evaluate(frames, policy, lambda: gym.make(task.env_id)))


def zoo_td3(task: CpuTask) -> tuple[str, str, dict[str, Any]]:
    """Return TD3 of Stable-Baselines3 with the settings of rl-baselines3-zoo."""
    settings = {"gamma": task.gamma, "buffer_size": task.buffer_size, "learning_starts": 10_000, "device": "cpu"}
    nets = {"net_arch": [400, 300], "optimizer_kwargs": {"fused": True}}
    common = {"train_freq": 1, "gradient_steps": 1, "batch_size": 256, "learning_rate": 1e-3}
    return "stable_baselines3", "TD3", {**settings, **common, "policy_kwargs": nets}


def zoo_crossq(task: CpuTask, width: int = 2048) -> tuple[str, str, dict[str, Any]]:
    """Return CrossQ of SBX with the settings of rl-baselines3-zoo, except for the width of the critics."""
    if "LunarLander" in task.env_id:
        return "sbx", "CrossQ", {"buffer_size": 1_000_000, "learning_starts": 10_000}
    nets = {"net_arch": {"pi": [256, 256], "qf": [width, width]}}
    settings = {"learning_rate": 1e-3, "policy_delay": 3, "learning_starts": 5_000, "buffer_size": 1_000_000}
    return "sbx", "CrossQ", {**settings, "policy_kwargs": nets}


def tqc(task: CpuTask) -> tuple[str, str, dict[str, Any]]:
    """Return TQC of SBX with its defaults and 10,000 random steps."""
    return "sbx", "TQC", {"learning_starts": 10_000, "buffer_size": 1_000_000}


def train_author(task: CpuTask, seed: int, scorer: CpuScorer, checkout: str) -> None:
    """Train the author's TD7 with checkpoints, in the order of its main.py, through Gymnasium's interface."""
    import torch

    from benchmarks.baselines.process import tune_process

    tune_process()
    sys.path.insert(0, checkout)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # the author's replay buffer uses this generator
    env = gym.make(task.env_id)
    env.action_space.seed(seed)
    size = [space.shape[0] for space in (env.observation_space, env.action_space) if isinstance(space, gym.spaces.Box)]
    agent = import_module("TD7").Agent(*size, float(env.action_space.high[0]), False)  # type: ignore[attr-defined]
    policy: Policy = lambda obs: agent.select_action(obs, True, use_exploration=False)  # noqa: E731
    obs, trains, steps, total = env.reset(seed=seed)[0], False, 0, 0.0
    for frame in range(1, NO_END):
        action = agent.select_action(obs) if trains else env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        agent.replay_buffer.add(obs, action, next_obs, reward, float(terminated))
        obs, steps, total = next_obs, steps + 1, total + float(reward)
        if terminated or truncated:
            if trains:
                agent.maybe_train_and_checkpoint(steps, total)
            trains = frame >= 25_000
            obs, steps, total = env.reset()[0], 0, 0.0
            scorer.evaluate(frame, policy, lambda: gym.make(task.env_id))


RIVALS: dict[str, Callable[[CpuTask], tuple[str, str, dict[str, Any]]]] = {
    "sb3-td3": zoo_td3,
    "crossq": zoo_crossq,
    "crossq-256": lambda task: zoo_crossq(task, 256),
    "tqc": tqc,
    "td7-author": lambda task: ("TD7", "Agent", {}),
    "xqc": lambda task: ("benchmarks.xqc", "Agent", {}),
}


def main() -> int:
    """Train one agent."""
    agent, name, seed, budget, file, *words = sys.argv[1:]
    path = Path(file)
    if agent == "ours":
        return train_ours(seed, budget, path, words)
    scorer = CpuScorer(path, float(budget))
    if agent == "td7-author":
        train_author(TASKS[name], int(seed), scorer, words[0])
    elif agent == "xqc":
        import_module("benchmarks.xqc").start(TASKS[name].env_id, int(seed), scorer)
    else:
        train_library(TASKS[name], int(seed), scorer, agent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
