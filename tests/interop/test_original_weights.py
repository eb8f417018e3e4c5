"""Test the exchange of weight files with independent implementations of the other programs' networks."""

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # the name in the original code

from td3_lightning import TD3, TD7, UsageError
from td3_lightning.algorithm.encoders import Trunk
from td3_lightning.cli.app import main
from td3_lightning.interop.original_weights import read_weight_files, write_weight_files
from td3_lightning.serialization.checkpoint_file import read_checkpoint

OBS, ACTIONS, HIDDEN, BATCH = 3, 1, (7, 5), 16
SMALL = [
    *("--data.env_id=Pendulum-v1", "--model.hidden_dims=[7,5]", "--data.batch_size=8", "--collector.warmup_steps=10"),
    *("--trainer.max_epochs=1", "--data.steps_per_epoch=9", "--data.eval_episodes=1", "--data.test_episodes=1"),
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--model.actor_lr=1e-3"),
]


# Other programs.


class Actor(nn.Module):
    """Implement the actor of the original code, for Pendulum's action bound of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(OBS, HIDDEN[0]), nn.Linear(*HIDDEN), nn.Linear(HIDDEN[1], ACTIONS)

    def forward(self, state: Tensor) -> Tensor:
        hidden = F.relu(self.l2(F.relu(self.l1(state))))
        return 2.0 * torch.tanh(self.l3(hidden))


class Critic(nn.Module):
    """Implement the critics of the original code."""

    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(OBS + ACTIONS, HIDDEN[0]), nn.Linear(*HIDDEN), nn.Linear(HIDDEN[1], 1)
        self.l4, self.l5, self.l6 = nn.Linear(OBS + ACTIONS, HIDDEN[0]), nn.Linear(*HIDDEN), nn.Linear(HIDDEN[1], 1)

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([state, action], 1)
        q1 = self.l3(F.relu(self.l2(F.relu(self.l1(both)))))
        return q1, self.l6(F.relu(self.l5(F.relu(self.l4(both)))))


class Original:
    """Implement the parts of the original TD3 that its files contain."""

    def __init__(self) -> None:
        self.actor, self.critic = Actor(), Critic()
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4)

    @property
    def parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("critic", "critic_optimizer", "actor", "actor_optimizer")}

    def save(self, filename: str) -> None:
        for name, part in self.parts.items():
            torch.save(part.state_dict(), f"{filename}_{name}")

    def load(self, filename: str) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(torch.load(f"{filename}_{name}"))

    def train(self, updates: int) -> None:
        """Update like the original: the critics in every update, the actor in every second."""
        generator = torch.Generator().manual_seed(7)
        for update in range(updates):
            state, action, target = (torch.randn(BATCH, size, generator=generator) for size in (OBS, ACTIONS, 1))
            q1, q2 = self.critic(state, action)
            self._step(self.critic_optimizer, F.mse_loss(q1, target) + F.mse_loss(q2, target))
            if update % 2:
                self._step(self.actor_optimizer, -self.critic(state, self.actor(state))[0].mean())

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def new_module(**kwargs: Any) -> TD3:
    return TD3(OBS, [-2.0] * ACTIONS, [2.0] * ACTIONS, **{"hidden_dims": HIDDEN, **kwargs})


def run(*words: object) -> None:
    assert main([*map(str, words)]) == 0


@pytest.fixture
def original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Original:
    """Train an original agent and save it as "theirs" in the working directory."""
    monkeypatch.chdir(tmp_path)
    program = Original()
    program.train(updates=6)
    program.save("theirs")
    return program


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(50, OBS), torch.randn(50, ACTIONS)


def same(one: Any, other: Any) -> bool:
    """Return whether two state dicts are equal, bit by bit."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


# From there to here.


def test_imported_networks_equal_the_original(original: Original) -> None:
    module, (obs, action) = new_module(), inputs()
    states = read_weight_files(module, "theirs")
    assert torch.equal(module.actor(obs), original.actor(obs))
    assert torch.equal(module.actor_target(obs), original.actor(obs))  # as after the original's load
    expected = torch.cat(original.critic(obs, action), dim=1).T
    torch.testing.assert_close(module.critics(obs, action), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(module.critics_target(obs, action), expected, rtol=1e-6, atol=1e-6)
    for critic, first in enumerate((1, 4)):
        for layer in range(3):
            linear, batched = getattr(original.critic, f"l{first + layer}"), module.critics.layers[2 * layer]
            assert torch.equal(batched.weight[critic], linear.weight.T)  # type: ignore[index]
            assert torch.equal(batched.bias[critic, 0], linear.bias)  # type: ignore[index]
            for moment in ("exp_avg", "exp_avg_sq"):
                theirs = original.critic_optimizer.state[linear.weight][moment]
                assert torch.equal(states[1]["state"][2 * layer][moment][critic], theirs.T)
                assert theirs.count_nonzero()
    assert module.updates == 6
    assert states[0]["state"][0]["step"] == 3  # updates of the actor


def test_training_continues_from_imported_weights(original: Original) -> None:
    run("import", *SMALL, "--files", "theirs")
    Path("run.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    run("fit", "--config", "run.yaml", *SMALL, "--ckpt_path", "theirs.ckpt")
    checkpoint = read_checkpoint("lightning_logs/run/version_0/checkpoints/last.ckpt")
    assert checkpoint["clocks"]["updates"] == 6 + 9
    assert checkpoint["clocks"]["env_steps"] == 10 + 9  # including a new warm-up
    steps = [state["state"][0]["step"].item() for state in checkpoint["optimizer_states"]]
    assert steps == [3 + 4, 6 + 9]


def test_imported_checkpoint_needs_no_configuration(original: Original, capsys: pytest.CaptureFixture[str]) -> None:
    run("import", *SMALL, "--files", "theirs", "--output", "folder/ours.ckpt")
    assert "folder/ours.ckpt: weights and Adam state, after 6 updates" in capsys.readouterr().out
    assert main(["import", *SMALL, "--files", "theirs", "--output", "folder/ours.ckpt"]) == 2  # would overwrite a file
    run("test", "--ckpt_path", "folder/ours.ckpt", "--trainer.enable_progress_bar=false")
    obs, _ = inputs()
    policy = TD3.load_from_checkpoint("folder/ours.ckpt")
    np.testing.assert_array_equal(policy.act(obs.numpy()), original.actor(obs).detach().numpy())


# There and back.


def test_round_trip_from_the_original_is_exact(original: Original) -> None:
    run("import", *SMALL, "--files", "theirs")
    run("export", "--ckpt_path", "theirs.ckpt", "--files", "back/again")
    returned = Original()
    returned.load("back/again")
    for name, part in original.parts.items():
        if "optimizer" in name:
            assert same(returned.parts[name].state_dict()["state"], part.state_dict()["state"])
        else:
            assert same(returned.parts[name].state_dict(), part.state_dict())
    for program in (original, returned):  # the next updates are equal with equal learning rates
        program.actor_optimizer.param_groups[0]["lr"] = 3e-4
        program.train(updates=4)
    assert same(returned.critic.state_dict(), original.critic.state_dict())
    assert same(returned.actor.state_dict(), original.actor.state_dict())


def test_round_trip_from_this_package_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    run("fit", "--config", "run.yaml", *SMALL)
    last = "lightning_logs/run/version_0/checkpoints/last.ckpt"
    before = read_checkpoint(last)
    assert not same(before["state_dict"]["actor.layers.0.weight"], before["state_dict"]["actor_target.layers.0.weight"])
    for style in ("original", "notebook", "blog"):
        run("export", "--ckpt_path", last, "--files", style, "--style", style)
        run("import", *SMALL, "--files", style)
        after = read_checkpoint(f"{style}.ckpt")
        assert same(before["state_dict"], after["state_dict"])  # including the targets
        for one, other in zip(before["optimizer_states"], after["optimizer_states"], strict=True):
            assert same(one["state"], other["state"])
        assert before["clocks"]["updates"] == after["clocks"]["updates"] == 9


def trained(module: TD3) -> dict[str, Any]:
    """Return the parts of a checkpoint that the weight files represent."""
    hyper_parameters, clocks = dict(module.hparams), {"updates": 1}
    return {"hyper_parameters": hyper_parameters, "state_dict": module.state_dict(), "clocks": clocks}


def test_file_of_old_torch_is_read_and_cannot_allocate_memory(original: Original) -> None:
    state = torch.load("theirs_actor")
    torch.save(state, "theirs_actor", _use_new_zipfile_serialization=False)
    assert Path("theirs_actor").read_bytes()[:2] != b"PK"
    read_weight_files(new_module(), "theirs")
    bomb = b"\x80\x02cbuiltins\nbytearray\n" + pickle.LONG1 + b"\x06" + (3 * 2**30).to_bytes(6, "little") + b"\x85R."
    content = Path("theirs_actor").read_bytes()
    for damaged in (bomb, content[:-100], content[:20] + bomb):
        Path("theirs_actor").write_bytes(damaged)
        with pytest.raises(UsageError, match="theirs_actor must be a file of weights, got one that is damaged or"):
            read_weight_files(new_module(), "theirs")


def test_layer_names_of_every_style(tmp_path: Path) -> None:
    module = new_module()
    checkpoint = trained(module)
    names: dict[str, list[str]] = {}
    for style in ("original", "notebook", "blog"):
        files = write_weight_files(checkpoint, tmp_path / style, style)
        names[style] = [key for file in files[:2] for key in torch.load(file) if key.endswith("weight")]
    assert [file.name for file in files[:2]] == ["blog_actor.pth", "blog_critic.pth"]
    assert len(files) == 4  # no optimizers
    assert names["original"] == [f"l{n}.weight" for n in (1, 2, 3, 1, 2, 3, 4, 5, 6)]
    assert names["blog"] == [f"layer_{n}.weight" for n in (1, 2, 3, 1, 2, 3, 4, 5, 6)]
    assert names["notebook"] == [
        *(f"layers.{n}.weight" for n in (0, 2, 4)),
        *(f"layers_q{critic}.{n}.weight" for critic in (1, 2) for n in (0, 2, 4)),
    ]


# Mistakes.


def spoil(name: str, change: Any) -> None:
    torch.save(change(torch.load(name)), name)


def group(change: dict[str, Any]) -> Any:
    """Return a function that changes a setting of Adam."""
    return lambda state: {**state, "param_groups": [{**state["param_groups"][0], **change}]}


ADAM, NETWORKS = "must contain a state of Adam", "must contain the Adam of these networks"


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("actor", lambda state: OrderedDict(state, extra=torch.zeros(1)), "extra"),
        ("critic", lambda state: list(state.values()), "got a list"),
        ("actor", lambda state: {**state, "l1.weight": torch.zeros(9, OBS)}, "hidden_dims"),
        ("critic", lambda state: {name: state[name] for name in torch.load("theirs_actor")}, "num_critics"),
        ("actor", lambda state: {**state, "l1.bias": torch.full((7,), 1e300, dtype=torch.float64)}, "finite weights"),
        ("critic", lambda state: {**state, "l6.bias": torch.tensor([float("nan")])}, "finite weights"),
        ("actor", lambda state: Path("code"), "could run code"),
        ("critic", lambda state: {**state, "l1.bias": bytearray(8)}, "damaged or could run code"),
        ("critic_optimizer", group({"betas": (0.5, 0.9)}), "betas"),
        ("actor_optimizer", lambda state: torch.load("theirs_actor"), ADAM),
        ("critic_optimizer", lambda state: {**state, "state": {0: {"square_avg": torch.zeros(1)}}}, ADAM),
        ("critic_optimizer", lambda state: torch.load("theirs_actor_optimizer"), NETWORKS),
    ],
)
def test_invalid_files_are_refused(name: str, change: Any, expected: str, original: Original) -> None:
    spoil(f"theirs_{name}", change)
    with pytest.raises(UsageError, match=expected) as caught:
        read_weight_files(new_module(), "theirs")
    assert f"theirs_{name}" in str(caught.value)


def test_adam_state_may_be_absent_or_of_old_torch(original: Original) -> None:
    """Old states store steps as plain numbers and lack some settings."""
    expected = read_weight_files(new_module(), "theirs")
    for name in ("theirs_actor_optimizer", "theirs_critic_optimizer"):
        state = torch.load(name)
        for entry in state["state"].values():
            entry["step"] = int(entry["step"])
        for setting in ("maximize", "foreach", "capturable", "differentiable", "fused"):
            state["param_groups"][0].pop(setting)
        torch.save(state, name)
    assert all(map(same, read_weight_files(new_module(), "theirs"), expected))
    spoil("theirs_critic_optimizer", lambda state: {**state, "state": {}})  # before the first step
    assert read_weight_files(new_module(), "theirs")[1]["state"] == {}
    os.remove("theirs_actor_optimizer")
    module = new_module()
    assert read_weight_files(module, "theirs") == []  # one alone is ignored
    assert module.updates == 0


def test_older_target_files_warn(tmp_path: Path) -> None:
    module = TD3(3, [-1.0], [1.0], hidden_dims=(4,))
    files = write_weight_files(trained(module), tmp_path / "x")
    target = next(file for file in files if file.name == "x_critic_target")
    os.utime(target, (0, target.stat().st_mtime - 999))
    with pytest.warns(UserWarning, match=r"x_critic_target is older than .*x_critic\. If it is from an earlier"):
        read_weight_files(module, tmp_path / "x")


def test_agents_that_the_files_cannot_represent_are_refused(tmp_path: Path) -> None:
    for module, expected in (
        (new_module(layer_norm=True), "layer_norm"),
        (new_module(encoder=Trunk([4])), "encoder"),
        (new_module(normalize_observations=True), "normalize_observations"),
        (TD3(OBS, [0.0], [2.0]), "SymmetricActionBounds"),
        (TD3(OBS, [-1.0, -2.0], [1.0, 2.0]), "SymmetricActionBounds"),
        (TD7(OBS, [-1.0], [1.0]), "requires TD3, got TD7"),
    ):
        checkpoint = {**trained(module), "algorithm": module.algorithm}
        with pytest.raises(UsageError, match=rf"^export .*{expected}"):
            write_weight_files(checkpoint, tmp_path / "no")
        with pytest.raises(UsageError, match=rf"^import .*{expected}"):
            read_weight_files(module, tmp_path / "no")
    assert not list(tmp_path.iterdir())
