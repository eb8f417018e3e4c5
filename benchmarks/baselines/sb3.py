"""Stable-Baselines3 (https://github.com/DLR-RM/stable-baselines3): `TD3.learn`.

The flag "tuned" flushes denormals, keeps freed memory and passes a fused Adam through `policy_kwargs`. The flag "cuda"
trains on a GPU.
"""

from typing import Any

import numpy as np
import torch
from stable_baselines3 import TD3
from stable_baselines3.common.noise import NormalActionNoise

from benchmarks.baselines.process import tune_process
from benchmarks.clock import Clock, stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    policy_kwargs: dict[str, Any] = {"net_arch": list(workload.hidden_dims)}
    if "tuned" in flags:
        tune_process()
        policy_kwargs["optimizer_kwargs"] = {"fused": True}
    device = "cuda" if "cuda" in flags else "cpu"
    if device == "cuda" and not torch.cuda.is_available():  # the library would train on the CPU
        raise SystemExit("It requires a GPU that PyTorch supports.")
    learn(new_model(workload, Clock(workload.make_env()), policy_kwargs, device=device))


def new_model(
    workload: Workload, env: Any, policy_kwargs: dict[str, Any], gradient_steps: int = 1, device: str = "cpu"
) -> TD3:
    """Create the agent.

    Args:
        workload: The hyperparameters.
        env: An environment, or several.
        policy_kwargs: Arguments of the networks.
        gradient_steps: Updates after each step of all environments.
        device: Device of the networks.
    """
    return TD3(
        "MlpPolicy",
        env,
        learning_rate=workload.lr,
        buffer_size=workload.capacity,
        learning_starts=WARMUP_STEPS,
        batch_size=workload.batch_size,
        tau=workload.tau,
        gamma=workload.gamma,
        train_freq=1,
        gradient_steps=gradient_steps,
        action_noise=exploration(env, workload),
        policy_delay=workload.policy_freq,
        target_policy_noise=workload.policy_noise,
        target_noise_clip=workload.noise_clip,
        policy_kwargs=policy_kwargs,
        device=device,
    )


def exploration(env: Any, workload: Workload) -> NormalActionNoise:
    """Create Gaussian exploration noise."""
    size = env.action_space.shape
    return NormalActionNoise(np.zeros(size), np.full(size, workload.exploration_noise))


def learn(model: Any, callback: Any = None) -> None:
    """Connect the stopwatch and start the library's own loop."""
    buffer, num_envs = model.replay_buffer, model.n_envs
    arrays = [array for array in vars(buffer).values() if isinstance(array, np.ndarray)]
    transition_bytes = sum(array.nbytes for array in arrays) / (buffer.buffer_size * num_envs)
    stopwatch().watch(lambda: model._n_updates, transition_bytes, steps_per_batch=num_envs)
    model.learn(total_timesteps=10**9, callback=callback)
