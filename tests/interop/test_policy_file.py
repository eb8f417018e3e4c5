"""Files of policies: the same actions as the agent, and nothing written otherwise."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from one_sentence import refused
from td3_lightning import TD3, TD7, Policy, Trunk
from td3_lightning.interop import policy_file
from td3_lightning.interop.policy_file import largest_difference, random_observations, rounding_error, write_policy

LOW, HIGH = np.array([-2.8, -0.5], np.float32), np.array([1.5, 0.7], np.float32)  # centre + scale rounds above HIGH
METADATA = {"env_id": "a-v0", "evaluation": {"eval/return_mean": 1.5}, "wrappers": None}


def new_agent(kind: type[TD3] = TD3, **settings: Any) -> TD3:
    """Return an agent that counts as trained. Its weights are large, so that some actions reach the bounds."""
    agent = kind(obs_dim=3, action_low=LOW.tolist(), action_high=HIGH.tolist(), hidden_dims=(8, 8), **settings)
    agent.updates = 1
    with torch.no_grad():
        agent.actor.layers[-1].weight.mul_(30)
    return agent


def normalized_agent() -> TD3:
    agent = new_agent(normalize_observations=True)
    agent.normalizer.update(torch.tensor([[3.0, -2.0, 10.0], [5.0, -1.0, 40.0]]))
    return agent


AGENTS: dict[str, Callable[[], TD3]] = {
    "TD3": new_agent,
    "shared encoder and LayerNorm": lambda: new_agent(encoder=Trunk([6], shared=True), layer_norm=True),
    "own encoder": lambda: new_agent(encoder=Trunk([6], shared=False)),
    "TD7": lambda: new_agent(TD7, zs_dim=6),
    "normalized observations": normalized_agent,
    "float64": lambda: new_agent().double(),
}


def opened(path: Path) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Open a file as the documentation does."""
    if path.suffix == ".onnx":
        return Policy.load(path)
    module = torch.export.load(path).module()
    return lambda obs: module(torch.from_numpy(obs)).numpy()


def inputs(rows: int) -> NDArray[np.float32]:
    return np.random.default_rng(rows).normal(0, 3, (rows, 3)).astype(np.float32)


def paper_actions(agent: TD3, obs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute a TD3's actions with NumPy in float64: centre + half-width * tanh(linear(relu(linear(...))))."""
    weights = [each.detach().double().numpy() for each in agent.actor.layers.parameters()]
    hidden = obs.astype(np.float64)
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = np.maximum(hidden @ weight.T + bias, 0)
    return (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * np.tanh(hidden @ weights[-2].T + weights[-1])


# The same actions.


@pytest.mark.parametrize(
    ("name", "suffix"),
    [*((name, ".pt2") for name in AGENTS), *((name, ".onnx") for name in ("TD3", "TD7", "normalized observations"))],
)
def test_file_has_the_actions_of_the_agent(name: str, suffix: str, tmp_path: Path) -> None:
    agent, path = AGENTS[name](), tmp_path / f"policy{suffix}"
    assert write_policy(agent, path, METADATA) < 1e-5
    policy = opened(path)
    for rows in (1, 2, 33):
        actions = policy(inputs(rows))
        assert actions.dtype == np.float32
        np.testing.assert_allclose(actions, agent.act(inputs(rows)), atol=1e-5)
    far = 1000 * inputs(500)
    if name == "TD3":  # centre + scale is above the bound
        assert (agent(torch.from_numpy(far)).numpy(force=True) > HIGH).any()
    assert (policy(far) >= LOW).all()
    assert (policy(far) <= HIGH).all()
    if name == "TD3":
        np.testing.assert_allclose(policy(inputs(33)), paper_actions(agent, inputs(33)), atol=1e-5)


def test_onnx_file_has_names_and_metadata(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    agent, path = wide_agent(), tmp_path / "a.onnx"
    write_policy(agent, path, METADATA)
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert {held.key: json.loads(held.value) for held in model.metadata_props} == METADATA
    (obs,), (action,) = model.graph.input, model.graph.output
    assert (obs.name, action.name) == ("obs", "action")
    assert [each.dim_param or each.dim_value for each in obs.type.tensor_type.shape.dim] == ["batch", 300]
    assert_holds_the_policy_only(path, agent)


def test_pt2_file_has_metadata(tmp_path: Path) -> None:
    agent, path, extra = wide_agent(), tmp_path / "a.pt2", {"metadata.json": ""}
    write_policy(agent, path, METADATA)
    torch.export.load(path, extra_files=extra)
    assert json.loads(extra["metadata.json"]) == METADATA
    assert_holds_the_policy_only(path, agent)


def wide_agent() -> TD3:
    agent = TD3(300, [-1.0], [1.0], hidden_dims=(100,))
    agent.updates = 1
    return agent


def assert_holds_the_policy_only(path: Path, agent: TD3) -> None:
    """Check that a file has the actor's weights, not those of a critic, and no path of a source file."""
    weights = 4 * sum(each.numel() for each in agent.actor.parameters())
    content = path.read_bytes()
    assert weights < len(content) < weights + 30_000  # one critic has more weights than the actor
    assert b".py" not in content


# Refused.


class Different(TD3):
    """TD3 whose `act` differs from its `forward` by a part of the action range."""

    error = 0.0

    def act(self, obs: NDArray[Any], deterministic: bool = True) -> NDArray[np.float32]:
        return super().act(obs) + np.float32(self.error) * (HIGH - LOW)


@pytest.mark.parametrize(("error", "is_written"), [(5e-6, True), (2e-5, False), (np.nan, False)])
def test_difference_above_the_tolerance_is_refused(error: float, is_written: bool, tmp_path: Path) -> None:
    agent, path = new_agent(Different), tmp_path / "new" / "a.pt2"
    agent.error = error
    if is_written:
        assert write_policy(agent, path, {}) == pytest.approx(error, rel=0.1)
        return
    with refused("actions", "nan" if np.isnan(error) else "2e-05", "another format"):
        write_policy(agent, path, {})
    assert not list(tmp_path.iterdir())


def test_tolerance_grows_with_the_rounding_of_the_agent(tmp_path: Path) -> None:
    agent = new_agent(Different)
    with torch.no_grad():
        agent.actor.layers[0].weight.mul_(2_000)  # float32 rounds the pre-activations by 1e-4
    assert 1e-5 < rounding_error(agent, {}) < 1e-3
    agent.error = 1.5 * rounding_error(agent, {})
    assert write_policy(agent, tmp_path / "a.pt2", {}) > 1e-5
    agent.error *= 2
    with refused("actions", f"{agent.error:.2g}"):
        write_policy(agent, tmp_path / "b.pt2", {})


def test_rounding_error_is_that_of_float32() -> None:
    agent = new_agent()
    obs = random_observations(3, 10_000, {}, seed=0)
    expected = np.abs(agent.act(obs) - paper_actions(agent, obs)) / (HIGH - LOW)
    assert rounding_error(agent, {}) == pytest.approx(expected.max(), rel=0.1)
    assert agent.actor.layers[0].weight.dtype == torch.float32
    assert rounding_error(agent.double(), {}) == 0


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_policy(new_agent(), tmp_path / "a.pt2", {})
    assert not list(tmp_path.iterdir())


def test_untrained_agent_is_refused(tmp_path: Path) -> None:
    agent = new_agent()
    agent.updates = 0
    with refused("export", "one with 0 updates", "checkpoint"):
        write_policy(agent, tmp_path / "a.onnx", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_diverged_agent_is_refused(value: float, tmp_path: Path) -> None:
    agent = new_agent()
    with torch.no_grad():
        agent.actor.layers[0].bias[1] = value
    with refused("export", "others in actor.layers.0.bias", "earlier checkpoint"):
        write_policy(agent, tmp_path / "a.onnx", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "fix"), [("a.pt", "Use a.onnx"), ("a", "Use a.onnx"), ("old.onnx", "another")])
def test_path_is_a_new_file_of_a_known_format(name: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "old.onnx").write_bytes(b"mine")
    with refused("output", str(tmp_path / name), fix):
        write_policy(new_agent(), tmp_path / name, {})
    assert (tmp_path / "old.onnx").read_bytes() == b"mine"


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_package_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with refused("format onnx", "none", "pip install -c constraints.txt -e '.[export]'"):
        write_policy(new_agent(), tmp_path / "a.onnx", {})
    assert not list(tmp_path.iterdir())


# The check.


def test_check_multiplies_in_float32(tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("medium")
    write_policy(new_agent(), tmp_path / "a.pt2", {})
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("size", [10_000 * 3, 7 * 3, 1])
def test_largest_difference_is_over_all_observations(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_file, "MAX_NUMBERS", size)
    monkeypatch.setattr(policy_file, "NUM_CHECKED", 20 if size < 100 else 10_000)
    agent, seen = new_agent(), []

    def act(obs: NDArray[Any]) -> NDArray[np.float32]:
        seen.append(len(obs))
        shift = 0.5 if sum(seen) > len(obs) or len(seen) == 1 else 0.0
        return agent.act(obs) + np.float32([0.0, shift])

    assert largest_difference(act, agent.act, agent, {}) == pytest.approx(0.5 / 1.2)
    assert sum(seen) == policy_file.NUM_CHECKED


def test_observations_are_inside_finite_bounds() -> None:
    space = {"low": [-2.0, None, 0.0, 0.0], "high": [5.0, 1.0, None, 1e6]}
    obs = random_observations(4, 10_000, space, seed=0)
    assert obs.dtype == np.float32
    assert -2 <= obs[:, 0].min() < -1.9
    assert 4.9 < obs[:, 0].max() <= 5
    np.testing.assert_allclose(obs[:, 1:].std(axis=0), 1, atol=0.05)
    np.testing.assert_allclose(obs[:, 1:].mean(axis=0), 0, atol=0.05)
    assert random_observations(2, 3, {}, seed=0).shape == (3, 2)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize(("metadata", "value"), [({"score": np.float32(1)}, "float32"), ({1: 2}, "1")])
def test_metadata_that_is_no_plain_data_is_refused(
    metadata: dict[Any, Any], value: str, suffix: str, tmp_path: Path
) -> None:
    with refused("metadata", value):
        write_policy(TD3(2, [-1.0], [1.0], hidden_dims=[4]), tmp_path / f"a{suffix}", metadata)
    assert not list(tmp_path.iterdir())
