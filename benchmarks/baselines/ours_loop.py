"""td3_lightning's module and replay buffer in a plain loop, to measure the overhead of the Trainer."""

from typing import Any

import numpy as np
import yaml
from torch import Tensor

from benchmarks.baselines.ours import data_settings, model_settings
from benchmarks.clock import Clock, stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload
from td3_lightning import TD3, ReplayData
from td3_lightning.cli.app import tune_malloc


class LoopTD3(TD3):
    """TD3 without a Trainer: plain optimizers and a plain backward pass."""

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizers without Lightning's wrapper."""
        if not hasattr(self, "_plain"):
            self._plain = self.configure_optimizers()
        return self._plain

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass."""
        loss.backward(*args, **kwargs)


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    tune_malloc()  # as the command line does
    given = parse(flags)
    data = ReplayData(wrappers=[Clock], **(data_settings(workload) | given["data"]))
    module = LoopTD3(data.obs_dim, data.action_low, data.action_high, **(model_settings(workload) | given["model"]))
    stopwatch().watch(lambda: module.updates, data.replay.transition_bytes)
    data.setup("fit")
    data.begin_episodes()
    for _ in collect(module, data, workload.exploration_noise):
        module.training_step(data.replay.sample(), 0)


def collect(module: TD3, data: ReplayData, noise_std: float) -> Any:
    """Step the environment as the Collector does, and yield when an update is due."""
    rng = np.random.default_rng(0)
    (low, high), shape = module.action_box, (1, len(data.action_low))
    while True:
        obs = data.envs.obs
        if module.env_steps < WARMUP_STEPS:
            action = rng.uniform(low, high, shape).astype(np.float32)
        else:
            noise = rng.standard_normal(shape, np.float32) * (high - low) / 2
            action = np.clip(module.act(obs) + np.float32(noise_std) * noise, low, high)
        step = data.envs.step(action)
        end = bool(step.terminated[0]), bool(step.truncated[0])
        data.replay.add(0, obs[0], action[0], float(step.reward[0]), *end, step.last_obs[0])
        module.env_steps += 1
        if module.env_steps > WARMUP_STEPS:
            yield


def parse(flags: list[str]) -> dict[str, dict[str, Any]]:
    """Parse the flags of the model and the data, such as `--model.policy_freq 3` or `--model.policy_freq=3`."""
    given: dict[str, dict[str, Any]] = {"model": {}, "data": {}}
    words = [word for flag in flags for word in flag.split("=", 1)]
    for flag, value in zip(words[::2], words[1::2], strict=True):
        section, name = flag.removeprefix("--").split(".", 1)
        if section in given:
            given[section][name] = yaml.safe_load(value)
    return given
