"""td3_lightning as `python -m td3_lightning fit` runs it: Trainer, logs, progress bar, checkpoints, signal handling.

No baseline evaluates, so the first epoch never ends.
"""

import json
from typing import Any

from benchmarks.workloads import WARMUP_STEPS, Workload
from td3_lightning.__main__ import run

STOPWATCH = "benchmarks.baselines.ours_stopwatch.ConnectStopwatch"


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    fit(workload, data_settings(workload) | {"wrappers": [{"class_path": "benchmarks.clock.Clock"}]}, STOPWATCH, flags)


def fit(workload: Workload, data: dict[str, Any], callback: str, flags: list[str]) -> None:
    """Run `td3_lightning fit`.

    Args:
        workload: The hyperparameters.
        data: The arguments of ReplayData.
        callback: Class that connects the stopwatch.
        flags: Further flags.
    """
    settings = {
        "data": data | ({"priority_alpha": 0.4} if workload.is_td7 else {}),
        "collector": {"warmup_steps": WARMUP_STEPS, "exploration_noise": workload.exploration_noise},
        "trainer": {"accelerator": "cpu", "callbacks": [{"class_path": callback}]},
    }
    lines = [f"--{section}={json.dumps(values)}" for section, values in settings.items()]
    config = ["--config", workload.config] if workload.config else []
    agent = ["--model=TD7"] if workload.is_td7 else []
    agent += [f"--model.{name}={json.dumps(value)}" for name, value in model_settings(workload).items()]
    raise SystemExit(run(["fit", *config, *agent, *lines, *flags]))  # imports Lightning as the command does


def model_settings(workload: Workload) -> dict[str, Any]:
    """Return the arguments of TD3 for the workload."""
    layer_norm = {"layer_norm": True} if workload.layer_norm else {}  # TD7 does not have the setting
    return {
        "hidden_dims": list(workload.hidden_dims),
        **layer_norm,
        "actor_lr": workload.lr,
        "critic_lr": workload.lr,
        "tau": workload.tau,
        "policy_noise": workload.policy_noise,
        "noise_clip": workload.noise_clip,
        "policy_freq": workload.policy_freq,
    }


def data_settings(workload: Workload) -> dict[str, Any]:
    """Return the arguments of ReplayData for the workload."""
    return {
        "env_id": workload.env_id,
        "env_kwargs": workload.env_kwargs,
        "capacity": workload.capacity,
        "batch_size": workload.batch_size,
        "gamma": workload.gamma,
        "steps_per_epoch": 10**9,
    }
