"""Run a sweep on two Ray nodes of this machine, and kill one of them. `make ray-test` runs these tests."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import td3_lightning
from processes import free_port, wait_for
from td3_lightning.cli.app import main
from td3_lightning.tuning.run import Run

psutil = pytest.importorskip("psutil")
pytest.importorskip("ray", reason="the extra ray is not installed")

METRIC = "eval/return_mean"
TINY = """
data: {env_id: Pendulum-v1, capacity: 10000, batch_size: 8, steps_per_epoch: 100, eval_episodes: 1}
collector: {warmup_steps: 50}
model: {hidden_dims: [8]}
trainer: {max_epochs: 12, accelerator: cpu}
"""
SWEEP = "sweep --config tiny.yaml --space space.yaml --trials 2 --workers 2 --engine ray --ray_address"


class Node:
    """A Ray node with one CPU, started as a user starts it."""

    def __init__(self, *words: str) -> None:
        line = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block", *words]
        line += ["--object-store-memory=100000000", "--node-ip-address=127.0.0.1", "--include-log-monitor=false"]
        self._output = Path(f"node_{time.monotonic_ns()}.txt")
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT)

    def is_ready(self) -> bool:
        """Return whether the node has started, or False if Ray has given up after 30 seconds on a busy machine."""
        wait_for(lambda: "Ray runtime started" in self._output.read_text() or self._process.poll() is not None)
        return self._process.poll() is None

    def processes(self) -> list["psutil.Process"]:
        """Return all processes of the node, runs included."""
        with suppress(psutil.NoSuchProcess):
            node = psutil.Process(self._process.pid)
            return [*node.children(recursive=True), node]
        return []

    def pid_of(self, words: str) -> int:
        """Return the PID of the first process whose command has the words; 0 if there is none."""
        for process in self.processes():
            with suppress(psutil.Error):
                if words in " ".join(process.cmdline()):
                    return int(process.pid)
        return 0

    def kill(self) -> None:
        """Kill all processes of the node, as the loss of a machine does."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[Node]]]:
    """Start two nodes in an empty working directory, and return the address of the first one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_gcs_rpc_server_connect_timeout_s", "120")  # for a busy machine
    paths = [str(Path(td3_lightning.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    Path("tiny.yaml").write_text(TINY)
    Path("space.yaml").write_text("model.actor_lr: {low: 1e-5, high: 1e-3, log: true}\n")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:  # sockets need a short path
        address, started = f"127.0.0.1:{port}", []
        head = ["--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false", "--no-monitor"]
        try:
            for words in (head, [f"--address={address}"]):
                started.append(Node(*words))
                while not started[-1].is_ready() and len(started) < 8:
                    started[-1].kill()
                    started.append(Node(*words))
            yield address, [node for node in started if node.is_ready()]
        finally:
            for node in started:
                node.kill()
            for process in psutil.process_iter():  # agents of a raylet that has ended
                with suppress(psutil.Error):
                    if folder in " ".join(process.cmdline()):
                        process.kill()


def runs() -> list[Run]:
    return [Run(Path("lightning_logs/tiny_sweep", f"trial_{number}"), ()) for number in range(2)]


def evaluations(run: Run) -> list[list[float]]:
    points: list[list[float]] = run.evaluations(METRIC).tolist()
    return points


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / "version_0/checkpoints/last.ckpt")["state_dict"]
    return state


def wait_for_evaluations(number: int) -> None:
    wait_for(lambda: all(len(evaluations(run)) >= number for run in runs()))


def start_sweep(address: str) -> "subprocess.Popen[bytes]":
    line = [sys.executable, "-m", "td3_lightning", *SWEEP.split(), address]
    with Path("sweep.txt").open("ab") as output:
        return subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT)


def finish_sweep(address: str) -> None:
    assert start_sweep(address).wait(400) == 0, Path("sweep.txt").read_text()
    assert all(run.finished for run in runs())


def check_equal_to_uninterrupted(run: Run, starts: int) -> None:
    """Compare a run with an uninterrupted one, and count the evaluations that it has repeated."""
    log = (run.folder / "log.txt").read_text()
    points = evaluations(run)
    printed = [log.count(f" {step:,.0f} env_steps return") for step, _ in points]
    assert min(printed) == 1
    assert sum(printed) <= len(printed) + starts - 1  # a loss costs at most the work since the last evaluation
    words = shlex.split(run.record["command"])[3:]
    name = f"uninterrupted_{run.folder.name}"
    assert main([*words, "--name", name]) == 0
    again = Path("lightning_logs", name)
    assert evaluations(Run(again, ())) == points
    expected = weights(again)
    found = weights(run.folder)
    assert found.keys() == expected.keys()
    assert all(value.equal(found[key]) for key, value in expected.items())


@pytest.mark.timeout(900)
def test_killed_node_loses_at_most_one_evaluation(nodes: tuple[str, list[Node]]) -> None:
    address, (head, other) = nodes
    sweep = start_sweep(address)
    try:
        wait_for_evaluations(2)
        (moved,) = (run for run in runs() if other.pid_of(f"tiny_sweep/{run.folder.name}"))
        (stayed,) = (run for run in runs() if head.pid_of(f"tiny_sweep/{run.folder.name}"))
        other.kill()
        assert sweep.wait(500) == 0, Path("sweep.txt").read_text()
    finally:
        sweep.kill()
        sweep.wait()
    assert all(run.finished for run in runs())
    check_equal_to_uninterrupted(moved, 2)
    check_equal_to_uninterrupted(stayed, 1)


@pytest.mark.timeout(900)
def test_killed_worker_and_killed_sweep_continue(nodes: tuple[str, list[Node]]) -> None:
    address, (head, other) = nodes
    sweep = start_sweep(address)
    try:
        wait_for_evaluations(2)
        (lost,) = (run for run in runs() if head.pid_of(f"tiny_sweep/{run.folder.name}"))
        before = len(evaluations(lost))
        os.kill(head.pid_of("ray::Worker"), signal.SIGKILL)
        wait_for(lambda: len(evaluations(lost)) > before + 1)
        sweep.kill()
        wait_for(lambda: not any(node.pid_of("tiny_sweep/") for node in (head, other)), 60)  # its runs end, too
    finally:
        sweep.kill()
        sweep.wait()
    finish_sweep(address)
    for run in runs():
        check_equal_to_uninterrupted(run, 3 if run == lost else 2)
