"""The runner's side of a comparison: every contender in a process of its own, one window at a time in turn."""

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.clock import LINK
from benchmarks.workloads import ROOT

PATIENCE = 600.0  # seconds that a contender may take to be ready
Say = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """Who takes part.

    Args:
        title: Its name in the table.
        module: Its file in `benchmarks/contenders`.
        needs: The packages that it imports, besides ours.
        flags: What its `train` is given.
    """

    title: str
    module: str
    needs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass
class Measured:
    """What a contender showed on a workload."""

    title: str
    seconds_to_first_update: float
    transition_bytes: float | None  # None for the floor, which has no replay
    steps_per_second: list[float] = field(default_factory=list)  # one for each window
    peak_memory: float = 0.0  # bytes, resident

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


class LostError(Exception):
    """A contender could not go on; the message is the last that it said."""


class Process:
    """A contender's process, which sleeps unless it is its turn.

    It has a terminal, so that progress bars are drawn as a user would see them, and a working directory that is
    thrown away.

    Args:
        contender: Who.
        workload: The name of what it trains on.
        python: The interpreter that has what it needs.
        threads: Threads that it may use.
    """

    def __init__(self, contender: Contender, workload: str, python: str, threads: int) -> None:
        self.contender, self._folder = contender, Path(tempfile.mkdtemp(prefix=f"{contender.module}_"))
        self._begun = time.perf_counter()
        here, there = socket.socketpair()
        here.settimeout(PATIENCE)
        self._link = here.makefile("rw")
        screen, terminal = pty.openpty()
        with there:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.contender", contender.module, workload, *contender.flags],
                cwd=self._folder,
                env={**os.environ, **_environment(threads), LINK: str(there.fileno())},
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=terminal,
                start_new_session=True,  # with its children, if it compiles
            )
        os.close(terminal)
        here.close()  # the file keeps it
        self._said = bytearray()
        threading.Thread(target=self._listen, args=[screen], daemon=True).start()

    def prepare(self) -> Measured:
        """Waits until it has settled."""
        self._hear("update")
        seconds = time.perf_counter() - self._begun
        return Measured(self.contender.title, seconds, self._hear("ready")["transition_bytes"])

    def run_window(self, seconds: float, measured: Measured) -> None:
        """Lets it run, and notes its speed."""
        try:
            self._link.write(f"{seconds}\n")
            self._link.flush()
        except OSError as error:
            raise LostError(self._last_line()) from error
        window = self._hear("window")
        if abs(window["updates"] - window["steps"]) > 1:
            raise LostError(f"made {window['updates']:.0f} updates in {window['steps']:.0f} steps, not one for each")
        measured.steps_per_second.append(window["steps"] / window["seconds"])
        measured.peak_memory = window["peak_memory"]

    def _hear(self, event: str) -> dict[str, Any]:
        try:
            line = self._link.readline()
        except OSError as error:
            raise LostError(f"said nothing for {PATIENCE:.0f} seconds") from error
        if not line:
            raise LostError(self._last_line())
        message: dict[str, Any] = json.loads(line)
        if message["event"] != event:
            raise LostError(f'said "{message["event"]}" where "{event}" was due')
        return message

    def _listen(self, screen: int) -> None:
        """Reads its terminal, so that it never waits for a reader."""
        with open(screen, "rb", buffering=0) as file:
            try:
                while text := file.read(65536):
                    self._said[:] = (self._said + text)[-10_000:]
            except OSError:  # so ends a terminal on Linux
                pass

    def _last_line(self) -> str:
        self._process.wait(timeout=10)
        time.sleep(0.1)  # for the listener
        lines = self._said.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "ended without a word")

    def __enter__(self) -> "Process":
        return self

    def end(self) -> None:
        """Ends it with its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        """Ends it, and throws its folder away."""
        self.end()
        self._link.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def race(
    contenders: Mapping[Contender, str], workload: str, windows: int, seconds: float, threads: int, say: Say = print
) -> list[Measured]:
    """Starts the contenders one after another, then measures them in turn, window by window.

    Args:
        contenders: Each with the interpreter that it runs in.
        workload: What they train on.
        windows: Windows for each.
        seconds: Length of a window.
        threads: Threads for each.
        say: Is told what happens.

    Returns:
        What each one showed, without those that were lost on the way.
    """
    with ExitStack() as stack:
        running: dict[Process, Measured] = {}
        for contender, python in contenders.items():
            process = stack.enter_context(Process(contender, workload, python, threads))
            with _dropping(process, running, say):
                running[process] = measured = process.prepare()
                say(f"{workload}  {contender.title}: first update after {measured.seconds_to_first_update:.1f} s")
        for window in range(windows):
            # Back and forth, so that nobody always runs after the same one.
            for process in list(running)[:: -1 if window % 2 else 1]:
                with _dropping(process, running, say):
                    process.run_window(seconds, running[process])
            say(f"{workload}  window {window + 1} of {windows}")
        return list(running.values())


@contextmanager
def _dropping(process: Process, running: dict[Process, Measured], say: Say) -> Iterator[None]:
    """Goes on without a contender that is lost, and says so."""
    try:
        yield
    except LostError as error:
        running.pop(process, None)
        process.end()
        say(f"{process.contender.title} is left out: {error}")


def _environment(threads: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": str(ROOT),
        "SDL_VIDEODRIVER": "dummy",
        "SDL_AUDIODRIVER": "dummy",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    }


def missing(packages: Sequence[str], python: str) -> set[str]:
    """Those of the packages that an interpreter cannot import."""
    code = "import importlib.util, sys; print(*(name for name in sys.argv[1:] if not importlib.util.find_spec(name)))"
    found = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    return set(found.stdout.split())
