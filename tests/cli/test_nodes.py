"""Test runs of several processes: torchrun and SLURM on two nodes, and the processes that Lightning starts."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from nodes import FIT, LIMIT, SMALL, ended, nodes, output_of, start
from processes import descendants, free_port, wait_for
from td3_lightning.cli.app import main
from td3_lightning.serialization.checkpoint_file import read_checkpoint

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
PAIR = [sys.executable, "-m", "td3_lightning", *FIT, *SMALL, "--trainer.devices=2"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "0", tmp_path / "1"):
        path.mkdir(exist_ok=True)
        path.joinpath("here.yaml").write_text("data: {env_id: Pendulum-v1}\n")


class Fails(Callback):
    """Fail in the second process."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_rank == 1:
            raise ValueError("the second process fails")


@linux
def test_failing_process_ends_the_other(tmp_path: Path) -> None:
    process = start([*PAIR, "--trainer.callbacks+=tests.cli.test_nodes.Fails"], tmp_path)
    with ended([process]):
        assert process.wait(LIMIT) != 0
        wait_for(lambda: not descendants(process.pid), LIMIT)
    assert "the second process fails" in output_of(tmp_path)


@linux
def test_processes_stop_together_and_end_with_their_launcher(tmp_path: Path) -> None:
    last = tmp_path / "lightning_logs/here/version_0/checkpoints/last.ckpt"
    process = start([*PAIR, "--trainer.max_epochs=100000"], tmp_path)
    with ended([process]):
        wait_for(last.exists, LIMIT)
        before = read_checkpoint(last)["clocks"]["updates"]
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal
        assert process.wait(LIMIT) == 130
    after = read_checkpoint(last)["clocks"]["updates"]
    assert after > before
    process = start([*PAIR, "--trainer.max_epochs=100000", "--ckpt_path=last"], tmp_path)
    with ended([process]):
        wait_for(lambda: read_checkpoint(last)["clocks"]["updates"] > after, LIMIT)
        others = descendants(process.pid)
        assert others
        process.kill()
        process.wait()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in others), LIMIT)


@linux
def test_killed_node_ends_the_other(tmp_path: Path) -> None:
    both = nodes(tmp_path, *FIT, "--trainer.max_epochs=100000")
    with ended(both):
        wait_for(lambda: any(tmp_path.glob("0/lightning_logs/here/version_0/checkpoints/last.ckpt")), LIMIT)
        os.killpg(both[1].pid, signal.SIGKILL)
        for pid in descendants(both[1].pid):
            os.kill(pid, signal.SIGKILL)
        assert both[0].wait(LIMIT) != 0


def slurm() -> dict[str, str]:
    """Return the variables that srun sets for one process on each of two nodes."""
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "here", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}
    job |= {"SLURM_NNODES": "2", "SLURM_LOCALID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return job | {"SLURM_STEP_NUM_TASKS": "2"}


def test_slurm_trains_with_all_its_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "td3_lightning", *FIT, *SMALL, "--trainer.max_epochs=1", "--trainer.num_nodes=2"]
    job = slurm()
    both = [start(command, tmp_path, job | {"SLURM_PROCID": n, "SLURM_NODEID": n}, f"log{n}") for n in "01"]
    with ended(both):
        assert [process.wait(LIMIT) for process in both] == [0, 0]
    assert len(list(tmp_path.rglob("last.ckpt"))) == 1


def test_processes_of_slurm_do_not_train_alone(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {**slurm(), "SLURM_PROCID": "0", "SLURM_NODEID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main([*FIT, *SMALL, "--trainer.max_epochs=1"]) == 2
    assert "must be 2, the number of processes of this run, got 1" in capsys.readouterr().err
