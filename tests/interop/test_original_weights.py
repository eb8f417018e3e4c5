"""Test the exchange of weight files with independent implementations of the other programs' networks."""

import os
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # the name in the original code

from td3_lightning import TD3, UsageError
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
    assert "output must be a new file, got folder/ours.ckpt" in capsys.readouterr().err
    run("test", "--ckpt_path", "folder/ours.ckpt", "--trainer.enable_progress_bar=false")
    assert "Pendulum-v1" not in capsys.readouterr().err
    obs, _ = inputs()
    policy = TD3.load_from_checkpoint("folder/ours.ckpt")
    np.testing.assert_array_equal(policy.act(obs.numpy()), original.actor(obs).detach().numpy())
    assert not Path("lightning_logs").exists()


# There and back.


def test_round_trip_from_the_original_is_exact(original: Original) -> None:
    run("import", *SMALL, "--files", "theirs")
    run("export", "--ckpt_path", "theirs.ckpt", "--files", "back/again")
    returned = Original()
    returned.load("back/again")
    obs, action = inputs()
    assert torch.equal(returned.actor(obs), original.actor(obs))
    assert all(map(torch.equal, returned.critic(obs, action), original.critic(obs, action)))
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


@pytest.mark.parametrize("style", ["original", "notebook", "blog"])
def test_round_trip_from_this_package_is_exact(style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    run("fit", "--config", "run.yaml", *SMALL)
    last = "lightning_logs/run/version_0/checkpoints/last.ckpt"
    run("export", "--ckpt_path", last, "--files", "ours", "--style", style)
    run("import", *SMALL, "--files", "ours")
    before, after = read_checkpoint(last), read_checkpoint("ours.ckpt")
    assert same(
        before["state_dict"], after["state_dict"]
    )  # including the targets, which differ from the online weights
    assert not same(before["state_dict"]["actor.layers.0.weight"], before["state_dict"]["actor_target.layers.0.weight"])
    for one, other in zip(before["optimizer_states"], after["optimizer_states"], strict=True):
        assert same(one["state"], other["state"])
    assert before["clocks"]["updates"] == after["clocks"]["updates"] == 9


def trained(module: TD3) -> dict[str, Any]:
    """Return the parts of a checkpoint that the weight files represent."""
    hyper_parameters, clocks = dict(module.hparams), {"updates": 1}
    return {"hyper_parameters": hyper_parameters, "state_dict": module.state_dict(), "clocks": clocks}


def test_import_requires_symmetric_bounds_and_finite_weights(tmp_path: Path) -> None:
    files = write_weight_files(trained(TD3(OBS, [-2.0], [2.0], hidden_dims=HIDDEN)), tmp_path / "x")
    with pytest.raises(UsageError, match=r"equal action bounds of the form \[-x, x\], got \[-1.0\] to \[2.0\]"):
        read_weight_files(TD3(OBS, [-1.0], [2.0], hidden_dims=HIDDEN), tmp_path / "x")
    weights = torch.load(files[0], weights_only=True)
    next(iter(weights.values())).fill_(float("nan"))
    torch.save(weights, files[0])
    with pytest.raises(UsageError, match="x_actor must have finite weights"):
        read_weight_files(TD3(OBS, [-2.0], [2.0], hidden_dims=HIDDEN), tmp_path / "x")
    weights = {name: value.nan_to_num().double() + 1e300 for name, value in weights.items()}  # too large for float32
    torch.save(weights, files[0])
    with pytest.raises(UsageError, match="x_actor must have finite weights"):
        read_weight_files(TD3(OBS, [-2.0], [2.0], hidden_dims=HIDDEN), tmp_path / "x")


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


def test_failed_export_keeps_the_files_of_an_earlier_one(
    original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("import", "--files=theirs", *SMALL)
    checkpoint = read_checkpoint(Path("theirs.ckpt"))
    files = write_weight_files(checkpoint, "ours")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for name, weight in checkpoint["state_dict"].items():
        weight += ".layers." in name
    synced: list[int] = []

    def fail_at_third(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail_at_third)
    with pytest.raises(OSError, match="No space left"):
        write_weight_files(checkpoint, "ours")
    assert len(files) == 6
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_round_trip_with_three_critics(tmp_path: Path) -> None:
    module, other = new_module(num_critics=3, hidden_dims=(4,)), new_module(num_critics=3, hidden_dims=(4,))
    checkpoint = trained(module)
    write_weight_files(checkpoint, tmp_path / "three")
    assert read_weight_files(other, tmp_path / "three") == []
    assert same(other.state_dict(), module.state_dict())


# Mistakes.


def first(change: dict[str, Any]) -> Any:
    """Return a function that changes the entry of the first parameter in a state of Adam."""
    return lambda state: {**state, "state": {**state["state"], 0: {**state["state"][0], **change}}}


def spoil(name: str, change: Any) -> None:
    state = torch.load(name)
    torch.save(change(state), name)


def group(change: dict[str, Any]) -> Any:
    """Return a function that changes a setting of Adam."""
    return lambda state: {**state, "param_groups": [{**state["param_groups"][0], **change}]}


ADAM, NETWORKS = "must contain a state of Adam", "must contain the Adam of these networks"


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("actor", lambda state: OrderedDict(state, extra=torch.zeros(1)), "extra"),
        ("critic", lambda state: {f"x{key}": value for key, value in state.items()}, "xl1.weight"),
        ("critic", lambda state: list(state.values()), "got a list"),
        ("actor", lambda state: {**state, "l1.weight": torch.zeros(9, OBS)}, "hidden_dims"),
        ("actor", lambda state: {**state, "l1.bias": 3}, r"l1.bias in theirs_actor must be a dense tensor .* got 3\."),
        ("critic", lambda state: {**state, "l6.bias": torch.zeros(1, dtype=torch.int64)}, "l6.bias in theirs_critic"),
        ("critic_optimizer", lambda state: {**state, "state": {}}, None),
        ("critic_optimizer", group({"betas": (0.5, 0.9)}), "betas"),
        ("actor_optimizer", group({"eps": 1e-3}), "eps"),
        ("actor", lambda state: Path("code"), "could run code"),
        ("critic", lambda state: {**state, "l1.bias": bytearray(8)}, "damaged or could run code"),
        ("actor_optimizer", lambda state: torch.load("theirs_actor"), ADAM),
        ("critic_optimizer", lambda state: {**state, "state": {0: {"square_avg": torch.zeros(1)}}}, ADAM),
        ("critic_optimizer", first({"exp_avg": 3.0}), ADAM),
        ("critic_optimizer", first({"step": torch.tensor(float("nan"))}), ADAM),
        ("critic_optimizer", first({"exp_avg_sq": torch.ones(2)}), NETWORKS),
        ("critic_optimizer", lambda state: torch.load("theirs_actor_optimizer"), NETWORKS),
    ],
)
def test_invalid_files_are_refused(name: str, change: Any, expected: str | None, original: Original) -> None:
    spoil(f"theirs_{name}", change)
    if expected is None:
        assert read_weight_files(new_module(), "theirs")[1]["state"] == {}
        return
    with pytest.raises(UsageError, match=expected) as caught:
        read_weight_files(new_module(), "theirs")
    assert f"theirs_{name}" in str(caught.value)


def test_one_optimizer_file_alone_is_ignored(original: Original) -> None:
    os.remove("theirs_actor_optimizer")
    module = new_module()
    assert read_weight_files(module, "theirs") == []
    assert module.updates == 0


def test_adam_state_of_old_torch_is_read(original: Original) -> None:
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


def test_older_target_files_warn(tmp_path: Path) -> None:
    module = TD3(3, [-1.0], [1.0], hidden_dims=(4,))
    files = write_weight_files(trained(module), tmp_path / "x")
    target = next(file for file in files if file.name == "x_critic_target")
    os.utime(target, (0, target.stat().st_mtime - 999))
    with pytest.warns(
        UserWarning, match=r"x_critic_target is older than .*x_critic\. If it is from an earlier training"
    ):
        read_weight_files(module, tmp_path / "x")


def test_older_optimizer_files_warn(original: Original) -> None:
    os.utime("theirs_critic_optimizer", (0, os.stat("theirs_critic").st_mtime - 999))
    with pytest.warns(UserWarning, match=r"theirs_critic_optimizer is older than .*theirs_critic\. If it is from"):
        read_weight_files(new_module(), "theirs")


@pytest.mark.parametrize("name", ["actor", "critic", "critic_target"])
def test_files_of_two_programs_are_refused(name: str, tmp_path: Path) -> None:
    module = new_module()
    write_weight_files(trained(module), tmp_path / "x")
    (tmp_path / f"x_{name}.pth").write_bytes((tmp_path / f"x_{name}").read_bytes())
    with pytest.raises(UsageError, match=rf"files must be those of one program, got .*x_{name} and .*x_{name}\.pth"):
        read_weight_files(module, tmp_path / "x")


@pytest.mark.parametrize("num_critics", [1, 3, 4, 6, 10])
def test_other_number_of_critics_is_refused(num_critics: int, original: Original) -> None:
    module = new_module(num_critics=num_critics)
    before = [weight.clone() for weight in module.critics.parameters()]
    with pytest.raises(UsageError, match=r"theirs_critic must contain .*(Use files of the original|num_critics)"):
        read_weight_files(module, "theirs")
    assert all(map(torch.equal, before, module.critics.parameters()))


def test_missing_files_are_refused(original: Original, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", *SMALL, "--files", "nobodys"]) == 2
    assert re.match(
        r"files must be the prefix of existing files, got \S+/nobodys without \S+/nobodys_actor\. Use ",
        capsys.readouterr().err,
    )
    assert not Path("nobodys.ckpt").exists()


def test_weights_for_raw_observations_stay_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^import requires model\.normalize_observations to be false, got true\. "):
        read_weight_files(new_module(normalize_observations=True), tmp_path / "any")


def test_critics_of_raw_rewards_stay_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^import requires model\.normalize_rewards to be false, got true\. "):
        read_weight_files(new_module(normalize_rewards=True), tmp_path / "any")


def test_unrepresentable_agents_are_refused(tmp_path: Path) -> None:
    for module, expected in (
        (new_module(layer_norm=True), "LayerNorm"),
        (new_module(encoder=Trunk([4])), "an encoder"),
        (new_module(normalize_observations=True), "raw observations, got one with normalize_observations"),
        (new_module(normalize_rewards=True), "raw rewards, got an agent with normalize_rewards"),
        (TD3(OBS, [0.0], [2.0]), "SymmetricActionBounds"),
        (TD3(OBS, [-1.0, -2.0], [1.0, 2.0]), "SymmetricActionBounds"),
    ):
        checkpoint = trained(module)
        with pytest.raises(UsageError, match=expected):
            write_weight_files(checkpoint, tmp_path / "no")
    assert not list(tmp_path.iterdir())
