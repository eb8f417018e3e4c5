"""Test runs on several nodes: torchrun and SLURM, a node that cannot start, and a node that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import gethostname

import pytest

from nodes import FIT, LIMIT, SMALL, ended, nodes, output_of, start
from processes import descendants, free_port, wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
@pytest.mark.parametrize("broken_node", [0, 1])
def test_two_nodes_end_when_one_has_no_checkpoint(broken_node: int, tmp_path: Path) -> None:
    for number in (0, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        folder.joinpath("here.yaml").write_text("data: {env_id: Pendulum-v1}\n")
        if number != broken_node:
            words = [sys.executable, "-m", "td3_lightning", *FIT, *SMALL, "--trainer.max_epochs=1"]
            assert start(words, folder).wait(LIMIT) == 0
    began = time.monotonic()
    both = nodes(tmp_path, *FIT, "--ckpt_path=last", "--trainer.max_epochs=2")
    with ended(both):
        for process in both:
            assert process.wait(max(LIMIT - time.monotonic() + began, 1)) != 0
    reason = "got none in lightning_logs/here"
    own, other = (output_of(tmp_path / str(number)) for number in (broken_node, 1 - broken_node))
    assert reason in own
    assert f"Rank {broken_node} on {gethostname()} cannot start this run: --ckpt_path last" in other
    assert reason in other
    for text in own, other:
        assert "Traceback" not in text


@linux
def test_killed_node_ends_the_other_with_one_sentence(tmp_path: Path) -> None:
    for number in "01":
        tmp_path.joinpath(number).mkdir()
        tmp_path.joinpath(number, "here.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    both = nodes(tmp_path, *FIT, "--trainer.max_epochs=100000")
    with ended(both):
        wait_for(lambda: any(tmp_path.rglob("last.ckpt")), LIMIT)
        for pid in descendants(both[1].pid):
            os.kill(pid, signal.SIGKILL)
        for process in both:
            assert process.wait(LIMIT) == 1
    text = output_of(tmp_path / "0")
    assert "because another process has ended" in text or "Another process of this run has ended" in text
    assert "Traceback" not in text


def slurm(folder: Path, *words: str) -> list["subprocess.Popen[bytes]"]:
    """Start one process per node with the variables that srun sets, all of them in one folder."""
    port = str(free_port())
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "here", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}
    job |= {"SLURM_NNODES": "2", "SLURM_LOCALID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-m", "td3_lightning", *words, *SMALL, "--trainer.num_nodes=2"]
    return [start(command, folder, job | {"SLURM_PROCID": n, "SLURM_NODEID": n}, f"log{n}") for n in "01"]


def test_slurm_trains_and_names_missing_rows_on_resume(tmp_path: Path) -> None:
    tmp_path.joinpath("here.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    both = slurm(tmp_path, *FIT, "--trainer.max_epochs=1")
    with ended(both):
        assert [process.wait(LIMIT) for process in both] == [0, 0]
    [rows] = tmp_path.rglob("replay/*-1-0-*.rows")
    rows.unlink()
    both = slurm(tmp_path, *FIT, "--ckpt_path=last", "--trainer.max_epochs=2")
    with ended(both):
        assert [process.wait(LIMIT) for process in both] == [2, 2]
    reason = f"{rows} cannot be read (No such file or directory). Copy it from the node on which rank 1 was trained"
    own, other = ((tmp_path / f"log{rank}").read_text() for rank in (1, 0))
    assert reason in own
    assert f"Rank 1 on {gethostname()} cannot start this run: {reason}" in other
    assert "Traceback" not in own + other
