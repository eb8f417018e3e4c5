"""The runner of a comparison: each implementation in its own process, one window at a time in turn."""

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.clock import LINK
from benchmarks.workloads import ROOT

READY_TIMEOUT = 600.0  # seconds until an implementation must be ready
Report = Callable[[str], None]


@dataclass(frozen=True)
class Baseline:
    """An implementation that can be measured.

    Args:
        title: Its name in tables.
        module: Its file in `benchmarks/baselines`.
        requires: The packages that it imports besides those of td3_lightning.
        flags: The flags passed to its `train`.
        has_layer_norm: Whether it can train with LayerNorm.
        root: The checkout of this repository whose code runs.
    """

    title: str
    module: str
    requires: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    has_layer_norm: bool = True
    root: Path = ROOT

    @property
    def uses_gpu(self) -> bool:
        """Whether its flags choose a GPU."""
        return bool({"gpu", "cuda"} & set(self.flags))


@dataclass
class Measurement:
    """The measurement of an implementation on a workload."""

    title: str
    seconds_to_first_update: float
    transition_bytes: float | None  # None for the matrix products, which have no replay buffer
    steps_per_second: list[float] = field(default_factory=list)  # one for each window
    peak_memory: float = 0.0  # bytes, resident


class BaselineError(Exception):
    """An implementation failed; the message is the last line that it printed."""


class BaselineProcess:
    """A process that trains with one implementation and is idle outside its windows.

    It has a terminal, so that progress bars are drawn as for a user, and a temporary working directory.

    Args:
        baseline: The implementation.
        workload: The name of the workload.
        python: The interpreter that has the required packages.
        threads: The number of threads.
    """

    def __init__(self, baseline: Baseline, workload: str, python: str, threads: int) -> None:
        self.baseline, self._folder = baseline, Path(tempfile.mkdtemp(prefix=f"{baseline.module}_"))
        self._start = time.perf_counter()
        own_end, other_end = socket.socketpair()
        own_end.settimeout(READY_TIMEOUT)
        self._link = own_end.makefile("rw")
        screen, terminal = pty.openpty()
        variables = environment(threads, baseline.uses_gpu, baseline.root)
        with other_end:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.baseline", baseline.module, workload, *baseline.flags],
                cwd=self._folder,
                env={**os.environ, **variables, LINK: str(other_end.fileno())},
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=terminal,
                start_new_session=True,  # so that compilers started by it end with it
            )
        os.close(terminal)
        own_end.close()  # the file object keeps the socket open
        self._output = bytearray()
        threading.Thread(target=self._read_screen, args=[screen], daemon=True).start()

    def prepare(self) -> Measurement:
        """Block until the process is ready to be measured."""
        self._receive("update")
        seconds = time.perf_counter() - self._start
        return Measurement(self.baseline.title, seconds, self._receive("ready")["transition_bytes"])

    def run_window(self, seconds: float, measurement: Measurement) -> None:
        """Let the process train for one window, and store its speed."""
        try:
            self._link.write(f"{seconds}\n")
            self._link.flush()
        except OSError as error:
            raise BaselineError(self._last_line()) from error
        window = self._receive("window")
        if abs(window["updates"] - window["steps"]) > 1:
            raise BaselineError(f"expected one update per step, got {window['updates']} in {window['steps']} steps")
        measurement.steps_per_second.append(window["steps"] / window["seconds"])
        measurement.peak_memory = window["peak_memory"]

    def _receive(self, event: str) -> dict[str, Any]:
        try:
            line = self._link.readline()
        except OSError as error:
            raise BaselineError(f"no message within {READY_TIMEOUT:.0f} seconds") from error
        if not line:
            raise BaselineError(self._last_line())
        message: dict[str, Any] = json.loads(line)
        if message["event"] != event:
            raise BaselineError(f'expected the event "{event}", got "{message["event"]}"')
        return message

    def _read_screen(self, screen: int) -> None:
        """Read the terminal, so that the process never blocks on output."""
        with open(screen, "rb", buffering=0) as file:
            try:
                while text := file.read(65536):
                    self._output[:] = (self._output + text)[-10_000:]
            except OSError:  # Linux raises at the end of a terminal
                pass

    def _last_line(self) -> str:
        self._process.wait(timeout=10)
        time.sleep(0.1)  # seconds, for the thread that reads the screen
        lines = self._output.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "ended without output")

    def __enter__(self) -> "BaselineProcess":
        return self

    def kill(self) -> None:
        """Kill the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        """Kill the process and delete its folder."""
        self.kill()
        self._link.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def measure(
    baselines: Mapping[Baseline, str],
    workload: str,
    windows: int,
    seconds: float,
    threads: int,
    report: Report = print,
) -> list[Measurement]:
    """Start the implementations one after another, then measure them in turn, window by window.

    Args:
        baselines: Each implementation with its interpreter.
        workload: The name of the workload.
        windows: Number of windows for each implementation.
        seconds: Length of a window.
        threads: Number of threads for each implementation.
        report: Called with each line of progress.

    Returns:
        The measurements, without those of implementations that failed.
    """
    with ExitStack() as stack:
        running: dict[BaselineProcess, Measurement] = {}
        for baseline, python in baselines.items():
            process = stack.enter_context(BaselineProcess(baseline, workload, python, threads))
            with _dropping_failures(process, running, report):
                running[process] = measurement = process.prepare()
                seconds_to_update = measurement.seconds_to_first_update
                report(f"{workload}  {baseline.title}: first update after {seconds_to_update:.1f} s")
        for window in range(windows):
            # The order alternates, so that no implementation always follows the same one.
            for process in list(running)[:: -1 if window % 2 else 1]:
                with _dropping_failures(process, running, report):
                    process.run_window(seconds, running[process])
            report(f"{workload}  window {window + 1} of {windows}")
        return list(running.values())


@contextmanager
def _dropping_failures(
    process: BaselineProcess, running: dict[BaselineProcess, Measurement], report: Report
) -> Iterator[None]:
    """Drop an implementation that fails, and report its error."""
    try:
        yield
    except BaselineError as error:
        running.pop(process, None)
        process.kill()
        report(f"Skipping {process.baseline.title}: {error}")


def environment(threads: int, uses_gpu: bool, root: Path = ROOT) -> dict[str, str]:
    """Return the environment variables of an implementation."""
    return {
        **({} if uses_gpu else {"CUDA_VISIBLE_DEVICES": ""}),  # JAX would use a GPU, which the others do not
        "OMP_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "",  # after the first start, the bytecode of this checkout is read, as if installed
        "PYTHONPATH": str(root),
        "SDL_VIDEODRIVER": "dummy",
        "SDL_AUDIODRIVER": "dummy",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    }


def missing(packages: Sequence[str], python: str) -> set[str]:
    """Return the packages that an interpreter cannot import."""
    code = "import importlib.util, sys; print(*(name for name in sys.argv[1:] if not importlib.util.find_spec(name)))"
    found = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    return set(found.stdout.split())
