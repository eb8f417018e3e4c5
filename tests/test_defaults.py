"""The defaults that documentation and published results rely on."""

from inspect import signature
from typing import Any

import pytest

from td3_lightning import TD3, TD7, AveragedWeights, Collector, Pixels, PolicyCheckpoint, ReplayData
from td3_lightning.training import upkeep

DEFAULTS: dict[Any, dict[str, Any]] = {
    TD3: {
        "hidden_dims": (256, 256),
        "num_critics": 2,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "tau": 0.005,
        "policy_noise": 0.2,
        "noise_clip": 0.5,
        "policy_freq": 2,
    },
    TD7: {"zs_dim": 256, "target_update_freq": 250},
    ReplayData: {
        "gamma": 0.99,
        "batch_size": 256,
        "n_step": 1,
        "steps_per_epoch": 5_000,
        "eval_episodes": 10,
        "test_episodes": 10,
        "test_seed": 50_000,
    },
    AveragedWeights: {"decay": 0.9999},
    Pixels: {"shift": 4},
    Collector: {"warmup_steps": 25_000, "exploration_noise": 0.1},
    PolicyCheckpoint: {"early_episodes": 1, "late_episodes": 20, "switch_after": 750_000, "reset_weight": 0.9},
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_those_of_the_papers(kind: Any) -> None:
    found = {name: parameter.default for name, parameter in signature(kind).parameters.items()}
    assert {name: found[name] for name in DEFAULTS[kind]} == DEFAULTS[kind]


def test_largest_priority_is_reset_every_250_updates() -> None:
    assert upkeep.RESET_INTERVAL == 250
