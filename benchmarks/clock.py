"""The contender's side of a comparison: its environment is its clock.

Every loop, whoever wrote it, steps an environment once for each update. So the training environment says when the first
update is done, measures windows of steps, and lets the process sleep inside a step while the others have their turn.
"""

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import gymnasium as gym

from benchmarks.workloads import WARMUP_STEPS

LINK = "BENCHMARK_LINK"  # the environment variable with the number of the socket to the runner
SETTLING_STEPS = 100  # after the first update, for compilers
LEAD_IN = 0.2  # seconds at the beginning of a window that are not counted: caches fill and cores wake


class Stopwatch:
    """Speaks to the runner between the steps of a loop.

    It says "update" when the first one is done, "ready" when the loop has settled, and after that measures one
    window for each number of seconds that it hears. It leaves the process when the runner hangs up.

    Args:
        link: The socket to the runner.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link.makefile("rw")
        self._updates: Callable[[], int] = lambda: 0
        self._transition_bytes: float | None = None
        self._script = self._write_script()

    def watch(self, updates: Callable[[], int], transition_bytes: float | None) -> None:
        """Takes what only the contender knows.

        Args:
            updates: Gives the critic updates so far.
            transition_bytes: Bytes that a transition takes in its replay; None without one.
        """
        self._updates, self._transition_bytes = updates, transition_bytes

    def tick(self) -> None:
        """Is called before every step."""
        next(self._script)

    def _write_script(self) -> Iterator[None]:
        """What is said and awaited; a yield lets one step pass."""
        for _ in range(WARMUP_STEPS + 1):
            yield
        self._say("update")
        for _ in range(SETTLING_STEPS):
            yield
        self._say("ready", transition_bytes=self._transition_bytes)
        while seconds := self._hear():
            yield from self._pass(LEAD_IN)
            begun, updates = time.perf_counter(), self._updates()
            steps = yield from self._pass(seconds)
            self._say(
                "window",
                steps=steps,
                seconds=time.perf_counter() - begun,
                updates=self._updates() - updates,
                peak_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            )
        os._exit(0)  # out of a loop that may know no end

    def _pass(self, seconds: float) -> Any:
        steps, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            steps += 1
            yield
        return steps

    def _say(self, event: str, **numbers: float | None) -> None:
        self._link.write(json.dumps({"event": event, **numbers}) + "\n")
        self._link.flush()

    def _hear(self) -> float:
        return float(self._link.readline() or 0)


@cache
def stopwatch() -> Stopwatch:
    """The process's own."""
    return Stopwatch(socket.socket(fileno=int(os.environ[LINK])))


class Clock(gym.Wrapper[Any, Any, Any, Any]):
    """Ticks the stopwatch at every step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Ticks, then steps."""
        stopwatch().tick()
        return self.env.step(action)
