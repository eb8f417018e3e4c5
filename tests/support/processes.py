"""Processes that tests start: find, await, connect and kill them."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


def program(*words: str | Path) -> list[str | Path]:
    """Return the command that runs a file of the tests without the import of the compiler, which takes 2 s."""
    start = "import conftest, runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    return [sys.executable, "-c", start, *words]


def wait_for(condition: Callable[[], Value], seconds: float = 240.0) -> Value:
    """Call a function until it returns something true, and return that."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "too late"
        time.sleep(0.05)
    return found


def free_port() -> int:
    """Return a port of this machine that no program uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return children + [each for child in children for each in descendants(child)]


def kill(pid: int) -> None:
    """Kill a process and its descendants."""
    for each in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
