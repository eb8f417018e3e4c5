"""Check that each of two processes saves and restores its own replay, environments and noise.

This file is also the program that forks the processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only

import conftest  # noqa: F401  # no screen, one thread
import toys  # noqa: F401
from processes import free_port
from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.checkpointing.log_rollback import LogRollback
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.serialization.checkpoint_file import read_checkpoint, replays_in
from td3_lightning.serialization.segment_files import FOLDER, names_in, with_rows


def train(folder: Path, epochs: int, ckpt_path: str | None, devices: int, seed: int) -> None:
    """Run the part of one rank."""
    L.seed_everything(seed, verbose=False)
    settings: dict[str, Any] = {"batch_size": 4, "capacity": 100, "steps_per_epoch": 10, "eval_episodes": 2}
    data = ReplayData("toys/Seeded-v0", **settings, num_envs=2, priority_alpha=0.4)
    settings = {"hidden_dims": (4,), "critic_loss": "huber", "normalize_observations": True}
    module = TD3(3, data.action_low, data.action_high, **settings)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        callbacks=[Collector(20), LogRollback(), BestCheckpoint(dirpath=str(folder)), LastCheckpoint(folder)],
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=5,
        logger=RunLogger(str(folder), "", ""),
        max_epochs=epochs,
        num_sanity_val_steps=0,
        plugins=[AtomicCheckpointIO()],
    )
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)


def main() -> None:
    """Run the requests from standard input, each in its own processes, and print the exit codes."""
    for line in sys.stdin:
        folder, epochs, ckpt_path, devices, seed = json.loads(line)
        port = free_port()
        children = []
        for rank in range(devices):
            child = os.fork()
            if child == 0:
                ranks = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": devices, "MASTER_PORT": port}
                if devices > 1:
                    os.environ.update({name: str(value) for name, value in ranks.items()}, MASTER_ADDR="127.0.0.1")
                rank_zero_only.rank = rank
                try:
                    train(Path(folder), epochs, ckpt_path, devices, seed)
                except UsageError as error:
                    print(error, file=sys.stderr, flush=True)
                    os._exit(2)
                os._exit(0)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def requests(*asked: list[Any]) -> tuple[list[list[int]], str]:
    """Return the exit codes of each request's ranks, and the text on stderr."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    lines = "".join(json.dumps(request) + "\n" for request in asked)
    done = subprocess.run(
        [sys.executable, __file__], input=lines, env=environment, text=True, capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")], done.stderr


def states(folder: Path) -> list[dict[str, Any]]:
    """Return every rank's replay in the last checkpoint of a folder, with its rows."""
    replays = [with_rows(replay, folder / FOLDER) for replay in replays_in(read_checkpoint(folder / "last.ckpt"))]
    for replay in replays:
        for ring in replay["rings"]:
            ring["rows"] = torch.cat([rows for _, rows in ring["rows"]])[-50:]
            ring.pop("segments")
    return replays


def test_every_rank_resumes_its_own_state(tmp_path: Path) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    codes, said = requests(
        [str(whole), 4, None, 2, 1],
        [str(again), 2, None, 2, 1],
        [str(again), 4, str(again / "last.ckpt"), 2, 7],
        [str(tmp_path / "alone"), 5, str(again / "last.ckpt"), 1, 7],
    )
    assert codes == [[0, 0], [0, 0], [0, 0], [2]], said
    assert "The number of processes must be 2, as in the checkpoint, got 1. Use --trainer.devices 2" in said

    one, two = states(whole)
    assert not torch.equal(one["rings"][0]["rows"], two["rings"][0]["rows"])
    assert not torch.equal(one["generator"], two["generator"])
    assert str([one, two]) == str(states(again))
    for left, right in zip([one, two], states(again), strict=True):
        for ring, other in zip(left["rings"], right["rings"], strict=True):
            assert torch.equal(ring["rows"], other["rows"])
        assert torch.equal(left["generator"], right["generator"])
        assert left["priorities"]["largest"] == right["priorities"]["largest"]
        assert all(map(torch.equal, left["priorities"]["rings"], right["priorities"]["rings"]))
    assert not torch.equal(one["priorities"]["rings"][0], two["priorities"]["rings"][0])
    assert max(part.max() for state in (one, two) for part in state["priorities"]["rings"]) > 1

    last, resumed = (read_checkpoint(folder / "last.ckpt") for folder in (whole, again))
    assert len(last["target_noise"]) == 2
    assert not torch.equal(*last["target_noise"])
    assert all(map(torch.equal, last["target_noise"], resumed["target_noise"]))
    assert all(map(torch.equal, last["state_dict"].values(), resumed["state_dict"].values()))
    for rank, other in zip(last["ReplayData"]["ranks"], resumed["ReplayData"]["ranks"], strict=True):
        assert str(rank["envs"]) == str(other["envs"])
    assert str(last["callbacks"]["Collector"]) == str(resumed["callbacks"]["Collector"])
    unseen = [len(rank.get("observations", [])) for rank in last["callbacks"]["Collector"]["ranks"]]
    stored = [ring["written"] for state in (one, two) for ring in state["rings"]]
    assert last["state_dict"]["normalizer.count"] == sum(stored) - sum(unseen)  # those of both ranks
    assert {name.split("-")[1] for name in names_in(list(replays_in(last)))} == {"0", "1"}


if __name__ == "__main__":
    main()
