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
from td3_lightning.interop.policy_file import random_observations, write_policy

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
    """Return an agent whose third mean is 1,000 standard deviations, which float32 rounds."""
    agent = new_agent(normalize_observations=True)
    agent.normalizer.update(torch.tensor([[3.0, -2.0, 1000.0], [5.0, -1.0, 1002.0]]))
    return agent


AGENTS: dict[str, Callable[[], TD3]] = {
    "TD3": new_agent,
    "shared encoder and LayerNorm": lambda: new_agent(encoder=Trunk([6], shared=True), layer_norm=True),
    "own encoder": lambda: new_agent(encoder=Trunk([6], shared=False)),
    "TD7": lambda: new_agent(TD7, zs_dim=6),
    "normalized observations": normalized_agent,
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


@pytest.mark.parametrize(("name", "suffix"), [*((name, ".pt2") for name in AGENTS), ("TD3", ".onnx"), ("TD7", ".onnx")])
def test_file_has_the_actions_of_the_agent(name: str, suffix: str, tmp_path: Path) -> None:
    agent, path = AGENTS[name](), tmp_path / f"policy{suffix}"
    assert write_policy(agent, path, METADATA) < 1e-5
    policy = opened(path)
    for rows in (1, 33):
        np.testing.assert_allclose(policy(inputs(rows)), agent.act(inputs(rows)), atol=1e-5)
    far = 1000 * inputs(500)
    assert (policy(far) >= LOW).all()
    assert (policy(far) <= HIGH).all()
    if name == "TD3":
        assert (agent(torch.from_numpy(far)).numpy(force=True) > HIGH).any()  # centre + scale is above the bound
        np.testing.assert_allclose(policy(inputs(33)), paper_actions(agent, inputs(33)), atol=1e-5)


def test_normalized_observations_are_exported_in_float32(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    agent, path = normalized_agent(), tmp_path / "a.onnx"
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    assert write_policy(agent, path, {}) < 1e-5
    obs = inputs(33) / 3 + [0, 0, 1001]
    np.testing.assert_allclose(Policy.load(path)(obs.astype(np.float32)), agent.act(obs), atol=1e-5)
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    kinds = {each.type.tensor_type.elem_type for each in (*graph.value_info, *graph.input, *graph.output)}
    assert onnx.TensorProto.DOUBLE not in kinds | {each.data_type for each in graph.initializer}
    assert all(map(torch.equal, agent.state_dict().values(), before.values()))


def test_file_has_the_names_the_metadata_and_the_policy_only(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    agent, extra = TD3(300, [-1.0], [1.0], hidden_dims=(100,)), {"metadata.json": ""}
    agent.updates = 1
    write_policy(agent, tmp_path / "a.onnx", METADATA)
    write_policy(agent, tmp_path / "a.pt2", METADATA)
    torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    assert json.loads(extra["metadata.json"]) == METADATA
    model = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(model)
    assert {held.key: json.loads(held.value) for held in model.metadata_props} == METADATA
    (obs,), (action,) = model.graph.input, model.graph.output
    assert (obs.name, action.name) == ("obs", "action")
    assert [each.dim_param or each.dim_value for each in obs.type.tensor_type.shape.dim] == ["batch", 300]
    weights = 4 * sum(each.numel() for each in agent.actor.parameters())
    for path in tmp_path.iterdir():
        assert weights < len(path.read_bytes()) < weights + 30_000  # one critic has more weights than the actor
        assert b".py" not in path.read_bytes()  # no path of a source file


# Refused.


class Different(TD3):
    """TD3 whose `act` differs from its `forward` by a part of the action range."""

    error = 0.0

    def act(self, obs: NDArray[Any], deterministic: bool = True) -> NDArray[np.float32]:
        return super().act(obs) + np.float32(self.error) * (HIGH - LOW)


def test_difference_above_the_tolerance_is_refused(tmp_path: Path) -> None:
    agent, path = new_agent(Different), tmp_path / "a.pt2"
    for agent.error in (2e-3, np.nan):
        with refused("actions", "nan" if np.isnan(agent.error) else "0.002", "another format"):
            write_policy(agent, path, {})
        assert not path.exists()
    agent.error = 5e-4
    assert write_policy(agent, path, {}) == pytest.approx(5e-4, rel=0.1)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with refused("format onnx", "none", "pip install -c constraints.txt -e '.[export]'"):
        write_policy(new_agent(), tmp_path / "a.onnx", {})
    assert not list(tmp_path.iterdir())


# The check.


def test_check_multiplies_in_float32(tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("medium")
    write_policy(new_agent(), tmp_path / "a.pt2", {})
    assert torch.get_float32_matmul_precision() == "medium"


def test_observations_are_inside_finite_bounds() -> None:
    space = {"low": [-2.0, None, 0.0, 0.0], "high": [5.0, 1.0, None, 1e6]}
    obs = random_observations(4, 10_000, space, seed=0)
    assert obs.dtype == np.float32
    assert -2 <= obs[:, 0].min() < -1.9
    assert 4.9 < obs[:, 0].max() <= 5
    np.testing.assert_allclose(obs[:, 1:].std(axis=0), 1, atol=0.05)
