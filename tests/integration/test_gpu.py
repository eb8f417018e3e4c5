"""Runs on a GPU against runs on the CPU. Without a GPU, all are skipped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning as L
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from lightning.pytorch.callbacks import Callback

import recorded
import toys  # noqa: F401  # registers them
from run_comparison import differences
from td3_lightning import (
    TD3,
    TD7,
    AveragedWeights,
    Batch,
    Collector,
    Convolutions,
    Dataset,
    Policy,
    PolicyCheckpoint,
    ReplayData,
    Trunk,
)
from td3_lightning.cli.app import main
from td3_lightning.replay.pixels import Pixels
from tests.replay.test_pixels import Film, Linear


class LargeFilm(Film):
    """Frames that are large enough for convolutions."""

    observation_space = Box(0, 255, (48, 48, 3), np.uint8)

    def _frame(self) -> Any:
        return np.tile(super()._frame(), (8, 6, 1))[:, :48]


gym.register("toys/LargeFilm-v0", entry_point=LargeFilm, disable_env_checker=True)
HAS_GPU = torch.cuda.is_available()
requires_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")
PENDULUM: dict[str, Any] = {"env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 9}}
FILM: dict[str, Any] = {"env_id": "toys/Film-v0", "pixels": Pixels(stack=3, height=4, width=5, shift=1)}
LARGE_FILM: dict[str, Any] = {
    "env_id": "toys/LargeFilm-v0",
    "pixels": Pixels(stack=2, height=44, width=44, shift=2),
    "capacity": 60,
}
CONVOLUTIONS = Convolutions(4, stack=2, height=44, width=44)
RECORDED: dict[str, Any] = {**PENDULUM, "dataset": Dataset("recorded-v0", offline=True)}
CASES: dict[str, tuple[type[TD3], dict[str, Any], dict[str, Any], list[Callback]]] = {
    "default": (TD3, {}, PENDULUM, []),
    "normalized": (TD3, {"normalize_observations": True}, PENDULUM, []),
    "prioritized": (TD3, {"critic_loss": "huber"}, {**PENDULUM, "priority_alpha": 0.4, "num_envs": 2, "n_step": 2}, []),
    "layer norm, clipped": (TD3, {"layer_norm": True, "max_grad_norm": 0.1, "num_critics": 3}, PENDULUM, []),
    "shared encoder": (TD3, {"encoder": Trunk([6], shared=True)}, PENDULUM, []),
    "averaged": (TD3, {}, PENDULUM, [AveragedWeights(decay=0.9)]),
    "pixels": (TD3, {"encoder": Linear()}, {**FILM, "capacity": 60}, []),
    "convolutions": (TD3, {"encoder": CONVOLUTIONS}, LARGE_FILM, []),
    "offline": (TD3, {"bc_weight": 0.4, "normalize_observations": True}, RECORDED, []),
    "TD7": (TD7, {"zs_dim": 4, "target_update_freq": 4}, PENDULUM, [PolicyCheckpoint(1, 2, switch_after=12)]),
    "TD7, prioritized": (TD7, {"zs_dim": 4}, {**PENDULUM, "priority_alpha": 0.4}, []),
}
TINY = """
data:
  env_id: Pendulum-v1
  env_kwargs: {max_episode_steps: 20}
  steps_per_epoch: 30
  batch_size: 8
  eval_episodes: 1
model: {hidden_dims: [8]}
collector: {warmup_steps: 20}
trainer: {enable_progress_bar: false}
seed_everything: 4
"""


def train(
    make_trainer: Any, case: str, device: str, precision: str = "64-true", **model: Any
) -> tuple[TD3, ReplayData]:
    """Take 40 updates in 2 epochs."""
    L.seed_everything(3, verbose=False)
    kind, settings, data_settings, callbacks = CASES[case]
    data = ReplayData(**{"capacity": 100, "batch_size": 8, "eval_episodes": 1, "steps_per_epoch": 20, **data_settings})
    module = kind(data.obs_dim, data.action_low, data.action_high, **{"hidden_dims": (8, 8), **settings, **model})
    trainer = make_trainer(
        accelerator=device,
        devices=1,
        callbacks=[*callbacks, Collector(warmup_steps=30)],
        max_epochs=2,
        precision=precision,
    )
    trainer.fit(module, datamodule=data)
    assert module.updates == 40
    return module, data


def state(module: TD3) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in module.state_dict().items()}


def check_close(one: TD3, other: TD3, rtol: float, atol: float) -> None:
    left, right = state(one), state(other)
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=rtol, atol=atol, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.fixture(autouse=True)
def _dataset(tmp_path: Path) -> None:
    recorded.write(tmp_path / "datasets")


@requires_gpu
@pytest.mark.parametrize("case", CASES)
def test_training_equals_training_on_the_cpu(case: str, make_trainer: Any) -> None:
    """In float64, so that the order of sums hardly matters; the actions are float32."""
    expected, data = train(make_trainer, case, "cpu")
    found, found_data = train(make_trainer, case, "cuda")
    check_close(found, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found_data.replay.rows, data.replay.rows, rtol=1e-5, atol=1e-5)


@requires_gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("case", ["default", "TD7", "pixels"])
def test_precisions_train(case: str, precision: str, make_trainer: Any) -> None:
    found, _ = train(make_trainer, case, "cuda", precision)
    expected, _ = train(make_trainer, case, "cpu")
    weights, doubles = (
        torch.cat([p.detach().double().cpu().flatten() for p in m.parameters()]) for m in (found, expected)
    )
    assert torch.isfinite(weights).all()
    torch.testing.assert_close(weights, doubles, rtol=0.2, atol=0.05)


class Unsynchronized(TD3):
    """Raise an error if an update waits for the GPU."""

    def update(self, batch: Batch) -> dict[str, torch.Tensor]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return super().update(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@requires_gpu
def test_update_does_not_wait_for_the_gpu(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "default", (Unsynchronized, {}, PENDULUM, []))
    train(make_trainer, "default", "cuda", "32-true")


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs the command in a folder with the configuration TINY."""

    def run(folder: Path, *words: str) -> int:
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        Path("tiny.yaml").write_text(TINY)
        return main(["fit", "--config=tiny.yaml", *words])

    return run


@requires_gpu
@pytest.mark.parametrize(
    "extra",
    [
        [],
        ["--trainer.callbacks+=AveragedWeights"],
        ["--data.priority_alpha=0.4", "--model.critic_loss=huber", "--model.normalize_observations=true"],
        ["--model=TD7", "--model.zs_dim=8", "--trainer.precision=bf16-mixed"],
        ["--trainer.precision=16-mixed"],
    ],
    ids=str,
)
def test_resumed_run_is_the_same_run(extra: list[str], tmp_path: Path, fit: Callable[..., int]) -> None:
    """The runs also leave a policy that acts on a CPU as on the GPU."""
    words = [*extra, "--trainer.accelerator=cuda", "--trainer.devices=1"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert fit(whole, *words, "--trainer.max_epochs=3") == 0
    assert fit(resumed, *words, "--trainer.max_epochs=1") == 0
    assert fit(resumed, *words, "--trainer.max_epochs=3", "--ckpt_path=last") == 0
    (one,), (other,) = (tuple(folder.rglob("last.ckpt")) for folder in (whole, resumed))
    assert [name for name in differences(one, other) if "BestCheckpoint" not in name] == []  # it holds paths
    agent = (TD7 if "--model=TD7" in extra else TD3).load_from_checkpoint(one, map_location="cuda")
    assert agent.device.type == "cuda"
    obs = np.ones((5, 3), np.float32)
    np.testing.assert_allclose(agent.act(obs), Policy.load(one)(obs), rtol=1e-4, atol=1e-5)


@requires_gpu
@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_run_continues_on_the_other_device(first: str, second: str, tmp_path: Path, fit: Callable[..., int]) -> None:
    assert fit(tmp_path, f"--trainer.accelerator={first}", "--trainer.max_epochs=1") == 0
    assert fit(tmp_path, "--ckpt_path=last", f"--trainer.accelerator={second}", "--trainer.max_epochs=2") == 0
