"""Agreement of all processes of a run before they form a process group.

torch waits up to 30 minutes for a process that ended before it joined the group. Here every process reports first, in
the key-value store that torchrun or rank 0 serves, and all of them end if one of them cannot start.
"""

import hashlib
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

from td3_lightning.cli.peers import PeerWatch
from td3_lightning.errors import RunError, UsageError, one_line, refuse, timeout_from_environment

EXIT_TIMEOUT = 15.0  # seconds in which the other processes can read why this one failed
NODES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK")  # variables of which a user sets one for each node
POLL_INTERVAL = 0.1  # seconds between two reads of the store
_numbers = itertools.count()


class Rendezvous:
    """Exchange the reports of the processes of a run: that each is ready, or why it cannot start.

    Args:
        rank: Number of this process.
        world_size: Number of processes.
        open_store: Function that returns the store, for example `partial(join_store, address, port)`.
        number: Number of earlier meetings of these processes.
        address: Address of rank 0.
    """

    def __init__(
        self, rank: int, world_size: int, open_store: Callable[[], Any], number: int = 0, address: str = "127.0.0.1"
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._open_store, self._number, self._address = open_store, number, address
        self._store: Any | None = None
        self._reported = False
        self._peers: PeerWatch | None = None

    @classmethod
    def of_launcher(cls) -> "Rendezvous | None":
        """Return the rendezvous of the processes that torchrun or SLURM started, None if this process is alone."""
        for kind in (TorchElasticEnvironment, SLURMEnvironment):
            if distributed.is_available() and kind.detect():
                try:
                    return cls._of(kind())
                except RuntimeError as error:
                    raise UsageError(f"Lightning does not accept the launcher: {one_line(error)}") from error
                except KeyError as missing:
                    fix = "Use torchrun or srun, which set it."
                    raise UsageError(f"{missing.args[0]} must be set for several processes, got none. {fix}") from None
        return None

    @classmethod
    def _of(cls, environment: ClusterEnvironment) -> "Rendezvous | None":
        if environment.world_size() < 2:
            return None
        start_timeout()  # an invalid one must not end the run after the other processes have started
        rank = environment.global_rank()
        serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # otherwise torchrun serves
        open_store = partial(serve_store if serves else join_store, environment.main_address, environment.main_port)
        return cls(rank, environment.world_size(), open_store, next(_numbers), environment.main_address)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Report a failure of this process to the others if it has not reported that it is ready.

        After `meet`, the others end if this process dies or fails.
        """
        try:
            yield
        except BaseException as error:
            failed = not isinstance(error, SystemExit) or error.code
            if failed and not self._reported:
                with suppress(distributed.DistError):  # the store is not served
                    self._fail(error)
            if isinstance(error, SystemExit):  # all processes stop together after a signal
                self._close()
            raise
        self._close()

    def _close(self) -> None:
        if self._peers is not None:
            self._peers.close()

    def meet(self, facts: Mapping[str, Any]) -> None:
        """Agree, then limit the time in which the processes form a group, and end with a process that dies."""
        self.agree(facts)
        self._peers = PeerWatch(self.rank, self.world_size, self._connect(), self._address)
        threading.Thread(target=_end_without_group, name="group-limit", daemon=True).start()

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Report that this process is ready, and wait for all others.

        Args:
            facts: What must be the same in every process, by name. The values are converted to JSON.

        Raises:
            UsageError: Another process cannot start because of its settings, or its facts differ.
            RunError: Another process was interrupted or failed, or has not reported in time.
        """
        self._reported = True
        try:
            self._report({"facts": facts})
            reports = self._wait()
        except distributed.DistError as error:
            raise RunError(
                f"The processes of this run could not connect ({one_line(error)}). Read the output of each process."
            ) from error
        _compare([reports[rank]["facts"] for rank in range(self.world_size)])

    def _wait(self) -> dict[int, Any]:
        reports: dict[int, Any] = {}
        limit = start_timeout()
        until = time.monotonic() + limit
        while len(reports) < self.world_size:
            reports.update(self._new_reports(reports))
            failed = [rank for rank in sorted(reports) if "failure" in reports[rank]]
            if failed:
                self._leave()
                kind = UsageError if reports[failed[0]]["is_usage"] else RunError
                host, failure = (reports[failed[0]][name] for name in ("host", "failure"))
                raise kind(f"Rank {failed[0]} on {host} cannot start this run: {failure}")
            if time.monotonic() > until:
                silent = ", ".join(str(rank) for rank in range(self.world_size) if rank not in reports)
                raise RunError(
                    f"Every process must start within {limit:g} seconds, got no report from rank {silent}. "
                    "Read its output, or set TD3_LIGHTNING_START_TIMEOUT to more seconds."
                )
            time.sleep(POLL_INTERVAL)
        return reports

    def _new_reports(self, known: Mapping[int, Any]) -> dict[int, Any]:
        store = self._connect()
        unknown = {rank: f"report {rank}" for rank in range(self.world_size) if rank not in known}
        return {rank: json.loads(store.get(key)) for rank, key in unknown.items() if store.check([key])}

    def _fail(self, error: BaseException) -> None:
        """Report why this process cannot start, and give the others time to read it while the store is served."""
        self._reported = True
        is_usage = isinstance(error, Exception) and not isinstance(error, RunError)  # not Ctrl-C
        is_own = isinstance(error, UsageError | RunError)  # its message is one sentence already
        failure = (str(error) if is_own else one_line(error)) or type(error).__name__
        self._report({"host": socket.gethostname(), "failure": failure, "is_usage": is_usage})
        self._leave()
        gone = [f"left {rank}" for rank in range(self.world_size)]
        until = time.monotonic() + EXIT_TIMEOUT
        while not self._connect().check(gone) and time.monotonic() < until:
            time.sleep(POLL_INTERVAL)

    def _leave(self) -> None:
        self._connect().set(f"left {self.rank}", "")

    def _report(self, content: Mapping[str, Any]) -> None:
        self._connect().set(f"report {self.rank}", json.dumps(content, default=str))

    def _connect(self) -> Any:
        if self._store is None:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            prefix = f"td3_lightning/{attempt}/{self._number}"
            self._store = distributed.PrefixStore(prefix, self._open_store())  # type: ignore[attr-defined]  # unlisted
        return self._store


def check_processes(trainer: L.Trainer) -> None:
    """Refuse processes that the Trainer does not count. Each would train alone, and only the first would write logs.

    Raises:
        UsageError: A launcher has started more or fewer processes than the Trainer expects, or none on several nodes.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    is_alone = isinstance(environment, LightningEnvironment) and not any(name in os.environ for name in NODES)
    if trainer.num_nodes > 1 and is_alone:  # it would wait for the other nodes for ever
        fix = "Start the run with torchrun or srun on each node."
        raise refuse("trainer.num_nodes", "1 without a launcher", trainer.num_nodes, fix)
    rank: int = rank_zero_only.rank or 0  # type: ignore[attr-defined]  # of the launcher's variables
    expected, launched = trainer.num_devices * trainer.num_nodes, max(_launched(), rank + 1)
    if trainer.world_size != expected:  # SLURM decides
        launched = trainer.world_size
    elif launched <= expected:
        return
    raise UsageError(
        f"trainer.devices times trainer.num_nodes must be {launched}, the number of processes of this run, got "
        f"{expected}. Set both, or start independent runs with env -u SLURM_PROCID -u SLURM_NTASKS."
    )


def _launched() -> int:
    """Return the number of processes that torchrun or srun has started."""
    if distributed.is_available() and TorchElasticEnvironment.detect():
        return TorchElasticEnvironment().world_size()
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) if "SLURM_PROCID" in os.environ else 1


def start_timeout() -> float:
    """Return the seconds from the first to the last report."""
    return timeout_from_environment("TD3_LIGHTNING_START_TIMEOUT", default=45)


def _end_without_group() -> None:
    """End this process if the group does not form, because another process ended after its report."""
    limit = start_timeout()
    until = time.monotonic() + limit
    while not distributed.is_initialized():
        if time.monotonic() > until:
            text = f"The processes of this run must form a group within {limit:g} seconds. Read their output.\n"
            os.write(2, text.encode())
            os._exit(1)  # the main thread is blocked in torch
        time.sleep(POLL_INTERVAL)


def serve_store(address: str, port: int) -> Any:
    """Serve a key-value store at an address, and return it."""
    return _store(address, port, start_timeout(), is_master=True)


def join_store(address: str, port: int) -> Any:
    """Return the key-value store that another process serves at an address.

    A connection of torch may take three times its time limit, because torch waits and tries again. Short attempts end
    in time.

    Raises:
        DistError: No process serves the store within `start_timeout()` seconds.
    """
    limit = start_timeout()
    attempt = limit / 9
    until = time.monotonic() + limit - 3 * attempt
    while True:
        try:
            store = _store(address, port, attempt, is_master=False)
        except distributed.DistError:
            if time.monotonic() > until:
                raise
        else:
            store.set_timeout(timedelta(seconds=limit))
            return store


def _store(address: str, port: int, seconds: float, **role: Any) -> Any:
    limit = timedelta(seconds=seconds)
    return distributed.TCPStore(  # type: ignore[attr-defined]  # torch does not list it
        address, port, timeout=limit, wait_for_workers=False, multi_tenant=True, **role
    )


def facts_of(settings: Any) -> dict[str, Any]:
    """Return what all processes of a run must have in common: the checkpoint and the settings of the agent."""
    return {"ckpt_path": identity(settings.ckpt_path), "model": settings.model.as_dict()}


def identity(checkpoint: str | None) -> str:
    """Identify a checkpoint independently of its folder: its name and the start of its SHA-256."""
    if checkpoint is None:
        return "none"
    return f"{Path(checkpoint).name} (SHA-256 {hashlib.sha256(Path(checkpoint).read_bytes()).hexdigest()[:12]})"


def _compare(facts: list[dict[str, Any]]) -> None:
    """Raise `UsageError` if a fact of one process differs from that of rank 0."""
    for rank, other in enumerate(facts):
        for name, value in facts[0].items():
            if other.get(name) != value:
                raise UsageError(
                    f"{name} must be the same in every process, got {value} on rank 0 and {other.get(name)} on rank "
                    f"{rank}. Give every node the same configuration and, to resume, the same run folder."
                )
