"""One run of benchmarks.time_to_score: train until a score is reached.

    python -m benchmarks.score_run IMPLEMENTATION TASK SEED FILE

The process appends one JSON line to FILE for each evaluation: frames, seconds of training and the mean return. The
seconds start with the process and exclude all evaluations.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

START = "TD3_SCORE_START"  # environment variable with the time at which the process was started
EVAL_SEED = 3_000_000  # no configuration evaluates with these seeds
Policy = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class ScoreTask:
    """A task and the score that ends a run.

    Args:
        env_id: The environment.
        score: The mean return to reach.
        episodes: Episodes in an evaluation.
        interval: Frames between evaluations.
        max_frames: Frames after which a run ends without the score.
        config: Our configuration.
        gamma: The discount of the zoo's settings.
        buffer_size: The replay capacity of the zoo's settings.
        batch_size: The batch size of the zoo's settings.
    """

    env_id: str
    score: float
    episodes: int
    interval: int
    max_frames: int
    config: str
    gamma: float
    buffer_size: int
    batch_size: int


TASKS = {
    "lander": ScoreTask("LunarLanderContinuous-v3", 200.0, 100, 7_500, 480_000, "lander.yaml", 0.98, 200_000, 256),
    "halfcheetah": ScoreTask("HalfCheetah-v4", 5_000.0, 10, 5_000, 500_000, "halfcheetah.yaml", 0.99, 1_000_000, 256),
}


class Scorer:
    """A stopwatch that is paused during evaluations, and the file of their results.

    Args:
        task: The task.
        path: The file for one JSON line per evaluation.
    """

    def __init__(self, task: ScoreTask, path: Path) -> None:
        self.task, self.path = task, path
        self._next, self._paused = task.interval, 0.0
        self._start, self._parent = float(os.environ[START]), os.getppid()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the time of a block."""
        start = time.time()
        yield
        self._paused += time.time() - start

    def evaluate(self, frames: int, policy: Policy, make_env: Callable[[], gym.Env[Any, Any]]) -> None:
        """Evaluate if it is due. End the process at the score or after the last frame."""
        if frames < self._next:
            return
        if os.getppid() != self._parent:  # benchmarks.time_to_score was killed, and may have started this run again
            os._exit(1)
        self._next += self.task.interval
        seconds = time.time() - self._start - self._paused
        with self.pause():
            mean = mean_return(policy, make_env(), self.task.episodes)
        with self.path.open("a") as file:
            file.write(json.dumps({"frames": frames, "seconds": round(seconds, 1), "return": round(mean, 1)}) + "\n")
        if mean >= self.task.score or frames >= self.task.max_frames:
            os._exit(0)  # the libraries' loops have no common way to stop


def mean_return(policy: Policy, env: gym.Env[Any, Any], episodes: int) -> float:
    """Return the mean return of a policy over episodes with fixed seeds."""
    returns = []
    for seed in range(EVAL_SEED, EVAL_SEED + episodes):
        (obs, _), total, ended = env.reset(seed=seed), 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return float(np.mean(returns))


def train_sb3(task: ScoreTask, seed: int, scorer: Scorer, library: str) -> None:
    """Train with Stable-Baselines3 or SBX and the settings of rl-baselines3-zoo."""
    from importlib import import_module

    from stable_baselines3.common.noise import NormalActionNoise

    env = gym.make(task.env_id)
    size = env.action_space.sample().shape
    extra = {"qf_learning_rate": 1e-3} if library == "sbx" else {"device": "cpu"}
    model = import_module(library).TD3(
        "MlpPolicy", env, learning_rate=1e-3, buffer_size=task.buffer_size, learning_starts=10_000, seed=seed,
        batch_size=task.batch_size, gamma=task.gamma, train_freq=1, gradient_steps=1,
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, 0.1)),
        policy_kwargs={"net_arch": [400, 300]}, **extra,
    )  # fmt: skip
    learn(model, task.max_frames, lambda frames, policy: scorer.evaluate(frames, policy, lambda: gym.make(task.env_id)))


def learn(model: Any, frames: int, evaluate: Callable[[int, Policy], None]) -> None:
    """Train a model of Stable-Baselines3 or SBX, and call `evaluate(frames, policy)` after each step."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Evaluate(BaseCallback):  # type: ignore[misc]  # the library may not be installed
        def _on_step(self) -> bool:
            evaluate(self.num_timesteps, lambda obs: self.model.predict(obs, deterministic=True)[0])
            return True

    model.learn(frames, callback=Evaluate())


def train_ours(task: ScoreTask, seed: int, path: Path) -> int:
    """Train with `python -m td3_lightning fit` and the configuration that ships."""
    from td3_lightning.cli.app import main

    callback = {"class_path": "benchmarks.score_callback.ScoreCallback", "init_args": {"path": str(path)}}
    return main(
        ["fit", f"--config={task.config}", f"--seed_everything={seed}", f"--trainer.callbacks+={json.dumps(callback)}"]
    )


def main() -> int:
    """Train one implementation."""
    implementation, name, seed, file = sys.argv[1:]
    task, path = TASKS[name], Path(file)
    if implementation == "ours":
        return train_ours(task, int(seed), path)
    library = {"sb3": "stable_baselines3", "sbx": "sbx"}[implementation]
    train_sb3(task, int(seed), Scorer(task, path), library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
