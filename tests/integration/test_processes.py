"""Test training with two processes: each collects its own data, and both have the same weights.

This file is also the program of those processes.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

import conftest  # noqa: F401  # no screen, one thread
from td3_lightning import TD3, Batch, Collector, Linear, ReplayData
from td3_lightning.cli.app import main
from td3_lightning.errors import UsageError
from td3_lightning.training.evaluation import StopWhenSolved

UPDATES = 30


def new_module(data: ReplayData) -> TD3:
    """Use no noise in the target, because every process draws its own."""
    return TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(8, 8), policy_noise=0.0)


def new_data() -> ReplayData:
    settings: dict[str, Any] = {"steps_per_epoch": UPDATES, "batch_size": 8, "capacity": 500, "num_envs": 2}
    return ReplayData("Pendulum-v1", {"max_episode_steps": 20}, **settings)


class Watch(Callback):
    """Store the batches, and the weights before the first and after every tenth update."""

    def __init__(self) -> None:
        self.batches: list[list[torch.Tensor]] = []
        self.weights: list[torch.Tensor] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append([part.clone() for part in batch])
        if not batch_idx:
            self._keep(module)

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
        if module.updates % 10 == 0:
            self._keep(module)

    def _keep(self, module: Any) -> None:
        self.weights.append(torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone())


class Dies(Callback):
    """Kill the process of one rank during training."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
        if (trainer.global_rank, module.updates) == (self.rank, 5):
            os.kill(os.getpid(), signal.SIGKILL)


def new_trainer(folder: Path, callbacks: list[Callback], **kwargs: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        limit_val_batches=0,
        logger=False,
        max_epochs=1,
        precision="64-true",
        **kwargs,
    )


# The processes.


def train(number: int, folder: Path, *further: Callback) -> None:
    """Train as one of two ranks, and save what the rank observed."""
    L.seed_everything(3, verbose=False)
    data, watch = new_data(), Watch()
    trainer = new_trainer(folder, [watch, Collector(40), *further], devices=2, strategy="ddp")
    trainer.fit(new_module(data), datamodule=data)
    rows = data.replay.rings[0].rows[:30].tolist()
    torch.save({"batches": watch.batches, "weights": watch.weights, "rows": rows}, folder / f"{number}.pt")


class Uneven(gym.Wrapper):
    """Use another episode length in each process."""

    def reset(self, **kwargs: Any) -> Any:
        self.left = (5, 9)[rank_zero_only.rank]  # type: ignore[attr-defined]
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.left -= 1
        return obs, reward, terminated, truncated or self.left < 1, info


def episodes(number: int, folder: Path) -> None:
    """Collect whole episodes with a decreasing learning rate."""
    L.seed_everything(3, verbose=False)
    watch, lr = Watch(), Linear(start=1e-2, end=1e-3, steps=200)
    data = ReplayData("Pendulum-v1", wrappers=[Uneven], steps_per_epoch=UPDATES, batch_size=8, capacity=500)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(8, 8), actor_lr=lr, critic_lr=lr)
    trainer = new_trainer(folder, [watch, Collector(40, collect="episode")], devices=2, strategy="ddp")
    trainer.fit(module, datamodule=data)
    torch.save({"weights": watch.weights, "env_steps": module.env_steps}, folder / f"{number}.pt")


def solve(number: int, folder: Path) -> None:
    """Train until rank zero has solved the task. Rank one never solves it."""
    train(number, folder, StopWhenSolved(-1e9, window=(2, 1000)[number]))


def command_line(number: int, folder: Path) -> None:
    """Train with two processes from the command line."""
    os.chdir(folder)
    words = ["--data.env_id=Pendulum-v1", "--data.batch_size=4", "--data.steps_per_epoch=6", "--data.eval_episodes=1"]
    words += ["--collector.warmup_steps=5", "--model.hidden_dims=[8]", "--trainer.devices=2", "--trainer.max_epochs=1"]
    sys.exit(main(["fit", *words, "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]))


def pair(folder: Path, work: Callable[..., None], *further: Any) -> dict[str, Any]:
    """Run two processes. Return their exit codes and the seconds between their ends."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    processes: dict[int, int] = {}
    for number in (0, 1):
        process = os.fork()
        if process == 0:
            os.environ["LOCAL_RANK"] = str(number)
            rank_zero_only.rank = number  # as Lightning sets it at import in each process
            sys.stderr = (folder / f"{number}.log").open("w", buffering=1)
            try:
                work(number, folder, *further)
            except SystemExit as ended:
                os._exit(int(ended.code or 0))
            except BaseException as error:
                print(type(error).__name__, error, file=sys.stderr)
                os._exit(1)
            os._exit(0)
        processes[process] = number
    codes: dict[int, int] = {}
    times: list[float] = []
    for _ in processes:
        process, status = os.wait()
        codes[processes[process]] = os.waitstatus_to_exitcode(status)
        times.append(time.monotonic())
    return {"codes": [codes[0], codes[1]], "seconds": times[1] - times[0]}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the folder of all pairs of processes, and their exit codes."""
    folder = tmp_path_factory.mktemp("pairs")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, __file__, folder], env=environ, check=True, timeout=250)
    return folder, json.loads((folder / "ended.json").read_text())


# The tests.


def test_ranks_learn_equally_from_different_experience(pairs: Any) -> None:
    folder, ended = pairs
    assert ended["whole"]["codes"] == [0, 0]
    one, other = (torch.load(folder / "whole" / f"{number}.pt") for number in (0, 1))
    assert len(one["weights"]) == len(other["weights"]) == 1 + UPDATES // 10
    for before, mine, yours in zip(one["weights"][:-1], one["weights"][1:], other["weights"][1:], strict=True):
        assert torch.equal(mine, yours)
        assert not torch.equal(before, mine)
    assert all(mine != yours for mine, yours in zip(one["rows"], other["rows"], strict=True))


def test_ranks_learn_equally_with_different_clocks(pairs: Any) -> None:
    folder, ended = pairs
    assert ended["episodes"]["codes"] == [0, 0]
    one, other = (torch.load(folder / "episodes" / f"{number}.pt") for number in (0, 1))
    assert one["env_steps"] != other["env_steps"]
    assert len(one["weights"]) == len(other["weights"]) == 1 + UPDATES // 10
    assert all(map(torch.equal, one["weights"][1:], other["weights"][1:]))


@pytest.mark.parametrize("strategy", ["ddp_fork", "ddp_spawn"])
def test_strategies_with_equal_seeds_are_refused(strategy: str, tmp_path: Path, capsys: Any) -> None:
    data = new_data()
    trainer = new_trainer(tmp_path, [Collector(40)], devices=1, strategy=strategy)
    with pytest.raises(UsageError, match="forks or spawns"):
        trainer.callbacks[0].setup(trainer, new_module(data), "fit")  # type: ignore[attr-defined]
    words = ["--trainer.devices=2", "--trainer.accelerator=cpu", "--trainer.strategy", strategy]
    assert main(["fit", "--data.env_id=Pendulum-v1", *words]) == 2
    assert "forks or spawns" in capsys.readouterr().err


def test_two_ranks_equal_one_process_with_twice_the_batch(pairs: Any, tmp_path: Path) -> None:
    folder, _ = pairs
    one, other = (torch.load(folder / "whole" / f"{number}.pt") for number in (0, 1))
    batches = [
        Batch(*(torch.cat(parts) for parts in zip(mine, yours, strict=True)))
        for mine, yours in zip(one["batches"], other["batches"], strict=True)
    ]
    module, watch = new_module(new_data()), Watch()
    torch.nn.utils.vector_to_parameters(one["weights"][0].float(), module.parameters())
    trainer = new_trainer(tmp_path, [watch])
    trainer.fit(module, train_dataloaders=DataLoader(batches, batch_size=None))  # type: ignore[arg-type]  # as they are
    for mine, theirs in zip(watch.weights, one["weights"], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_ends_the_other(victim: int, pairs: Any) -> None:
    folder, ended = pairs
    codes = ended[f"victim {victim}"]["codes"]
    assert (codes[victim], codes[1 - victim]) == (-signal.SIGKILL, 1)
    assert ended[f"victim {victim}"]["seconds"] < 30
    said = (folder / f"victim {victim}" / f"{1 - victim}.log").read_text()
    assert "RunError The gradients of the processes could not be averaged, because another process has ended" in said


def test_all_ranks_stop_when_rank_zero_has_solved(pairs: Any) -> None:
    folder, ended = pairs
    assert ended["solved"]["codes"] == [0, 0]
    updates = [len(torch.load(folder / "solved" / f"{number}.pt")["batches"]) for number in (0, 1)]
    assert updates[0] == updates[1] < UPDATES


def test_two_ranks_on_the_command_line(pairs: Any) -> None:
    folder, ended = pairs
    folder = folder / "command line"
    said = [(folder / f"{number}.log").read_text() for number in (0, 1)]
    assert ended["command line"]["codes"] == [0, 0], said
    assert "sync_dist" not in said[0] + said[1]
    assert len(list(folder.rglob("last.ckpt"))) == len(list(folder.rglob("metrics.csv"))) == 1


if __name__ == "__main__":
    root = Path(sys.argv[1])
    reports = {"whole": pair(root / "whole", train), "command line": pair(root / "command line", command_line)}
    reports["episodes"] = pair(root / "episodes", episodes)
    reports["solved"] = pair(root / "solved", solve)
    for victim in (0, 1):
        reports[f"victim {victim}"] = pair(root / f"victim {victim}", train, Dies(victim))
    (root / "ended.json").write_text(json.dumps(reports))
