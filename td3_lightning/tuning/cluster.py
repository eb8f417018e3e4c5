"""Runs on the nodes of a Ray cluster."""

import os
import signal
import time
from typing import Any

from td3_lightning.errors import UsageError, import_extra, one_line
from td3_lightning.tuning import node
from td3_lightning.tuning.run import Plan, Run, given_threads

KILLED = -9  # exit code of a run that Ray has given up
LOSSES = 3  # of nodes and workers, after which Ray gives up a run
STOP_TIMEOUT = 5.0  # seconds after which a run that was stopped is known to be queued


class Cluster:
    """A Ray cluster as the engine of a sweep. Ray chooses the node of each run, and restarts a run that was lost.

    Args:
        address: Address of a running cluster, "auto" for the one of this machine or of RAY_ADDRESS.

    Raises:
        UsageError: Ray is missing, or the cluster does not answer.
    """

    def __init__(self, address: str) -> None:
        self._ray = import_extra("ray", "sweep --engine ray", "ray")
        handler = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError) as error:
            raise UsageError(
                f"ray_address must be the address of a running Ray cluster, got {address} ({one_line(error)}). Use ray "
                "start --head and --ray_address HOST:6379, or remove --engine ray."
            ) from error
        signal.signal(signal.SIGTERM, handler)  # Ray replaces it, and the sweep would not save its runs
        self._ray.cloudpickle.register_pickle_by_value(node)
        self._threads = given_threads() or 1
        retries = {"max_restarts": LOSSES, "max_task_retries": LOSSES}
        # One thread trains, the other one answers.
        self._worker = self._ray.remote(num_cpus=self._threads, max_concurrency=2, **retries)(node.Worker)

    def start(self, run: Run, plan: Plan) -> "RemoteProcess":
        """Start a run as soon as a node has free CPUs."""
        return RemoteProcess(self._ray, self._worker.remote(), run, plan, self._threads)

    def close(self) -> None:
        """Disconnect from the cluster."""
        self._ray.shutdown()


class RemoteProcess:
    """Train a run with a `node.Worker` of Ray, from its last checkpoint if it has one."""

    def __init__(self, ray: Any, worker: Any, run: Run, plan: Plan, threads: int) -> None:
        self._ray, self._worker, self._run, self._words = ray, worker, run, run.words(plan)
        self._start = time.monotonic()
        self._code = worker.train.remote(self._words, str(run.folder.absolute()), threads, os.getcwd())

    def poll(self) -> int | None:
        """Return the exit code, or None while the run waits or trains. Record the end of the run in `run.json`."""
        if not self._ray.wait([self._code], timeout=0)[0]:
            return None
        try:
            code = int(self._ray.get(self._code))
        except self._ray.exceptions.RayTaskError:  # an error of `Worker`, for example no shared folder on the node
            raise
        except self._ray.exceptions.RayError:
            code = KILLED
        self._ray.kill(self._worker)
        self._run.end(self._words, code, time.monotonic() - self._start)
        return code

    def stop(self) -> None:
        """Stop the run, which first saves a checkpoint, or remove it from the queue."""
        if not self._ray.wait([self._worker.stop.remote()], timeout=STOP_TIMEOUT)[0]:
            self._ray.kill(self._worker)
