"""The seed of a run, whatever code of the user does to the global generators."""

import random
from typing import Any

import gymnasium as gym
import lightning as L
import numpy as np
import pytest
import torch

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Collector, ReplayData


class Seeding(gym.Wrapper):
    """Seed everything at every occasion."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.seed()

    def seed(self) -> None:
        L.seed_everything(0, verbose=False)
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)

    def reset(self, **kwargs: Any) -> Any:
        self.seed()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.seed()
        return super().step(action)


def weights(seed: int, make_trainer: Any, wrappers: Any, **data_settings: Any) -> torch.Tensor:
    L.seed_everything(seed, verbose=False)
    data = ReplayData(
        "Pendulum-v1",
        env_kwargs={"max_episode_steps": 30},
        batch_size=8,
        steps_per_epoch=10,
        eval_episodes=1,
        wrappers=wrappers,
        **data_settings,
    )
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[8])
    trainer = make_trainer(callbacks=[Collector(10)], num_sanity_val_steps=1)
    trainer.fit(module, datamodule=data)
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


@pytest.mark.parametrize("settings", [{}, {"num_envs": 2}])
def test_environments_that_seed_do_not_choose_the_run(settings: Any, make_trainer: Any) -> None:
    plain = [weights(seed, make_trainer, [], **settings) for seed in (1, 2)]
    seeding = [weights(seed, make_trainer, [Seeding], **settings) for seed in (1, 2)]
    assert not torch.equal(*plain)
    for one, other in zip(plain, seeding, strict=True):
        assert torch.equal(one, other)
