"""Observations of dicts, tuples and discrete numbers."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Space,
    Text,
    Tuple,
    flatten,
)

from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.errors import EnvError
from toys import Counter

VECTOR = Box(-np.inf, np.inf, (2,), np.float32)
NESTED: Any = {
    "speed": Box(-10, 10, (1, 2), np.float32),
    "gear": Discrete(4, start=-1),
    "parts": Tuple([MultiDiscrete([2, 3]), MultiBinary(2)]),
}


class Nested(Counter):
    """Observe the steps since the reset in a space of several parts."""

    def __init__(self, space: Space, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = space

    def _obs(self) -> Any:
        return {
            "speed": np.array([[self.steps, -self.steps]], np.float32),
            "gear": np.int64(self.steps % 4 - 1),
            "parts": (np.array([1, self.steps % 3]), np.array([0, 1], np.int8)),
        }


class Goal(Counter):
    """Observe a goal, as the environments of gymnasium_robotics do."""

    observation_space: Any

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict({"observation": VECTOR, "desired_goal": VECTOR, "achieved_goal": VECTOR})

    def _obs(self) -> Any:
        names = "achieved_goal", "desired_goal", "observation"
        return {name: np.array([number, self.total], np.float32) for number, name in enumerate(names)}


def new_data(env: Any, **kwargs: Any) -> ReplayData:
    return ReplayData(env, **{"steps_per_epoch": 20, "batch_size": 4, "capacity": 500, "eval_episodes": 2, **kwargs})


def test_parts_are_concatenated_in_the_order_of_sorted_keys() -> None:
    env = new_data(partial(Nested, Dict(NESTED))).eval_env
    env.reset(seed=0)
    obs = env.step(np.zeros(1, np.float32))[0]
    gear, parts, speed = [0, 1, 0, 0], [0, 1, 0, 1, 0, 0, 1], [1, -1]
    np.testing.assert_array_equal(obs, [*gear, *parts, *speed])


def test_goals_are_trained_stored_and_evaluated(make_trainer: Any) -> None:
    data = new_data(Goal)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    trainer = make_trainer(callbacks=[Collector(10)])
    trainer.fit(module, datamodule=data)
    ring = data.replay.rings[0]
    np.testing.assert_array_equal(ring.rows[: ring.cursor, 0:6:2], [[0, 1, 2]] * ring.cursor)
    assert trainer.callback_metrics["eval/length_mean"] == 5
    goal = Goal()
    obs = flatten(goal.observation_space, goal.reset()[0])
    assert module.act(obs).shape == (1,)


@pytest.mark.parametrize(
    "space",
    [
        *(Text(3), Sequence(Discrete(2)), Graph(VECTOR, None), Dict()),
        *(Dict({"a": VECTOR, "frames": Box(0, 255, (8, 8, 3), np.uint8)}), Tuple([VECTOR, Dict({"text": Text(3)})])),
    ],
    ids=lambda space: type(space).__name__,
)
def test_other_spaces_are_one_sentence(space: Space) -> None:
    with pytest.raises(
        UsageError, match=r"^observations of Nested must be a Box, .*, got .*\. Add a wrapper"
    ) as caught:
        new_data(partial(Nested, space))
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    "change",
    [{"gear": 7}, {"gear": -2}, {"parts": (np.array([1, 3]), np.zeros(2))}, {"parts": None}, {"speed": np.zeros(5)}],
    ids=str,
)
def test_malformed_parts_are_one_sentence(change: Any, make_trainer: Any) -> None:
    class Malformed(Nested):
        def _obs(self) -> Any:
            return {**super()._obs(), **(change if self.total == 3 else {})}

    data = new_data(partial(Malformed, Dict(NESTED)))
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    with pytest.raises(EnvError, match=r"^Environment 0 of Malformed .* at step 3 of the episode with seed"):
        make_trainer(callbacks=[Collector(10)]).fit(module, datamodule=data)
