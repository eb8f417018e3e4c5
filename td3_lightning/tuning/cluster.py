"""Runs on the nodes of a Ray cluster."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from td3_lightning.errors import RunError, UsageError, import_extra, one_line, refuse, timeout_from_environment
from td3_lightning.tuning import node
from td3_lightning.tuning.plan import Plan, given_threads
from td3_lightning.tuning.run import Run

KILLED = -int(signal.SIGKILL)  # exit code of a run whose worker or node was lost
# Ray tries for two minutes, and then ends its process. Therefore, another process tries first.
PROBE = """
import ray, sys
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    sys.exit(" ".join(str(error).split()))
"""


class Cluster:
    """A Ray cluster as the engine of a sweep.

    The sweep remains the only scheduler: it starts an actor for each run, and Ray chooses the node.

    Args:
        address: Address of a running cluster, "auto" for the one of this machine or of RAY_ADDRESS.
        workers: Number of simultaneous runs.

    Raises:
        UsageError: Ray is missing, the cluster does not answer, or no node has the CPUs of a run.
    """

    def __init__(self, address: str, workers: int) -> None:
        self._ray = import_extra("ray", "sweep --engine ray", "ray")
        connect(self._ray, address)
        sizes = [int(each["Resources"].get("CPU", 0)) for each in self._ray.nodes() if each["Alive"]]
        try:
            self.threads = threads_per_run(sizes, workers)
        except UsageError:
            self.close()
            raise
        self._ray.cloudpickle.register_pickle_by_value(node)
        # One thread trains, the other one answers. The sweep restarts a lost run, and counts the losses.
        options = {"num_cpus": self.threads, "max_restarts": 0, "max_concurrency": 2}
        self._worker = self._ray.remote(**options)(node.Worker)

    def start(self, run: Run, plan: Plan) -> "RemoteProcess":
        """Start a run as soon as a node has free CPUs."""
        return RemoteProcess(self._ray, self._worker.remote(), run, plan, self.threads)

    def close(self) -> None:
        """Disconnect from the cluster."""
        self._ray.shutdown()


class RemoteProcess:
    """Train a run on a node, from its last checkpoint if it has one.

    Args:
        ray: The module `ray`.
        worker: Handle of the actor.
        run: Run to start.
        plan: Settings of all runs.
        threads: Threads of the run.
    """

    def __init__(self, ray: Any, worker: Any, run: Run, plan: Plan, threads: int) -> None:
        self._ray, self._worker, self._run, self._words = ray, worker, run, run.words(plan)
        self._ready, self._started = worker.ready.remote(), 0.0
        self._code = worker.train.remote(self._words, str(run.folder.absolute()), threads, os.getcwd())

    def poll(self) -> int | None:
        """Return the exit code, or None while the run waits or trains. Record the end of the run in `run.json`.

        Raises:
            RunError: The run cannot be started on the node that Ray has chosen.
        """
        if not self._started and self._is_done(self._ready):
            self._started = time.monotonic()
        if not self._is_done(self._code):
            return None
        try:
            code = self._ray.get(self._code)
        except self._ray.exceptions.RayTaskError:  # an error of `Worker`
            raise
        except self._ray.exceptions.RayError:
            code = KILLED
        self._ray.kill(self._worker)
        if isinstance(code, str):
            raise RunError(code)
        self._run.end(self._words, code, time.monotonic() - self._started if self._started else 0.0)
        return int(code)

    def stop(self) -> None:
        """Stop the run, which first saves a checkpoint, or remove it from the queue."""
        if self._is_done(self._ready):
            self._worker.stop.remote()
        else:
            self._ray.kill(self._worker)

    def _is_done(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])


def connect(ray: Any, address: str) -> None:
    """Connect to a running cluster.

    Raises:
        UsageError: There is none at the address.
    """
    limit = timeout_from_environment("TD3_LIGHTNING_START_TIMEOUT", default=20)
    reason = "a new cluster" if address in ("", "local") else ""  # Ray would start one
    try:
        reason = reason or _probe(address, limit)
    except subprocess.TimeoutExpired:
        reason = f"no answer in {limit:g} seconds"
    if reason:
        raise UsageError(
            f"ray_address must be the address of a running Ray cluster, got {address} ({one_line(reason)}). Use ray "
            "start --head and --ray_address HOST:6379, or remove --engine ray."
        )
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    signal.signal(signal.SIGTERM, handler)  # Ray replaces it, and the sweep would not save its runs


def _probe(address: str, limit: float) -> str:
    """Return the reason why a cluster cannot be used, "" if it can; wait for a limited number of seconds."""
    line = [sys.executable, "-c", PROBE, address]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit)
    return (done.stderr.strip() or "an error").splitlines()[-1].removesuffix(".") if done.returncode else ""


def threads_per_run(sizes: Sequence[int], workers: int) -> int:
    """Return the most CPUs of a run with which all workers fit on the nodes, or OMP_NUM_THREADS if it is set.

    Args:
        sizes: CPUs of each node.
        workers: Number of simultaneous runs.

    Raises:
        UsageError: No node has the CPUs of a run.
    """
    most = max(sizes, default=0)
    given = given_threads() or 1
    if given > most:
        fix = "Use a smaller value, or add a larger node."
        raise refuse("OMP_NUM_THREADS", f"at most {most}, the CPUs of the largest node of the cluster", given, fix)
    fitting = (number for number in range(most, 1, -1) if sum(size // number for size in sizes) >= workers)
    return given_threads() or next(fitting, 1)
