"""A run on the machine that trains it.

Ray sends this module to the nodes by value, so it imports only the standard library: a worker that waits for its run
then needs no memory for torch.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

PROGRAM = ["-m", "td3_lightning"]  # words after the name of the interpreter
SWEEP = "TD3_LIGHTNING_SWEEP"  # PID of the process that a run watches
LOCK_TIMEOUT = 120.0  # seconds until the locks of a lost node are free; a server of NFS 4 waits for 90
INTERVAL = 0.1  # seconds between two checks of a lock
# Environment variables with which torchrun, SLURM and LSF number the processes of a run.
LAUNCHER = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_PORT", "JSM_NAMESPACE_SIZE"),
    *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_NNODES"),
)


def start_fit(words: Sequence[str], folder: Path, threads: int, start: str | None = None) -> "subprocess.Popen[bytes]":
    """Start a run from its last checkpoint, if it has one.

    Args:
        words: Words of the command, without its program.
        folder: Folder of the run.
        threads: Value of OMP_NUM_THREADS.
        start: Working directory, None for that of this process.
    """
    if fcntl is not None:
        _wait_for_locks(folder)
    last = newest_last(folder)
    # A flag of the sweep for a new stage applies only to the first start.
    resume = [] if last is None else ["--ckpt_path", str(last), "--data.empty_replay", "false"]
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    environment |= {"OMP_NUM_THREADS": str(threads), SWEEP: str(os.getpid())}
    with (folder / "log.txt").open("ab") as log:
        # In its own session, the process receives a signal only once, from this one.
        return subprocess.Popen(
            [sys.executable, *PROGRAM, *words, *resume],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=start,
            env=environment,
            start_new_session=True,
        )


def hide_launcher() -> None:
    """Remove the numbers of this process. Those of a sweep are alone, and a process above 0 would write no results."""
    for name in LAUNCHER:
        os.environ.pop(name, None)


def newest_last(folder: Path) -> Path | None:
    """Return the most recent `last.ckpt` of a run, None if it has none. A folder with another name is a user's copy."""
    found = folder.glob("version_*/checkpoints/last.ckpt")
    own = [path for path in found if path.parts[-3].removeprefix("version_").isdecimal()]
    return max(own, key=lambda path: path.stat().st_mtime, default=None)


class Worker:
    """Train one run on a node of a Ray cluster. `stop` is called in another thread than `train`."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def train(self, words: Sequence[str], folder: str, threads: int, start: str) -> int:
        """Train a run until it ends, and return its exit code. The arguments are those of `start_fit`."""
        process = start_fit(words, Path(folder), threads, start)
        while process.poll() is None and not self._stopped.wait(INTERVAL):
            pass
        if process.returncode is None:
            process.terminate()  # the run saves a checkpoint
        return process.wait()

    def stop(self) -> None:
        """Stop the run, which first saves a checkpoint."""
        self._stopped.set()


def _wait_for_locks(folder: Path) -> None:
    """Wait for a process that has lost its sweep or its node, and still saves the run."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while any(map(_is_locked, folder.glob("version_*"))) and time.monotonic() < deadline:
        time.sleep(INTERVAL)


def _is_locked(folder: Path) -> bool:
    """Return whether a process has the lock of a run's folder, see `RunLock`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # otherwise, the file system does not support locks
    finally:
        os.close(descriptor)
    return False
