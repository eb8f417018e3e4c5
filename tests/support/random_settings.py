"""Random combinations of settings for `crash_test.py`."""

import random
from typing import Any


def linear(start: float, end: float, steps: int) -> dict[str, Any]:
    """Return a linear schedule in the form of a configuration."""
    return {"class_path": "td3_lightning.Linear", "init_args": {"start": start, "end": end, "steps": steps}}


def evaluation(name: str, **init_args: Any) -> dict[str, Any]:
    """Return a callback of the package in the form of a configuration."""
    return {"class_path": f"td3_lightning.{name}", "init_args": init_args}


def early_stopping(threshold: float) -> dict[str, Any]:
    """Return Lightning's EarlyStopping, which ends a run at a threshold or after two evaluations without gain."""
    return {
        "class_path": "lightning.pytorch.callbacks.EarlyStopping",
        "init_args": {
            "monitor": "eval/return_mean",
            "mode": "max",
            "patience": 2,
            "stopping_threshold": threshold,
        },
    }


# Values other than the defaults.
OTHERS: dict[str, list[Any]] = {
    "model.hidden_dims": [[8, 8], [], [320, 320]],
    "model.layer_norm": [True],
    "model.num_critics": [1, 3, 4],
    "model.encoder": [
        {"class_path": "td3_lightning.Trunk", "init_args": {"widths": [6], "shared": shared}}
        for shared in (True, False)
    ],
    "model.max_grad_norm": [1.0],
    "model.actor_lr": [linear(1e-3, 1e-4, 90)],
    "model.critic_lr": [linear(1e-3, 1e-4, 90)],
    "model.tau": [0.1],
    "model.policy_noise": [0.3],
    "model.noise_clip": [0.1],
    "model.normalize_observations": [True],
    "model.policy_freq": [1, 3],
    "model.target_update_freq": [1, 7],
    "model.critic_loss": ["huber"],
    "data.num_envs": [2, 3],
    "data.vector_env": ["async", "overlapped"],
    "data.updates_per_step": [0.3, 0.5, 2, linear(0.5, 1.5, 90)],
    "data.gamma": [linear(0.9, 0.99, 90)],
    "data.n_step": [1, linear(4, 1, 80)],
    "data.reward_scale": [0.1],
    "data.priority_alpha": [0.4, 1.0],
    "data.eval_episodes": [2, 3],
    "data.wrappers": [[{"class_path": "td3_lightning.ActionRepeat", "init_args": {"repeat": 2}}]],
    "data.capacity": [45, 60],
    "collector.collect": ["episode", 7],
    "collector.random_steps": [0, 50],
    "collector.exploration_noise": [linear(0.3, 0.1, 100)],
    "trainer.log_every_n_steps": [1, 7],
    "trainer.min_epochs": [2],
    "trainer.precision": ["bf16-mixed", "64-true"],
    "trainer.check_val_every_n_epoch": [2],
    "trainer.num_sanity_val_steps": [-1],
    "trainer.val_check_interval": [0.5],
    "trainer.callbacks": [
        [evaluation("AveragedWeights", decay=0.9)],
        [evaluation("StopWhenSolved", threshold=-1e9, window=2)],
        [early_stopping(-1e9), evaluation("AveragedWeights", decay=0.5)],
        [early_stopping(1e9)],
        [evaluation("PolicyCheckpoint", switch_after=50, late_episodes=2)],
        [early_stopping(1e9), evaluation("PolicyCheckpoint", early_episodes=2, late_episodes=4, switch_after=20)],
        [evaluation("StopWhenSolved", threshold=1e9, window=2), evaluation("SaveEvaluations")],
    ],
}


def draw(chance: random.Random, world: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with a third of OTHERS changed at random."""
    settings = {section: dict(values) for section, values in world.items()}
    for name, values in OTHERS.items():
        section, _, key = name.partition(".")
        if chance.random() < 1 / 3:
            settings[section][key] = chance.choice(values)
    if "priority_alpha" in settings["data"]:
        settings["model"]["critic_loss"] = "huber"
    if any("PolicyCheckpoint" in each["class_path"] for each in settings["trainer"].get("callbacks", [])):
        settings["collector"].pop("collect", None)  # refused, as are the next settings
        settings["data"].pop("vector_env", None)
    if settings["data"].get("vector_env") == "overlapped":
        settings["collector"].pop("collect", None)
    return settings
