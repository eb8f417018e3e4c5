"""Check the order of actions, updates and steps in the two modes of the environments."""

from typing import Any

import numpy as np
import pytest

from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.training.policy_checkpoint import PolicyCheckpoint
from toys import Counter

WARMUP = 4


def updates_at_actions(mode: str, make_trainer: Any, **settings: Any) -> list[int]:
    """Return the number of updates that the policy of each stored action had made."""

    class Clock(TD3):
        """Act with the number of updates."""

        def act(self, obs: Any, deterministic: bool = True) -> Any:
            return np.full((len(obs), 1), self.updates / 64, np.float32)

    data = ReplayData(Counter, batch_size=4, capacity=200, eval_episodes=1, steps_per_epoch=8, **settings)
    data.is_overlapped = mode == "overlapped"  # in this process: workers have the same order
    module = Clock(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    trainer = make_trainer(callbacks=[Collector(WARMUP, exploration_noise=0.0)], max_epochs=2)
    trainer.fit(module, datamodule=data)
    ring = data.replay.rings[0]
    rows = ring.rows[: ring.cursor]
    actions = rows[rows[:, -2] > 0][-(-WARMUP // data.num_envs) :, data.obs_dim]  # without the last observations
    return [round(action * 64) for action in actions.tolist()]


def test_actions_are_one_update_older_if_overlapped(make_trainer: Any) -> None:
    assert updates_at_actions("lockstep", make_trainer) == list(range(1, 17))
    assert updates_at_actions("overlapped", make_trainer) == list(range(16))


@pytest.mark.parametrize("settings", [{"num_envs": 3}, {"num_envs": 2, "updates_per_step": 1.5}])
def test_actions_are_the_updates_of_a_step_older(settings: dict[str, Any], make_trainer: Any) -> None:
    lockstep, overlapped = (updates_at_actions(mode, make_trainer, **settings) for mode in ("lockstep", "overlapped"))
    assert lockstep == list(range(1, lockstep[-1] + 1, 3))
    assert overlapped == [0, *lockstep[:-1]]


@pytest.mark.parametrize(("collect", "callbacks"), [(7, []), ("episode", []), (1, [PolicyCheckpoint()])])
def test_policy_that_must_not_change_is_usage_error(collect: Any, callbacks: list[Any], make_trainer: Any) -> None:
    data = ReplayData(Counter, eval_episodes=1, vector_env="overlapped")
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    with pytest.raises(UsageError, match=r"^data.vector_env must be sync or async with PolicyCheckpoint or"):
        make_trainer(callbacks=[Collector(collect=collect), *callbacks]).fit(module, datamodule=data)
