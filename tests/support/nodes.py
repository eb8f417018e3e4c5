"""Programs that run on several nodes, all of them on this machine."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from processes import free_port, kill

SMALL = shlex.split(
    "--trainer.accelerator=cpu --trainer.enable_progress_bar=false --data.steps_per_epoch=20 --data.batch_size=4 "
    "--data.eval_episodes=1 --collector.warmup_steps=10 --model.hidden_dims=[8] --data.capacity=10000"
)
FIT = ["fit", "--config", "here.yaml"]
LIMIT = 180.0  # seconds in which all processes must start and end, also on a busy machine


def start(
    words: list[str], folder: Path, variables: Mapping[str, str] | None = None, output: str = "log"
) -> subprocess.Popen[bytes]:
    """Start a program in its own session, with its output in a file of a folder."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **(variables or {})}
    with (folder / output).open("w") as log:
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


@contextmanager
def ended(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Kill all processes of some sessions at the end of the block."""
    try:
        yield
    finally:
        for process in processes:
            kill(process.pid)
            process.wait()


def nodes(folder: Path, *words: str) -> list[subprocess.Popen[bytes]]:
    """Start torchrun for two nodes, each in its own folder."""
    port = str(free_port())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--master_addr=127.0.0.1"]
    torchrun += ["--master_port", port, "-m", "--node_rank"]
    small = [*SMALL, "--trainer.num_nodes=2"]
    for number in "01":
        folder.joinpath(number).mkdir(exist_ok=True)
    return [start([*torchrun, n, "td3_lightning", *words, *small], folder / n) for n in "01"]


def output_of(folder: Path) -> str:
    """Return the output of a program without the messages of torchrun."""
    return (folder / "log").read_text().split("\nE1")[0].split("\nW1")[0]
