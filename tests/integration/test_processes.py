"""Test training with two processes: each collects its own data, and both have the same weights.

This file is also the program of those processes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

import conftest  # noqa: F401  # no screen, one thread
from processes import free_port
from td3_lightning import TD3, Batch, Collector, ReplayData
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
    """Kill the process of the first rank during training."""

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
        if (trainer.global_rank, module.updates) == (0, 5):
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


def solve(number: int, folder: Path) -> None:
    """Train until rank zero has solved the task. Rank one never solves it."""
    train(number, folder, StopWhenSolved(-1e9, window=(2, 1000)[number]))


def pair(folder: Path, work: Callable[..., None], *further: Any) -> dict[str, Any]:
    """Run two processes. Return their exit codes and the seconds between their ends."""
    folder.mkdir()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
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


def test_killed_rank_ends_the_other(pairs: Any) -> None:
    folder, ended = pairs
    assert ended["killed"]["codes"] == [-signal.SIGKILL, 1]
    assert ended["killed"]["seconds"] < 30
    assert "Error" in (folder / "killed" / "1.log").read_text()


def test_all_ranks_stop_when_rank_zero_has_solved(pairs: Any) -> None:
    folder, ended = pairs
    assert ended["solved"]["codes"] == [0, 0]
    updates = [len(torch.load(folder / "solved" / f"{number}.pt")["batches"]) for number in (0, 1)]
    assert updates[0] == updates[1] < UPDATES


if __name__ == "__main__":
    root = Path(sys.argv[1])
    reports = {"whole": pair(root / "whole", train)}
    reports["solved"] = pair(root / "solved", solve)
    reports["killed"] = pair(root / "killed", train, Dies())
    (root / "ended.json").write_text(json.dumps(reports))
