"""`Policy`: actions from an ONNX file or a checkpoint, and what is imported for it."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from one_sentence import refused
from td3_lightning import TD3, TD7, Policy
from td3_lightning.interop.policy_file import write_policy

DEPLOYED = """
import sys
for name in ("gymnasium", "lightning", "pytorch_lightning", "torch", "yaml"):
    sys.modules[name] = None  # an import raises ModuleNotFoundError

from td3_lightning import Policy
policy = Policy.load({path!r})
action = policy([0.0, 1.0, 2.0])
assert action.shape == (2,), action
"""


def new_agent(kind: type[TD3] = TD3, **settings: Any) -> TD3:
    agent = kind(obs_dim=3, action_low=[-1.0, 0.0], action_high=[1.0, 4.0], hidden_dims=(8, 8), **settings)
    agent.updates = 1
    return agent


def save(agent: TD3, path: Path, **parts: Any) -> Path:
    """Save a checkpoint without a Trainer."""
    checkpoint = {
        "state_dict": agent.state_dict(),
        "hyper_parameters": dict(agent.hparams),
        "pytorch-lightning_version": "2.6.0",
        **parts,
    }
    agent.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, path)
    return path


@pytest.fixture(scope="module")
def agent() -> TD3:
    return new_agent()


@pytest.fixture(scope="module")
def onnx_file(agent: TD3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.onnx"
    write_policy(agent, path, {"env_id": "a-v0", "env_steps": 3, "evaluation": {"eval/return_mean": None}})
    return path


@pytest.fixture(params=["onnx", "ckpt"])
def policy_path(request: pytest.FixtureRequest, agent: TD3, onnx_file: Path, tmp_path: Path) -> Path:
    return onnx_file if request.param == "onnx" else save(agent, tmp_path / "a.ckpt")


def test_onnx_policy_imports_neither_torch_nor_gymnasium(onnx_file: Path) -> None:
    subprocess.run([sys.executable, "-c", DEPLOYED.format(path=str(onnx_file))], check=True)


def test_policy_can_be_pickled(policy_path: Path) -> None:
    policy, obs = Policy.load(policy_path), np.random.default_rng(0).normal(size=(5, 3))
    if policy_path.suffix == ".onnx":
        assert policy.metadata == {"env_id": "a-v0", "env_steps": 3, "evaluation": {"eval/return_mean": None}}
    again = pickle.loads(pickle.dumps(policy))
    np.testing.assert_array_equal(again(obs), policy(obs))
    assert again.metadata == policy.metadata


def test_policy_acts_as_the_agent(agent: TD3, policy_path: Path) -> None:
    policy, obs = Policy.load(policy_path), np.random.default_rng(0).normal(size=(5, 3))
    actions = policy(obs)
    assert (actions.shape, actions.dtype) == ((5, 2), np.float32)
    np.testing.assert_allclose(actions, agent.act(obs), atol=1e-6)
    assert policy(obs[0]).shape == (2,)
    np.testing.assert_allclose(policy(obs[0].tolist()), actions[0], atol=1e-6)
    assert policy(obs[:0]).shape == (0, 2)
    assert policy.obs_dim == 3


def test_observation_of_another_shape_is_refused(policy_path: Path) -> None:
    for obs, got in ((np.zeros(4), "shape (4,) of float64"), ("x", "shape ()")):
        with refused("obs", got, "one row per observation"):
            Policy.load(str(policy_path))(obs)


def test_deployed_policy_of_a_td7_checkpoint_acts(tmp_path: Path) -> None:
    deployed, trained = new_agent(TD7, zs_dim=6), new_agent(TD7, zs_dim=6)
    policy = Policy.load(save(deployed, tmp_path / "a.ckpt", trained_policy=trained.policy_state()))
    obs = np.ones(3)
    np.testing.assert_array_equal(policy(obs), deployed.act(obs))
    assert not np.allclose(deployed.act(obs), trained.act(obs))
    assert policy.metadata["algorithm"] == "TD7"


# Other files.


class Evil:
    """Run code when it is unpickled."""

    def __reduce__(self) -> Any:
        return open, ("PWNED", "w")


@pytest.mark.parametrize("content", [b"no policy", pickle.dumps(Evil())])
@pytest.mark.parametrize("name", ["a.onnx", "a.ckpt"])
def test_file_of_another_kind_is_refused(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(name, "No such file or directory"):
        Policy.load(name)
    Path(name).write_bytes(content)
    said = "got an error" if name == "a.onnx" else "is damaged, or not a checkpoint"
    with refused(name, said, "use"):
        Policy.load(name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with refused("path", "a.pt2", "torch.export.load"):
        Policy.load("a.pt2")


@pytest.mark.parametrize(("shape", "metadata"), [([3], "{}"), (["batch", "size"], "{}"), (["batch", 3], "no JSON")])
def test_onnx_file_of_another_program_is_refused(shape: list[Any], metadata: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    ends = [onnx.helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, shape) for each in ("obs", "action")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["obs"], ["action"])], "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    model.metadata_props.add(key="env_id", value=metadata)
    onnx.save(model, tmp_path / "a.onnx")
    with refused("a.onnx", "got an error", "another file"):
        Policy.load(tmp_path / "a.onnx")


def test_missing_onnxruntime_names_the_extra(onnx_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with refused("ONNX policy", "none", "pip install -c constraints.txt -e '.[export]'"):
        Policy.load(onnx_file)
