"""Check flat observations without Gymnasium against Gymnasium's, and policies that act on the original structure."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from one_sentence import refused
from td3_lightning import TD3, TD7, Policy, ReplayData
from td3_lightning.interop.metadata import checkpoint_metadata
from td3_lightning.interop.policy_file import write_policy
from td3_lightning.serialization.observation_parts import describe_space, flatten, is_structured
from tests.envs.test_flatten import NESTED, Nested
from tests.interop.test_policy import save

SPACES = {
    "dict": spaces.Dict(NESTED),
    "unsorted": spaces.Dict(z=spaces.Discrete(2), a=spaces.Box(-1, 1, (2, 3))),
    "tuple": spaces.Tuple([spaces.MultiBinary((2, 2)), spaces.Dict({"b": spaces.Discrete(3)})]),
    "discrete": spaces.Discrete(5, start=-2),
    "several": spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[0, 1], [-1, 5]]),
    "binary": spaces.MultiBinary(3),
}


@pytest.mark.parametrize("name", SPACES)
def test_flat_observations_are_gymnasiums(name: str) -> None:
    space: Any = SPACES[name]
    space.seed(1)
    description = json.loads(json.dumps(describe_space(space)))
    for _ in range(20):
        obs = space.sample()
        expected = spaces.flatten(space, obs).astype(np.float32)
        found = flatten(description, obs)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


def trained(space: Any, kind: Any = TD3) -> TD3:
    """Return an agent of an environment with a space, after a trivial training."""
    agent: TD3 = kind(spaces.flatdim(space), [-1.0, 0.0], [1.0, 3.0], (8,))
    agent.updates, agent.observation_parts = 1, describe_space(space)
    return agent


@pytest.mark.parametrize(("name", "kind"), [("dict", TD3), ("tuple", TD7), ("several", TD3)])
def test_checkpoint_acts_on_the_original_structure(name: str, kind: Any, tmp_path: Path) -> None:
    space: Any = SPACES[name]
    agent, path = trained(space, kind), tmp_path / "a.ckpt"
    save(agent, path)
    obs = space.sample()
    expected = agent.act(spaces.flatten(space, obs).astype(np.float32))
    for loaded in (Policy.load(path), kind.load_from_checkpoint(path).act):
        np.testing.assert_array_equal(loaded(obs), expected)
        assert loaded(np.zeros((3, agent.obs_dim), np.float32)).shape == (3, 2)


def test_exported_policy_acts_on_the_original_structure(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    space: Any = SPACES["dict"]
    data = ReplayData(lambda: Nested(space), eval_episodes=1)
    agent = trained(space)
    clocks = {"env_steps": 1, "updates": 1, "episodes": 0}
    metadata = checkpoint_metadata({"hyper_parameters": dict(agent.hparams), "clocks": clocks}, data)
    write_policy(agent, tmp_path / "a.onnx", metadata)
    policy = Policy.load(tmp_path / "a.onnx")
    obs = space.sample()
    flat = spaces.flatten(space, obs)
    np.testing.assert_allclose(policy(obs), agent.act(flat), atol=1e-5)
    np.testing.assert_array_equal(policy(flat), policy(obs))
    assert policy(np.stack([flat, flat])).shape == (2, 2)
    with refused("obs", "['gear']", "policy's environment"):
        policy({"gear": 1})


@pytest.mark.parametrize(
    ("name", "obs", "setting", "got"),
    [
        ("dict", {"speed": np.zeros((1, 2)), "gear": 4, "parts": (np.zeros(2, int), np.zeros(2))}, "gear", "4"),
        ("dict", {"speed": np.zeros(2), "gear": 0, "parts": ()}, "parts", "()"),
        ("tuple", (np.zeros(4), {"b": 0}), "obs", "array([0., 0., 0., 0.])"),
        ("several", np.full((2, 2), 7), "obs", "7"),
    ],
    ids="abcd",
)
def test_malformed_observations_are_refused(name: str, obs: Any, setting: str, got: str) -> None:
    with pytest.raises(ValueError, match=rf"{setting}.* must be .* got ") as caught:
        flatten(describe_space(SPACES[name]), obs)
    assert got in str(caught.value)


def test_numbers_are_structured_only_in_the_shape_of_the_space() -> None:
    discrete, several = describe_space(SPACES["discrete"]), describe_space(SPACES["several"])
    assert is_structured(discrete, 3)
    assert not is_structured(discrete, [0.0, 1.0, 0.0, 0.0, 0.0])
    assert is_structured(several, [[0, 1], [-1, 5]])
    assert not is_structured(several, [[0], [1, 2]])
    constant = describe_space(spaces.MultiDiscrete([1, 1]))
    assert not is_structured(constant, [1.0, 1.0])  # one-hot, in the shape of the space
